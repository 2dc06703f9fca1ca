//! Pictures of the pages of tables, drawn by `--picture`.

use std::fs;
use std::os::unix::fs::symlink;

use pgspate_embedded::testing::{self, TestDb};
use tempfile::TempDir;

use crate::doctor;

/// Returns a database whose table has only dead rows in its second half.
fn database_with_half_dead_table(extension: &str) -> TestDb {
    let db = testing::database();
    db.run(&format!(
        "{extension}; create table t (id int, v text) with (autovacuum_enabled = off); \
         insert into t select g, repeat('x', 100) from generate_series(1, 20000) g; \
         delete from t where id > 10000"
    ));
    db
}

/// Draws the picture of table `t`. Returns the printed summary and the SVG.
fn draw_picture(db: &TestDb) -> (String, String) {
    let folder = TempDir::with_prefix("pgspate-cli-").unwrap();
    let file = folder.path().join("t.svg");
    let run = doctor(&db.dsn(), &format!("--watch 100ms --table t --picture {}", file.display()));
    assert!(matches!(run.status, Some(0 | 1)), "{}", run.stderr);
    let said = run.stderr.split(", drawn in").next().unwrap().to_owned();
    (said, fs::read_to_string(file).unwrap())
}

#[test]
fn live_and_dead_rows_are_drawn_page_by_page() {
    let db = database_with_half_dead_table("create extension pageinspect");
    let (said, svg) = draw_picture(&db);
    assert_eq!(said, "public.t: 345 pages, 47 % live, 47 % dead, 6 % free");
    for word in [
        "class=\"live\"",
        "class=\"dead\"",
        "class=\"free\"",
        "10,000 rows",
        "pageinspect",
        "prefers-color-scheme:dark",
    ] {
        assert!(svg.contains(word), "{word}");
    }
    // A user's function does not replace the extension's function, which has another type of block.
    let is_old = db.query("select current_setting('server_version_num')::int < 140000");
    let block = if is_old[0][0].as_deref() == Some("t") { "bigint" } else { "int" };
    db.run(&format!(
        "create sequence runs; \
         create function get_raw_page(text, {block}) returns bytea language plpgsql as \
         $$begin perform nextval('public.runs'); return ''; end$$"
    ));
    assert_eq!(draw_picture(&db).0, said);
    assert_eq!(db.query("select is_called from runs")[0][0].as_deref(), Some("f"));
    // The vacuum turned all dead rows into free space.
    db.run("vacuum t");
    let (said, _) = draw_picture(&db);
    assert!(said.contains("0 % dead"), "{said}");
}

#[test]
fn without_the_extension_only_live_rows_are_drawn() {
    let (said, svg) = draw_picture(&database_with_half_dead_table(""));
    assert_eq!(said, "public.t: 345 pages, 48 % live, 52 % dead or free");
    assert!(!svg.contains("class=\"dead\"") && svg.contains("dead or free"));
    assert!(svg.contains("create extension pageinspect"));
    let (_, svg) = draw_picture(&database_with_half_dead_table("create extension pgstattuple"));
    assert!(svg.contains("pgstattuple says 4"), "{svg}");
}

#[test]
fn empty_tables_are_drawn_and_relations_without_pages_are_refused() {
    let db = testing::database();
    db.run(
        "create table t (id int); create table p (id int) partition by list (id); \
         create view v as select 1 as id",
    );
    let (said, svg) = draw_picture(&db);
    assert_eq!(said, "public.t: 0 pages, 0 % live, 100 % dead or free");
    assert!(svg.ends_with("</svg>\n"));
    for (name, hint) in [("p", "one of its partitions"), ("v", "Name a table")] {
        let run = doctor(&db.dsn(), &format!("--watch 0 --table {name} --picture x.svg"));
        assert_eq!(run.status, Some(2));
        assert!(run.stderr.contains(hint), "{}", run.stderr);
    }
}

/// Another user may have put a symbolic link at the path of the picture.
#[test]
fn a_picture_does_not_follow_a_link() {
    let db = testing::database();
    db.run("create table t (id int)");
    let folder = TempDir::with_prefix("pgspate-cli-").unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("victim"), "untouched").unwrap();
    symlink(at("victim"), at("t.svg")).unwrap();
    let args = format!("--watch 0 --table t --picture {}", at("t.svg").display());
    let run = doctor(&db.dsn(), &args);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("caused by: it is a symbolic link"), "{}", run.stderr);
    assert_eq!(fs::read_to_string(at("victim")).unwrap(), "untouched");
    // A regular file is replaced.
    fs::remove_file(at("t.svg")).unwrap();
    fs::write(at("t.svg"), "old").unwrap();
    assert!(matches!(doctor(&db.dsn(), &args).status, Some(0 | 1)));
    assert!(fs::read_to_string(at("t.svg")).unwrap().ends_with("</svg>\n"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_role_that_may_not_read_all_rows_is_refused() {
    let server = testing::server("");
    let (runtime, owner) = crate::run::session(&server.dsn());
    let run = |sql: &str| runtime.block_on(owner.batch_execute(sql)).unwrap();
    run("create table t (id int); insert into t values (1), (2); create role plain login");
    let plain = format!("{} user=plain", server.dsn());
    let folder = TempDir::with_prefix("pgspate-cli-").unwrap();
    let args = format!("--watch 0 --table t --picture {}/t.svg", folder.path().display());
    let refused = doctor(&plain, &args);
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("`grant select on public.t`"), "{}", refused.stderr);
    run("grant select on t to plain");
    assert_eq!(doctor(&plain, &args).status, Some(0));
    // Rows hidden by a policy do not count as dead.
    run("alter table t enable row level security; create policy p on t using (id = 1)");
    let refused = doctor(&plain, &args);
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("must see all of its rows"), "{}", refused.stderr);
}
