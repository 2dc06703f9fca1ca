//! Loads by a shadow table that fail, and what they leave of it.

use crate::replace_by_shadow::{ROWS, csv_text};
use crate::support::{LoadCase, finish, session, spawn, wait_until};

fn count_shadow_schemas(case: &LoadCase) -> String {
    case.value("select count(*) from pg_namespace where nspname like 'pgspate\\_job%'")
}

/// One index fails while another session builds the second one, which never ends by itself. Its
/// backend would keep locks on the shadow, which could not be dropped.
#[test]
fn a_failed_index_cancels_the_other_builds_and_leaves_no_shadow() {
    let case = LoadCase::new(
        "create table t (id int); insert into t values (-1);
         create function waits(id int) returns int immutable language plpgsql as
             'begin if id > 0 then perform pg_catalog.pg_advisory_xact_lock(7); end if;
              return id; end';
         create function fails(id int) returns int immutable language plpgsql as
             'begin while id > 0 and not exists (
                  select from pg_catalog.pg_locks join pg_catalog.pg_database d on d.oid = database
                  where locktype = ''advisory'' and not granted and datname = current_database())
              loop perform pg_catalog.pg_sleep(0.01); end loop;
              if id > 0 then raise exception ''a bad row''; end if; return id; end';
         create index t_waits on t (waits(id)); create index t_fails on t (fails(id))",
    );
    case.put("t.csv", "id\n1\n");
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("select pg_advisory_lock(7)")).unwrap();
    let args = "t.csv --table t --replace=swap --lanes 2 --header yes --quiet";
    let run = finish(spawn(&mut case.load_command(args)));
    assert!(run.stderr.contains("a bad row"), "{}", run.stderr);
    assert_eq!((run.status, count_shadow_schemas(&case)), (Some(2), "0".to_owned()));
    assert_eq!(case.rows("t"), ["(-1)"]);
    wait_until("the builders' sessions are gone", || case.is_quiet());
}

#[test]
fn a_shadow_table_is_dropped_only_together_with_its_chunks() {
    let case = LoadCase::new("create table t (id int, note text)");
    case.put("first.csv", "id,note\n1,x\n");
    case.load("first.csv --table t --quiet").success();
    case.db.run(
        "truncate t;
         create function refuse() returns trigger language plpgsql as
             'begin raise exception ''not now''; end';
         create trigger refuse before delete on pgspate.ledger
             for each row execute function refuse()",
    );
    case.put("t.csv", csv_text(1) + "x,bad\n");
    let run = case.load("t.csv --table t --atomic --commit chunk --lanes 1 --quiet");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    let chunks = "select count(*) > 0 from pgspate.ledger where rows_written > 1";
    assert_eq!((count_shadow_schemas(&case), case.value(chunks)), ("1".into(), "t".into()));
    // A shadow that stays takes as much space as the table.
    let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("could not be removed: could not drop the shadow table"), "{said}");
    assert!(said.contains("`pgspate status 2 --forget` removes both"), "{said}");
    case.db.run("drop trigger refuse on pgspate.ledger");
    case.put("t.csv", csv_text(1) + "7,good\n");
    case.load("t.csv --table t --atomic --commit chunk --lanes 1 --quiet").success();
    assert_eq!(count_shadow_schemas(&case), "0");
    assert_eq!(case.value("select count(*) from t"), (ROWS + 1).to_string());
}
