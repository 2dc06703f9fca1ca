//! Tests that indexes and foreign keys dropped for a load are restored exactly, also after a
//! failed, killed or interrupted load.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command};

use insta::assert_snapshot;
use pgspate_embedded::testing;
use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::support::{LoadCase, Run, ask, finish, folded, redact, session, spawn, wait_until};

/// Selects the definitions of the indexes and constraints of table `t`, one line each.
const SELECT_DEFINITIONS: &str = "\
select string_agg(line, E'\\n' order by line) from (
    select concat_ws(' | ', 'index', pg_get_indexdef(c.oid), i.indisvalid, i.indisready,
               i.indislive, i.indisprimary, i.indisunique, i.indisexclusion, i.indimmediate,
               i.indisclustered, i.indisreplident, c.reloptions, c.reltablespace,
               obj_description(c.oid, 'pg_class')) as line
    from pg_index i join pg_class c on c.oid = i.indexrelid where i.indrelid = 't'::regclass
    union all
    select concat_ws(' | ', 'constraint', conname, contype, pg_get_constraintdef(oid),
               condeferrable, condeferred, convalidated, connoinherit,
               conindid::regclass, obj_description(oid, 'pg_constraint'))
    from pg_constraint where conrelid = 't'::regclass
    union all
    select concat_ws(' | ', 'statistics', attrelid::regclass, attnum, attstattarget)
    from pg_attribute join pg_index on attrelid = indexrelid
    where indrelid = 't'::regclass and attstattarget >= 0
    union all
    select concat_ws(' | ', 'column', attname, attnotnull)
    from pg_attribute where attrelid = 't'::regclass and attnum > 0
    union all
    select concat_ws(' | ', 'table', relreplident,
               (select array_agg(o order by o) from unnest(reloptions) o))
    from pg_class where oid = 't'::regclass) lines";

/// Creates a table with an index or constraint of every kind.
const CREATE_WITH_EVERY_INDEX: &str = r#"
create extension if not exists btree_gist;
create table far (id int primary key, code text unique);
insert into far select n, 'c' || n from generate_series(1, 10) n;
create table t (
    id bigint not null, part int not null, name text, "Odd ""Name" int, doc jsonb,
    span int4range, far int, code text,
    constraint t_key primary key (id, part) include (name) with (fillfactor = 80),
    constraint t_soft unique (id, name) deferrable initially deferred,
    constraint t_hard unique (name, part, id),
    constraint "t Span" exclude using gist (id with =, span with &&) where (id > 0),
    constraint t_far foreign key (far) references far (id) on delete cascade deferrable,
    constraint t_code foreign key (code) references far (code) match full on update set null);
create index t_plain on t (part desc nulls first, name collate "C" text_pattern_ops)
    with (fillfactor = 70, deduplicate_items = off);
create unique index t_some on t (lower(name), id) where part <> 3;
create unique index "t ""Odd""" on t ("Odd ""Name", id);
create index t_expression on t ((part * 2), (name || 'x')) include (id);
create index t_doc on t using gin (doc jsonb_path_ops) with (fastupdate = off);
create index t_range on t using brin (id) with (pages_per_range = 16);
create index t_hash on t using hash (name);
create index t_gist on t using gist (span);
alter index t_expression alter column 1 set statistics 300;
alter index t_expression alter column 2 set statistics 0;
comment on index t_plain is 'it''s plain';
comment on index t_key is 'of the key';
comment on constraint t_key on t is 'the key';
comment on constraint t_soft on t is 'soft';
comment on constraint "t Span" on t is 'no overlap';
comment on constraint t_far on t is 'far away';
alter table t cluster on t_plain;
alter table t replica identity using index t_hard"#;

/// Returns rows for the table of `CREATE_WITH_EVERY_INDEX`.
fn csv_text(count: u32) -> String {
    let mut rows = "id,part,name,doc,span,far,code\n".to_owned();
    for row in 0..count {
        let (part, far) = (row % 5, row % 10 + 1);
        let _ = writeln!(
            rows,
            "{row},{part},n{row},\"{{\"\"a\"\": {row}}}\",\"[{row},{})\",{far},c{far}",
            row + 1
        );
    }
    rows
}

fn case_with_every_index() -> LoadCase {
    // A unique column must not be NULL to identify rows.
    let sql = CREATE_WITH_EVERY_INDEX.replace("name text, \"Odd", "name text not null, \"Odd");
    let case = LoadCase::new(&sql);
    case.put("t.csv", csv_text(1000));
    case
}

#[test]
fn all_indexes_and_constraints_are_restored_exactly() {
    let case = case_with_every_index();
    let before = case.value(SELECT_DEFINITIONS);
    let run = case.load("t.csv --rebuild-indexes always --json");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    for name in ["t_key", "t_soft", "t_hard", "t Span", "t_far", "t_code", "t_plain", "t_hash"] {
        assert!(run.stdout.contains(&format!(" \\\"{name}\\\"\"")), "{name}: {}", run.stdout);
    }
    assert_eq!(case.value(SELECT_DEFINITIONS), before);
    assert_eq!(case.rows("t").len(), 1000);
    assert_eq!(
        case.value("select count(*) from pgspate.change where done < cardinality(steps)"),
        "0"
    );
    assert_eq!(case.value("select finished is not null from pgspate.job"), "t");
}

#[test]
fn an_index_is_restored_in_its_tablespace() {
    let case = LoadCase::new("");
    let server = testing::server("");
    let folder = server.folder().join("elsewhere");
    std::fs::create_dir(&folder).unwrap();
    // If the test runs as root, the server runs as another user, who must own the folder.
    let owner = std::fs::metadata(server.data_folder()).unwrap();
    let _ = std::os::unix::fs::chown(&folder, Some(owner.uid()), Some(owner.gid()));
    ask(&server.dsn(), &format!("create tablespace elsewhere location '{}'", folder.display()));
    let span =
        "exclude using gist (int4range(id, id + 1) with &&) using index tablespace elsewhere";
    for sql in [
        format!("create table t (id int primary key using index tablespace elsewhere, {span})"),
        "create index t_id on t (id) tablespace elsewhere".to_owned(),
        "create index t_here on t (id)".to_owned(),
        // The default tablespace applies to every index that names none.
        "alter database postgres set default_tablespace = elsewhere".to_owned(),
    ] {
        ask(&server.dsn(), &sql);
    }
    let shape = "select string_agg(relname || ' ' || reltablespace, ' ' order by relname) \
                 from pg_class where relkind = 'i' and relname like 't\\_%'";
    let before = ask(&server.dsn(), shape);
    case.put("t.csv", "id\n1\n2\n");
    let args = ["load", "-q", "t.csv", "--header", "yes", "--rebuild-indexes", "always", "--json"];
    let run = Run::of(case.command(&args).args(["--to", &server.dsn()]).output().unwrap());
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(run.stdout.matches("\\\"t_").count(), 4, "{}", run.stdout);
    assert_eq!(ask(&server.dsn(), shape), before);
}

/// Runs `pgspate status` with `args`, split at spaces.
fn run_status(case: &LoadCase, args: &str) -> Run {
    let mut command = case.command(&["status", "--to", &case.db.dsn()]);
    Run::of(command.args(args.split_whitespace()).output().unwrap())
}

/// Redacts messages and joins their folded lines before it folds them again.
fn redact_and_unfold(text: &str) -> String {
    folded(&redact(text).replace("\n      … ", " "))
}

/// Returns the number of changes in the ledger that are not restored.
fn count_unrestored_changes(case: &LoadCase) -> String {
    case.value("select count(*) from pgspate.change where done < cardinality(steps)")
}

/// Creates a table with a trigger that makes each inserted row wait for an advisory lock.
const CREATE_SLOW_TABLE: &str = "\
create table t (id int constraint t_key primary key, a int, b text);
create index t_a on t (a);
create index t_b on t (b) where b <> '';
comment on index t_a is 'a';
create function wait() returns trigger language plpgsql as
    'begin perform pg_advisory_xact_lock_shared(7); return new; end';
create trigger wait before insert on t for each row execute function wait()";

/// Starts a load into the table of `CREATE_SLOW_TABLE`, which waits in its first rows for a lock.
///
/// Returns the load and the session that holds the lock.
fn start_blocked_load(case: &LoadCase, args: &str) -> (Child, Runtime, Client) {
    let mut rows = "id,a,b\n".to_owned();
    (0..1000).for_each(|row| writeln!(rows, "{row},{},b{row}", row % 7).unwrap());
    case.put("t.csv", rows);
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; select pg_advisory_xact_lock(7)")).unwrap();
    let args = format!("t.csv --rebuild-indexes always --lanes 2 {args}");
    let child = spawn(&mut case.load_command(&args));
    wait_until("a row waits", || {
        let sql = "select count(*) from pg_stat_activity \
                   where datname = current_database() and wait_event = 'advisory'";
        case.value(sql) != "0"
    });
    (child, runtime, holder)
}

#[test]
fn a_load_killed_after_the_drop_continues() {
    let case = LoadCase::new(CREATE_SLOW_TABLE);
    let before = case.value(SELECT_DEFINITIONS);
    let (mut child, runtime, holder) = start_blocked_load(&case, "");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(case.value("select count(*) from pg_index where indrelid = 't'::regclass"), "0");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    wait_until("its sessions are gone", || case.is_quiet());
    assert_snapshot!(redact_and_unfold(&run_status(&case, "").stdout), @r#"
    job 1  load [DIR]/t.csv into public.t
      began [WHEN], [AGE] ago; unfinished; run the same command again, without `--restart`,
          … to continue
      0 rows in 0 chunks
      not put back: index "t_a", index "t_b", primary key "t_key"; run `pgspate status
          … --restore 1`
    "#);
    let plan = case.load("t.csv --rebuild-indexes always --lanes 2 --plan");
    assert_snapshot!(redact_and_unfold(plan.stdout.split("\nledger ").last().unwrap()), @r#"
    not restored by an earlier load, or one that is running: index "t_a", index "t_b",
        … primary key "t_key"
    "#);
    let run = case.load("t.csv --rebuild-indexes always --lanes 2");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(
        (case.value(SELECT_DEFINITIONS), count_unrestored_changes(&case)),
        (before, "0".to_owned())
    );
    assert_eq!(case.value("select count(*) from t"), "1000");
}

#[test]
fn status_restores_indexes_that_a_killed_load_dropped() {
    let case = LoadCase::new(CREATE_SLOW_TABLE);
    let before = case.value(SELECT_DEFINITIONS);
    let (mut child, runtime, holder) = start_blocked_load(&case, "--commit chunk");
    // Nothing is restored while the load runs.
    assert_snapshot!(redact_and_unfold(&run_status(&case, "1 --restore").refusal()), @r#"
    error: job 1 is running in session [N] ("pgspate load" from a local socket, since
          … [WHEN])

    hint: That session puts everything back when it is done.
    "#);
    assert_snapshot!(run_status(&case, "--restore").stderr, @"there is nothing to put back");
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    wait_until("its sessions are gone", || case.is_quiet());
    assert_snapshot!(redact_and_unfold(&run_status(&case, "1 --forget").refusal()), @r#"
    error: job 1 has not put back index "t_a"

    hint: Put its changes back with `pgspate status --restore 1`, or discard them with
          … `delete from pgspate.change where job = 1`.
    "#);
    assert_snapshot!(run_status(&case, "--restore").stderr, @r#"
    index "t_a" of job 1 is back
    index "t_b" of job 1 is back
    primary key "t_key" of job 1 is back
    "#);
    assert_eq!(case.value(SELECT_DEFINITIONS), before);
    assert_snapshot!(run_status(&case, "--restore 1").stderr, @"there is nothing to put back");
    let run = case.load("t.csv --lanes 2 --commit chunk");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(
        (case.value(SELECT_DEFINITIONS), count_unrestored_changes(&case)),
        (before, "0".to_owned())
    );
    assert_eq!(case.value("select count(*) from t"), "1000");
}

#[test]
fn another_load_restores_indexes_that_a_killed_load_dropped() {
    let case = LoadCase::new(CREATE_SLOW_TABLE);
    let before = case.value(SELECT_DEFINITIONS);
    let (mut child, runtime, holder) = start_blocked_load(&case, "");
    case.put("other.csv", "id,a,b\n5000,1,x\n");
    runtime.block_on(holder.batch_execute("commit")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("its sessions are gone", || case.is_quiet());
    let run = case.load("other.csv --table t --lanes 2");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(
        (case.value(SELECT_DEFINITIONS), count_unrestored_changes(&case)),
        (before, "0".to_owned())
    );
    let run = case.load("t.csv --rebuild-indexes always --lanes 2");
    assert!(matches!(run.status, Some(0)), "{}", run.stderr);
    assert_eq!(case.value("select count(*) from t"), "1001");
}

/// Waits until a session whose query contains `query` waits for a lock.
fn wait_for_blocked_query(case: &LoadCase, query: &str) {
    let sql = format!(
        "select count(*) from pg_stat_activity where datname = current_database() \
         and wait_event_type = 'Lock' and query like '%{query}%' and pid <> pg_backend_pid()"
    );
    wait_until(query, || case.value(&sql) != "0");
}

#[test]
fn a_load_killed_while_it_builds_indexes_continues() {
    for (mode, query) in [("row exclusive", "CREATE INDEX"), ("access share", "add constraint")] {
        let case = LoadCase::new(CREATE_SLOW_TABLE);
        let before = case.value(SELECT_DEFINITIONS);
        let (mut child, runtime, holder) = start_blocked_load(&case, "");
        // One lock blocks the creation of the index. The other blocks only that of the constraint.
        let (other, lock) = session(&case.db.dsn());
        other.block_on(lock.batch_execute(&format!("begin; lock table t in {mode} mode"))).unwrap();
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
        wait_for_blocked_query(&case, query);
        assert_eq!(case.value("select count(*) from t"), "1000");
        child.kill().unwrap();
        child.wait().unwrap();
        other.block_on(lock.batch_execute("rollback")).unwrap();
        wait_until("its sessions are gone", || case.is_quiet());
        let run = case.load("t.csv --rebuild-indexes always --lanes 2");
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        assert_eq!(
            (case.value(SELECT_DEFINITIONS), count_unrestored_changes(&case)),
            (before, "0".to_owned())
        );
        assert_eq!(case.value("select count(*) from t"), "1000");
    }
}

#[test]
fn an_interrupt_restores_all_indexes() {
    for commit in ["end", "chunk"] {
        let case = LoadCase::new(CREATE_SLOW_TABLE);
        let before = case.value(SELECT_DEFINITIONS);
        let (child, _runtime, _holder) = start_blocked_load(&case, &format!("--commit {commit}"));
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let run = finish(child);
        assert_eq!(run.status, Some(130), "{}", run.stderr);
        assert_eq!(
            (case.value(SELECT_DEFINITIONS), count_unrestored_changes(&case)),
            (before, "0".to_owned())
        );
        assert_eq!(case.value("select count(*) from t"), "0");
    }
}

#[test]
fn an_interrupt_while_indexes_are_built_keeps_the_rows() {
    let case = LoadCase::new(CREATE_SLOW_TABLE);
    let before = case.value(SELECT_DEFINITIONS);
    let (child, runtime, holder) = start_blocked_load(&case, "--quiet");
    let (other, lock) = session(&case.db.dsn());
    other.block_on(lock.batch_execute("begin; lock table t in row exclusive mode")).unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    wait_for_blocked_query(&case, "CREATE INDEX");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let run = finish(child);
    assert_eq!(run.status, Some(130), "{}", run.stderr);
    assert_snapshot!(redact_and_unfold(&run.stderr), @r#"

    rolling back; press Ctrl-C again to stop at once
    error: could not load "t.csv" into public.t
      caused by: stopped by the user

    hint: Every row is in the table, but some of its indexes are missing. `pgspate status
          … --restore 1` creates them, and so does the same command, run again.
    "#);
    other.block_on(lock.batch_execute("rollback")).unwrap();
    let mut said: Vec<_> =
        run_status(&case, "--restore").stderr.lines().map(str::to_owned).collect();
    said.sort();
    assert_snapshot!(said.join("\n"), @r#"
    index "t_a" of job 1 is back
    index "t_b" of job 1 is back
    primary key "t_key" of job 1 is back
    "#);
    assert_eq!(case.value(SELECT_DEFINITIONS), before);
}

const CREATE_KEYED: &str = "\
create table t (id int constraint t_key primary key, a int);
create index t_a on t (a);
insert into t values (-1, 0)";

#[test]
fn a_duplicate_key_fails_the_load_and_restores_the_indexes() {
    let case = LoadCase::new(CREATE_KEYED);
    let before = (case.value(SELECT_DEFINITIONS), case.rows("t"));
    case.put("t.csv", "id,a\n1,1\n2,2\n1,3\n");
    assert_snapshot!(redact_and_unfold(&case.load("t.csv --rebuild-indexes always").refusal()), @r#"
    format csv: the name ends with .csv
    delimiter ",": 2 fields in each line
    header yes: the first line names the table's columns
    error: could not load "t.csv" into public.t
      caused by: duplicate key value violates unique constraint "t_key" (SQLSTATE 23505)
      caused by: Key (id)=(1) already exists
      at: t.csv, line 4, byte 13

    hint: If the table has the key already, `pgspate sync --no-delete` updates the row.
    "#);
    assert_eq!((case.value(SELECT_DEFINITIONS), case.rows("t")), before);
    assert_eq!(case.value("select count(*) from pgspate.job"), "0");
    // If the table was empty before the load, all its rows are removed again.
    case.db.run("truncate t");
    let before = (case.value(SELECT_DEFINITIONS), case.rows("t"));
    case.load("t.csv --rebuild-indexes always").refusal();
    assert_eq!((case.value(SELECT_DEFINITIONS), case.rows("t")), before);
}

#[test]
fn a_duplicate_key_in_committed_chunks_leaves_the_primary_key_missing() {
    let case = LoadCase::new(CREATE_KEYED);
    let before = case.value(SELECT_DEFINITIONS);
    case.put("t.csv", "id,a\n1,1\n2,2\n1,3\n");
    let args = "t.csv --rebuild-indexes always --commit chunk";
    assert_snapshot!(redact_and_unfold(&case.load(args).refusal()), @r#"
    format csv: the name ends with .csv
    delimiter ",": 2 fields in each line
    header yes: the first line names the table's columns
    error: could not load "t.csv" into public.t
      caused by: could not put back primary key "t_key"
      caused by: could not create unique index "t_key" (SQLSTATE 23505)
      caused by: Key (id)=(1) is duplicated

    hint: Every row is in the table, but some of its indexes are missing. `select id,
          … count(*) from public.t group by id having count(*) > 1` finds duplicate keys.
          … `pgspate status --restore 1` creates them, and so does the same command, run
          … again.
    "#);
    assert_snapshot!(redact_and_unfold(&case.load(args).refusal()), @r#"
    format csv: the name ends with .csv
    delimiter ",": 2 fields in each line
    header yes: the first line names the table's columns
    resuming job 1 of [WHEN] 3 rows in 1 chunk are written; not restored by an earlier
          … load, or one that is running: primary key "t_key"
    error: could not load "t.csv" into public.t
      caused by: could not put back primary key "t_key"
      caused by: could not create unique index "t_key" (SQLSTATE 23505)
      caused by: Key (id)=(1) is duplicated

    hint: Every row is in the table, but some of its indexes are missing. `select id,
          … count(*) from public.t group by id having count(*) > 1` finds duplicate keys.
          … `pgspate status --restore 1` creates them, and so does the same command, run
          … again.
    "#);
    assert_snapshot!(redact_and_unfold(&run_status(&case, "--restore").refusal()), @r#"
    error: could not put back primary key "t_key"
      caused by: could not create unique index "t_key" (SQLSTATE 23505)
      caused by: Key (id)=(1) is duplicated
    "#);
    case.db.run("delete from t where (id, a) = (1, 3)");
    let restored = run_status(&case, "--restore").stderr;
    assert_snapshot!(restored, @r#"primary key "t_key" of job 1 is back"#);
    assert_eq!(
        (case.value(SELECT_DEFINITIONS), count_unrestored_changes(&case)),
        (before, "0".to_owned())
    );
    assert_eq!(case.load(args).status, Some(0));
    assert_eq!(case.rows("t"), ["(-1,0)", "(1,1)", "(2,2)"]);
}

#[test]
fn a_foreign_key_violation_fails_the_load_and_restores_the_keys() {
    let case = LoadCase::new(
        "create table far (id int primary key); insert into far values (1); \
         create table t (id int primary key, far int references far)",
    );
    let before = case.value(SELECT_DEFINITIONS);
    case.put("t.csv", "id,far\n1,1\n2,\n3,7\n");
    assert_snapshot!(redact_and_unfold(&case.load("t.csv --rebuild-indexes always").refusal()), @r#"
    format csv: the name ends with .csv
    delimiter ",": 2 fields in each line
    header yes: the first line names the table's columns
    error: could not load "t.csv" into public.t
      caused by: insert or update on table "t" violates foreign key constraint "t_far_fkey"
          … (SQLSTATE 23503)
      caused by: Key (far)=(7) is not present in table "far"
    "#);
    assert_eq!((case.value(SELECT_DEFINITIONS), case.rows("t")), (before, Vec::new()));
}

#[test]
fn a_failed_load_restores_all_indexes() {
    let case = case_with_every_index();
    let before = case.value(SELECT_DEFINITIONS);
    case.put("t.csv", csv_text(100) + "x,1,n,,,,\n");
    assert_snapshot!(redact_and_unfold(&case.load("t.csv --rebuild-indexes always").refusal()), @r#"
    format csv: the name ends with .csv
    delimiter ",": 7 fields in each line
    header yes: the first line names the table's columns
    error: could not load "t.csv" into public.t
      caused by: invalid input syntax for type bigint: "x" (SQLSTATE 22P02)
      at: t.csv, line 102, byte 3803, column "id"
    "#);
    assert_eq!((case.value(SELECT_DEFINITIONS), case.rows("t")), (before, Vec::new()));
    assert_eq!(case.value("select count(*) from pgspate.job"), "0");
}
