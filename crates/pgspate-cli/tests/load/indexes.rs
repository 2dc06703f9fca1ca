//! Indexes and foreign keys that are dropped for a load: they come back as they were, whatever
//! happens in between.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command};

use insta::assert_snapshot;
use pgspate_embedded::testing;
use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::support::{LoadCase, Run, ask, finish, folded, redact, session, spawn, wait_until};

/// Everything about the indexes and constraints of table `t`, a line each.
const SHAPE: &str = "\
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

/// A table with one of everything.
const EVERYTHING: &str = r#"
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

/// Rows for it.
fn rows(count: u32) -> String {
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

fn everything() -> LoadCase {
    // A unique column must not be NULL to identify rows.
    let sql = EVERYTHING.replace("name text, \"Odd", "name text not null, \"Odd");
    let case = LoadCase::new(&sql);
    case.put("t.csv", rows(1000));
    case
}

#[test]
fn everything_comes_back_as_it_was() {
    let case = everything();
    let before = case.value(SHAPE);
    let run = case.load("t.csv --rebuild-indexes always --json");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    for name in ["t_key", "t_soft", "t_hard", "t Span", "t_far", "t_code", "t_plain", "t_hash"] {
        assert!(run.stdout.contains(&format!(" \\\"{name}\\\"\"")), "{name}: {}", run.stdout);
    }
    assert_eq!(case.value(SHAPE), before);
    assert_eq!(case.rows("t").len(), 1000);
    assert_eq!(
        case.value("select count(*) from pgspate.change where done < cardinality(steps)"),
        "0"
    );
    assert_eq!(case.value("select finished is not null from pgspate.job"), "t");
}

#[test]
fn an_index_comes_back_where_it_was() {
    let case = LoadCase::new("");
    let server = testing::server("");
    let folder = server.folder().join("elsewhere");
    std::fs::create_dir(&folder).unwrap();
    // As root, the server is another user.
    let owner = std::fs::metadata(server.data_folder()).unwrap();
    let _ = std::os::unix::fs::chown(&folder, Some(owner.uid()), Some(owner.gid()));
    ask(&server.dsn(), &format!("create tablespace elsewhere location '{}'", folder.display()));
    let span =
        "exclude using gist (int4range(id, id + 1) with &&) using index tablespace elsewhere";
    for sql in [
        format!("create table t (id int primary key using index tablespace elsewhere, {span})"),
        "create index t_id on t (id) tablespace elsewhere".to_owned(),
        "create index t_here on t (id)".to_owned(),
        // Which counts for what names no tablespace.
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

/// `pgspate status` with these arguments.
fn status(case: &LoadCase, args: &str) -> Run {
    let mut command = case.command(&["status", "--to", &case.db.dsn()]);
    Run::of(command.args(args.split_whitespace()).output().unwrap())
}

/// What was said, without what differs from run to run.
fn shown(text: &str) -> String {
    folded(&redact(text).replace("\n      … ", " "))
}

/// How many changes are not put back.
fn outstanding(case: &LoadCase) -> String {
    case.value("select count(*) from pgspate.change where done < cardinality(steps)")
}

/// A table whose rows wait, one by one, for a lock that the test has.
const SLOW: &str = "\
create table t (id int constraint t_key primary key, a int, b text);
create index t_a on t (a);
create index t_b on t (b) where b <> '';
comment on index t_a is 'a';
create function wait() returns trigger language plpgsql as
    'begin perform pg_advisory_xact_lock_shared(7); return new; end';
create trigger wait before insert on t for each row execute function wait()";

/// Its load, of which no row is in before the session ends its transaction.
fn waiting(case: &LoadCase, args: &str) -> (Child, Runtime, Client) {
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
fn killed_after_the_drop_it_goes_on() {
    let case = LoadCase::new(SLOW);
    let before = case.value(SHAPE);
    let (mut child, runtime, holder) = waiting(&case, "");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(case.value("select count(*) from pg_index where indrelid = 't'::regclass"), "0");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    wait_until("its sessions are gone", || case.is_quiet());
    assert_snapshot!(shown(&status(&case, "").stdout), @r#"
    job 1  load [DIR]/t.csv into public.t
      began [WHEN]; unfinished; run the same command again to continue
      0 rows in 0 chunks
      not put back: index "t_a", index "t_b", primary key "t_key"; run `pgspate status
          … --restore 1`
    "#);
    let plan = case.load("t.csv --rebuild-indexes always --lanes 2 --plan");
    assert_snapshot!(shown(plan.stdout.split("\nledger ").last().unwrap()), @r#"
    an earlier load has not restored: index "t_a", index "t_b", primary key "t_key"
    "#);
    let run = case.load("t.csv --rebuild-indexes always --lanes 2");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!((case.value(SHAPE), outstanding(&case)), (before, "0".to_owned()));
    assert_eq!(case.value("select count(*) from t"), "1000");
}

#[test]
fn killed_after_the_drop_it_is_restored() {
    let case = LoadCase::new(SLOW);
    let before = case.value(SHAPE);
    let (mut child, runtime, holder) = waiting(&case, "--commit chunk");
    // Not while it is under way.
    assert_snapshot!(shown(&status(&case, "1 --restore").refusal()), @r#"
    error: job 1 is running in session [N] ("pgspate load" from a local socket, since
          … [WHEN])

    hint: That session puts everything back when it is done.
    "#);
    assert_snapshot!(status(&case, "--restore").stderr, @"there is nothing to put back");
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    wait_until("its sessions are gone", || case.is_quiet());
    assert_snapshot!(shown(&status(&case, "1 --forget").refusal()), @r#"
    error: job 1 has not put back index "t_a"

    hint: Put its changes back with `pgspate status --restore 1`, or discard them with
          … `delete from pgspate.change where job = 1`.
    "#);
    assert_snapshot!(status(&case, "--restore").stderr, @r#"
    index "t_a" of job 1 is back
    index "t_b" of job 1 is back
    primary key "t_key" of job 1 is back
    "#);
    assert_eq!(case.value(SHAPE), before);
    assert_snapshot!(status(&case, "--restore 1").stderr, @"there is nothing to put back");
    let run = case.load("t.csv --lanes 2 --commit chunk");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!((case.value(SHAPE), outstanding(&case)), (before, "0".to_owned()));
    assert_eq!(case.value("select count(*) from t"), "1000");
}

#[test]
fn another_load_puts_back_what_one_that_was_killed_has_left() {
    let case = LoadCase::new(SLOW);
    let before = case.value(SHAPE);
    let (mut child, runtime, holder) = waiting(&case, "");
    case.put("other.csv", "id,a,b\n5000,1,x\n");
    // While the first one is under way, the second leaves its changes to it.
    runtime.block_on(holder.batch_execute("commit")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("its sessions are gone", || case.is_quiet());
    let run = case.load("other.csv --table t --lanes 2");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!((case.value(SHAPE), outstanding(&case)), (before, "0".to_owned()));
    let run = case.load("t.csv --rebuild-indexes always --lanes 2");
    assert!(matches!(run.status, Some(0)), "{}", run.stderr);
    assert_eq!(case.value("select count(*) from t"), "1001");
}

/// Waits until a session waits for a lock on the table.
fn wait_for_lock(case: &LoadCase, query: &str) {
    let sql = format!(
        "select count(*) from pg_stat_activity where datname = current_database() \
         and wait_event_type = 'Lock' and query like '%{query}%' and pid <> pg_backend_pid()"
    );
    wait_until(query, || case.value(&sql) != "0");
}

#[test]
fn killed_while_indexes_are_made_again() {
    for (mode, query) in [("row exclusive", "CREATE INDEX"), ("access share", "add constraint")] {
        let case = LoadCase::new(SLOW);
        let before = case.value(SHAPE);
        let (mut child, runtime, holder) = waiting(&case, "");
        // Prevents the index, or only the constraint.
        let (other, lock) = session(&case.db.dsn());
        other.block_on(lock.batch_execute(&format!("begin; lock table t in {mode} mode"))).unwrap();
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
        wait_for_lock(&case, query);
        assert_eq!(case.value("select count(*) from t"), "1000");
        child.kill().unwrap();
        child.wait().unwrap();
        other.block_on(lock.batch_execute("rollback")).unwrap();
        wait_until("its sessions are gone", || case.is_quiet());
        let run = case.load("t.csv --rebuild-indexes always --lanes 2");
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        assert_eq!((case.value(SHAPE), outstanding(&case)), (before, "0".to_owned()));
        assert_eq!(case.value("select count(*) from t"), "1000");
    }
}

#[test]
fn an_interrupt_puts_everything_back() {
    for commit in ["end", "chunk"] {
        let case = LoadCase::new(SLOW);
        let before = case.value(SHAPE);
        let (child, _runtime, _holder) = waiting(&case, &format!("--commit {commit}"));
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let run = finish(child);
        assert_eq!(run.status, Some(130), "{}", run.stderr);
        assert_eq!((case.value(SHAPE), outstanding(&case)), (before, "0".to_owned()));
        assert_eq!(case.value("select count(*) from t"), "0");
    }
}

#[test]
fn an_interrupt_while_indexes_are_made_again() {
    let case = LoadCase::new(SLOW);
    let before = case.value(SHAPE);
    let (child, runtime, holder) = waiting(&case, "--quiet");
    let (other, lock) = session(&case.db.dsn());
    other.block_on(lock.batch_execute("begin; lock table t in row exclusive mode")).unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    wait_for_lock(&case, "CREATE INDEX");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let run = finish(child);
    assert_eq!(run.status, Some(130), "{}", run.stderr);
    assert_snapshot!(shown(&run.stderr), @r#"

    rolling back; press Ctrl-C again to stop at once
    error: could not load "t.csv" into public.t
      caused by: stopped by the user

    hint: Every row is in the table, but some of its indexes are missing. `pgspate status
          … --restore 1` creates them, and so does the same command, run again.
    "#);
    other.block_on(lock.batch_execute("rollback")).unwrap();
    let mut said: Vec<_> = status(&case, "--restore").stderr.lines().map(str::to_owned).collect();
    said.sort();
    assert_snapshot!(said.join("\n"), @r#"
    index "t_a" of job 1 is back
    index "t_b" of job 1 is back
    primary key "t_key" of job 1 is back
    "#);
    assert_eq!(case.value(SHAPE), before);
}

const KEYED: &str = "\
create table t (id int constraint t_key primary key, a int);
create index t_a on t (a);
insert into t values (-1, 0)";

#[test]
fn a_key_that_is_there_twice_fails_the_load_as_ever() {
    let case = LoadCase::new(KEYED);
    let before = (case.value(SHAPE), case.rows("t"));
    case.put("t.csv", "id,a\n1,1\n2,2\n1,3\n");
    assert_snapshot!(shown(&case.load("t.csv --rebuild-indexes always").refusal()), @r#"
    format csv: the name ends with .csv
    delimiter ",": 2 fields in each line
    header yes: the first line names the table's columns
    error: could not load "t.csv" into public.t
      caused by: duplicate key value violates unique constraint "t_key" (SQLSTATE 23505)
      caused by: Key (id)=(1) already exists
      at: t.csv, line 4, byte 13
    "#);
    assert_eq!((case.value(SHAPE), case.rows("t")), before);
    assert_eq!(case.value("select count(*) from pgspate.job"), "0");
    // Where it is the only one in the table, the table is emptied instead.
    case.db.run("truncate t");
    let before = (case.value(SHAPE), case.rows("t"));
    case.load("t.csv --rebuild-indexes always").refusal();
    assert_eq!((case.value(SHAPE), case.rows("t")), before);
}

#[test]
fn a_key_that_is_there_twice_where_chunks_are_kept() {
    let case = LoadCase::new(KEYED);
    let before = case.value(SHAPE);
    case.put("t.csv", "id,a\n1,1\n2,2\n1,3\n");
    let args = "t.csv --rebuild-indexes always --commit chunk";
    assert_snapshot!(shown(&case.load(args).refusal()), @r#"
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
    assert_snapshot!(shown(&case.load(args).refusal()), @r#"
    format csv: the name ends with .csv
    delimiter ",": 2 fields in each line
    header yes: the first line names the table's columns
    resuming job 1 of [WHEN] 3 rows in 1 chunk are written; an earlier load has not
          … restored: primary key "t_key"
    error: could not load "t.csv" into public.t
      caused by: could not put back primary key "t_key"
      caused by: could not create unique index "t_key" (SQLSTATE 23505)
      caused by: Key (id)=(1) is duplicated

    hint: Every row is in the table, but some of its indexes are missing. `select id,
          … count(*) from public.t group by id having count(*) > 1` finds duplicate keys.
          … `pgspate status --restore 1` creates them, and so does the same command, run
          … again.
    "#);
    assert_snapshot!(shown(&status(&case, "--restore").refusal()), @r#"
    error: could not put back primary key "t_key"
      caused by: could not create unique index "t_key" (SQLSTATE 23505)
      caused by: Key (id)=(1) is duplicated
    "#);
    case.db.run("delete from t where (id, a) = (1, 3)");
    assert_snapshot!(status(&case, "--restore").stderr, @r#"primary key "t_key" of job 1 is back"#);
    assert_eq!((case.value(SHAPE), outstanding(&case)), (before, "0".to_owned()));
    assert_eq!(case.load(args).status, Some(0));
    assert_eq!(case.rows("t"), ["(-1,0)", "(1,1)", "(2,2)"]);
}

#[test]
fn a_row_that_refers_to_nothing_fails_the_load_as_ever() {
    let case = LoadCase::new(
        "create table far (id int primary key); insert into far values (1); \
         create table t (id int primary key, far int references far)",
    );
    let before = case.value(SHAPE);
    case.put("t.csv", "id,far\n1,1\n2,\n3,7\n");
    assert_snapshot!(shown(&case.load("t.csv --rebuild-indexes always").refusal()), @r#"
    format csv: the name ends with .csv
    delimiter ",": 2 fields in each line
    header yes: the first line names the table's columns
    error: could not load "t.csv" into public.t
      caused by: insert or update on table "t" violates foreign key constraint "t_far_fkey"
          … (SQLSTATE 23503)
      caused by: Key (far)=(7) is not present in table "far"
    "#);
    assert_eq!((case.value(SHAPE), case.rows("t")), (before, Vec::new()));
}

#[test]
fn a_load_that_fails_puts_everything_back() {
    let case = everything();
    let before = case.value(SHAPE);
    case.put("t.csv", rows(100) + "x,1,n,,,,\n");
    assert_snapshot!(shown(&case.load("t.csv --rebuild-indexes always").refusal()), @r#"
    format csv: the name ends with .csv
    delimiter ",": 7 fields in each line
    header yes: the first line names the table's columns
    error: could not load "t.csv" into public.t
      caused by: invalid input syntax for type bigint: "x" (SQLSTATE 22P02)
      at: t.csv, line 102, byte 3803, column "id"
    "#);
    assert_eq!((case.value(SHAPE), case.rows("t")), (before, Vec::new()));
    assert_eq!(case.value("select count(*) from pgspate.job"), "0");
}
