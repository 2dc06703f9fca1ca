//! Checks of tables: a bad state, its finding, the remedy, and no finding afterwards.

use pgspate_embedded::testing::{self, TestDb};
use serde_json::Value;

use crate::run::{session, wait_until};
use crate::{expect_no_finding, findings, remedy, wait_for_finding, warnings_and_notes};

/// Brings a database into a bad state, expects the finding, runs its remedy, and expects no
/// finding.
#[track_caller]
pub(crate) fn check_remedy(bad: &str, id: &str, args: &str) -> (TestDb, Value) {
    let db = testing::database();
    db.run(bad);
    let finding = wait_for_finding(&db.dsn(), id, args);
    for statement in remedy(&finding) {
        db.run(&statement);
    }
    expect_no_finding(&db.dsn(), id, args);
    (db, finding)
}

/// Creates a table that only the test itself vacuums.
const CREATE_T: &str =
    "create table t (id int primary key, v text) with (autovacuum_enabled = off);";

#[test]
fn dead_rows_are_found() {
    let bad = "insert into t select g, 'a' from generate_series(1, 5000) g; update t set v = 'b'";
    let (_, finding) = check_remedy(&format!("{CREATE_T}{bad}"), "dead-rows", "");
    assert_eq!(finding["object"], "public.t");
    assert_eq!(finding["numbers"]["dead_rows"], 5000.0);
    let evidence = finding["evidence"].as_str().unwrap();
    assert!(evidence.starts_with("5,000 of 10,000 row versions are dead (50 %)"), "{evidence}");
}

#[test]
fn an_early_autovacuum_is_not_made_later() {
    let bad = "create table t (id int primary key, v text) with (autovacuum_enabled = on, \
               autovacuum_vacuum_threshold = 2000000000, SCALE); \
               insert into t select g, 'a' from generate_series(1, 5000) g; update t set v = 'b'";
    let scale = |is: &str| bad.replace("SCALE", &format!("autovacuum_vacuum_scale_factor = {is}"));
    let (_, finding) = check_remedy(&scale("0.2"), "dead-rows", "");
    let expected = "alter table public.t set (autovacuum_vacuum_scale_factor = 0.05);";
    assert_eq!(remedy(&finding), ["vacuum (analyze) public.t;", expected]);
    let (_, finding) = check_remedy(&scale("0.01"), "dead-rows", "");
    assert_eq!(remedy(&finding), ["vacuum (analyze) public.t;"]);
}

#[test]
fn disabled_autovacuum_of_a_table_is_found() {
    let (_, finding) = check_remedy(CREATE_T, "autovacuum", "");
    assert_eq!(finding["object"], "public.t");
}

#[test]
fn tables_that_are_never_vacuumed_are_found() {
    let bad = "insert into t select g, 'a' from generate_series(1, 20000) g";
    let (_, finding) = check_remedy(&format!("{CREATE_T}{bad}"), "never-vacuumed", "--table t");
    assert_eq!(remedy(&finding), ["vacuum (freeze, analyze) public.t;"]);
}

/// Returns a database in which nine of ten rows are deleted. The other rows are spread over all
/// pages.
fn bloated_database(extension: &str) -> TestDb {
    let db = testing::database();
    let bad = "insert into t select g, repeat('x', 60) from generate_series(1, 400000) g";
    db.run(&format!("{extension}; {CREATE_T}{bad}"));
    db.run("delete from t where id % 10 <> 0");
    db.run("vacuum (analyze) t");
    db
}

#[test]
fn bloated_tables_and_indexes_are_found() {
    for extension in ["", "create extension pgstattuple"] {
        let db = bloated_database(extension);
        for id in ["oversized-indexes", "bloat"] {
            let finding = wait_for_finding(&db.dsn(), id, "");
            let evidence = finding["evidence"].as_str().unwrap();
            assert_eq!(evidence.contains("estimated"), extension.is_empty(), "{evidence}");
            for statement in remedy(&finding) {
                db.run(&statement);
            }
            expect_no_finding(&db.dsn(), id, "");
        }
    }
}

#[test]
fn a_running_load_does_not_count_as_bloat() {
    let db = testing::database();
    let rows = "select g, repeat('x', 60) from generate_series";
    db.run(&format!("{CREATE_T} insert into t {rows}(1, 400000) g; analyze t"));
    let (runtime, loading) = session(&db.dsn());
    let load = format!("begin; insert into t {rows}(400001, 1300000) g");
    runtime.block_on(loading.batch_execute(&load)).unwrap();
    for id in ["bloat", "oversized-indexes"] {
        let found = findings(&db.dsn(), id, "--table t");
        assert_eq!((found.len(), &found[0]["verdict"]), (1, &"ok".into()), "{found:?}");
        assert!(found[0]["evidence"].as_str().unwrap().starts_with("1 "), "{found:?}");
    }
    // A table that had bloat before still has it.
    runtime.block_on(loading.batch_execute("rollback")).unwrap();
    db.run("delete from t where id % 10 <> 0; analyze t");
    for id in ["bloat", "oversized-indexes"] {
        wait_for_finding(&db.dsn(), id, "--table t");
    }
}

#[test]
fn unused_indexes_are_found() {
    let bad = "insert into t select g, g::text from generate_series(1, 60000) g; \
               create index t_v on t (v)";
    let (db, finding) = check_remedy(&format!("{CREATE_T}{bad}"), "unused-indexes", "");
    assert_eq!(finding["object"], "public.t_v");
    assert_eq!(remedy(&finding), ["drop index concurrently public.t_v;"]);
    // An index that is read is used. An index that enforces a constraint is needed.
    db.run("create index t_v on t (v); create unique index t_u on t (id, v); analyze t");
    db.run("set enable_seqscan = off; select count(*) from t where v = '7'");
    expect_no_finding(&db.dsn(), "unused-indexes", "");
    // Some foreign keys need an index. A part of a parent's index cannot be dropped alone.
    db.run(
        "create table p (id int, v text) partition by range (id); \
         create table p1 partition of p for values from (0) to (100000); \
         insert into p select g, g::text from generate_series(1, 60000) g; \
         create index p_v on p (v); \
         create table f (t int references t); create index f_t on f (t, (t + 1)); \
         insert into f select id from t; select count(*) from f",
    );
    expect_no_finding(&db.dsn(), "unused-indexes", "");
}

#[test]
fn duplicate_indexes_are_found() {
    let bad = "create index t_v on t (v); create index t_v_again on t (v); \
               insert into t select g, g::text from generate_series(1, 9) g";
    let (db, finding) = check_remedy(&format!("{CREATE_T}{bad}"), "duplicate-indexes", "");
    assert_eq!(finding["object"], "public.t_v_again");
    assert_eq!(finding["verdict"], "warning");
    db.run("create index t_v_id on t (v, id)");
    let finding = wait_for_finding(&db.dsn(), "duplicate-indexes", "");
    assert_eq!((&finding["object"], &finding["verdict"]), (&"public.t_v".into(), &"note".into()));
    let evidence = finding["evidence"].as_str().unwrap();
    assert!(evidence.ends_with("; 9 entries written, one of 3 indexes"), "{evidence}");
    // None of these indexes can replace another index.
    db.run(
        "drop index t_v; create index t_part on t (v) where id > 7; \
            create index t_desc on t (v desc, id); create unique index t_unique on t (v)",
    );
    expect_no_finding(&db.dsn(), "duplicate-indexes", "");
    // A deferred constraint cannot replace an immediate one. Indexes with user options stay.
    db.run(
        "drop index t_unique; drop index t_v_id; drop index t_desc; \
         alter table t add constraint t_late unique (v) deferrable initially deferred; \
         create unique index t_unique on t (v); \
         create index t_id on t (id, v); \
         create index t_id_packed on t (id, v) with (fillfactor = 100)",
    );
    expect_no_finding(&db.dsn(), "duplicate-indexes", "");
    let version = db.query("show server_version_num")[0][0].clone().unwrap();
    if version.parse::<u32>().unwrap() >= 150_000 {
        db.run(
            "drop index t_unique; alter table t drop constraint t_late; \
             create unique index t_u on t (v); \
             create unique index t_nulls on t (v) nulls not distinct",
        );
        expect_no_finding(&db.dsn(), "duplicate-indexes", "");
    }
}

#[test]
fn duplicate_indexes_of_a_partitioned_table_are_found() {
    let bad = "create table p (id int, v text) partition by range (id); \
               create table p1 partition of p for values from (0) to (9); \
               create table p2 partition of p for values from (9) to (99); \
               create index p_v on p (v); create index p_v_again on p (v); \
               insert into p select g, 'a' from generate_series(1, 20) g";
    let db = testing::database();
    db.run(bad);
    let written = || {
        let finding = wait_for_finding(&db.dsn(), "duplicate-indexes", "");
        assert_eq!(warnings_and_notes(&db.dsn(), "duplicate-indexes", "").len(), 1);
        finding["numbers"]["entries_written"] == 20.0
    };
    wait_until("the server's statistics know of the rows", written);
    let finding = wait_for_finding(&db.dsn(), "duplicate-indexes", "");
    assert_eq!(remedy(&finding), ["drop index public.p_v_again;"]);
    db.run(&remedy(&finding)[0]);
    expect_no_finding(&db.dsn(), "duplicate-indexes", "");
    // A partition's additional index can be dropped concurrently.
    db.run("create index p1_mine on p1 (v)");
    let finding = wait_for_finding(&db.dsn(), "duplicate-indexes", "--table p");
    assert_eq!(remedy(&finding), ["drop index concurrently public.p1_mine;"]);
}

#[test]
fn only_one_of_two_equal_indexes_is_dropped() {
    let db = testing::database();
    db.run(&format!(
        "{CREATE_T} insert into t select g, g::text from generate_series(1, 60000) g; \
         create index t_v on t (v); create index t_v_again on t (v); analyze t; \
         set enable_seqscan = off; select count(*) from t where v = '7'"
    ));
    let unused = wait_for_finding(&db.dsn(), "unused-indexes", "");
    assert_eq!(warnings_and_notes(&db.dsn(), "unused-indexes", "").len(), 1);
    assert_eq!(warnings_and_notes(&db.dsn(), "duplicate-indexes", ""), Vec::<Value>::new());
    assert!(unused["object"].as_str().unwrap().starts_with("public.t_v"));
}

#[test]
fn updates_that_write_all_indexes_are_found() {
    let db = testing::database();
    db.run(&format!(
        "{CREATE_T} insert into t select g, 'a' from generate_series(1, 5000) g; \
         update t set v = 'b'"
    ));
    let finding = wait_for_finding(&db.dsn(), "hot-updates", "");
    assert_eq!(remedy(&finding)[0], "alter table public.t set (fillfactor = 60);");
    for statement in remedy(&finding) {
        db.run(&statement);
    }
    db.run("update t set v = 'c' where id % 4 = 0");
    wait_until("the server's statistics know of the updates", || {
        let sql = "select n_tup_upd > 1000 from pg_stat_user_tables where relname = 't'";
        db.query(sql)[0][0].as_deref() == Some("t")
    });
    for id in ["hot-updates", "never-vacuumed"] {
        expect_no_finding(&db.dsn(), id, "");
    }
    // With free space on the pages, the cause is an index on the updated column.
    db.run("create index t_v on t (v); update t set v = 'd' || id");
    let finding = wait_for_finding(&db.dsn(), "hot-updates", "");
    assert_eq!(remedy(&finding), Vec::<String>::new());
    assert!(finding["advice"].as_str().unwrap().contains("index is on a column"));
    // Without free space, both may be the cause, and a rewrite may not help.
    db.run(
        "drop table t; \
         create table u (id int primary key, v text) with (autovacuum_enabled = off); \
         create index u_v on u (v); insert into u select g, 'a' from generate_series(1, 5000) g; \
         update u set v = 'b'",
    );
    let finding = wait_for_finding(&db.dsn(), "hot-updates", "");
    assert_eq!(remedy(&finding), Vec::<String>::new());
    let advice = finding["advice"].as_str().unwrap();
    assert!(advice.contains("Either") && advice.contains("no room"), "{advice}");
}

#[test]
fn missing_primary_keys_are_found() {
    let rows = "select g, 'a' from generate_series(1, 2000) g";
    let bad = format!("create table t (key int not null, v text); insert into t {rows}");
    let (_, finding) = check_remedy(&bad, "primary-keys", "");
    assert!(remedy(&finding)[0].contains("add column id bigint"), "{finding}");
    let bad = format!("{bad}; create unique index t_key on t (key)");
    let (_, finding) = check_remedy(&bad, "primary-keys", "");
    let expected = "alter table public.t add primary key using index t_key;";
    assert_eq!(remedy(&finding), [expected]);
    let bad = format!("create table t (id int, v text); insert into t {rows}");
    let (db, finding) = check_remedy(&bad, "primary-keys", "");
    assert!(remedy(&finding)[0].starts_with("create unique index concurrently t_pkey"));
    // No single statement with a brief lock can create the key of a partitioned table.
    db.run(
        "create table p (id int, v text) partition by range (id); \
         create table p1 partition of p for values from (0) to (9000); \
         insert into p select g, 'a' from generate_series(1, 2000) g; analyze p1",
    );
    let finding = wait_for_finding(&db.dsn(), "primary-keys", "--table p");
    assert_eq!(finding["evidence"], "2,000 rows in its partitions");
    assert_eq!(remedy(&finding), Vec::<String>::new());
}

#[test]
fn foreign_keys_without_an_index_are_found() {
    let bad = "create table a (id int primary key); \
               create table t (id int primary key, a int references a, b int); \
               insert into a select generate_series(1, 2000); \
               insert into t select g, g, g from generate_series(1, 2000) g; \
               delete from t where id > 1990; delete from a where id > 1990";
    let (db, finding) = check_remedy(bad, "foreign-key-indexes", "");
    assert_eq!(remedy(&finding), ["create index concurrently on public.t (a);"]);
    assert_eq!(finding["verdict"], "warning");
    db.run("drop index t_a_idx; create index on t (b, a)");
    wait_for_finding(&db.dsn(), "foreign-key-indexes", "--table t");
    db.run("create index on t (a, b)");
    expect_no_finding(&db.dsn(), "foreign-key-indexes", "");
}

#[test]
fn causes_of_row_by_row_copy_are_found() {
    let db = testing::database();
    db.run(CREATE_T);
    expect_no_finding(&db.dsn(), "row-by-row", "");
    db.run(
        "create function keep() returns trigger language plpgsql as 'begin return new; end'; \
         create trigger keep before insert on t for each row execute function keep()",
    );
    let finding = wait_for_finding(&db.dsn(), "row-by-row", "");
    assert!(finding["evidence"].as_str().unwrap().contains("trigger keep"));
    db.run(
        "drop trigger keep on t; \
         create trigger keep after insert on t for each row execute function keep()",
    );
    expect_no_finding(&db.dsn(), "row-by-row", "");
    db.run("alter table t add at timestamptz default clock_timestamp(), add s serial");
    let finding = wait_for_finding(&db.dsn(), "row-by-row", "");
    assert!(finding["evidence"].as_str().unwrap().contains("the default of at is volatile"));
    db.run("alter table t alter at set default now()");
    expect_no_finding(&db.dsn(), "row-by-row", "");
}

#[test]
fn causes_of_row_by_row_copy_into_partitions_are_found() {
    let db = testing::database();
    db.run(
        "create table p (id int, at timestamptz default clock_timestamp()) \
         partition by range (id); \
         create table p1 partition of p for values from (0) to (9); \
         create table p2 partition of p for values from (9) to (99); \
         create function keep() returns trigger language plpgsql as 'begin return new; end'; \
         create trigger keep before insert on p1 for each row execute function keep()",
    );
    let objects = |args: &str| -> Vec<String> {
        let found = warnings_and_notes(&db.dsn(), "row-by-row", args);
        found.iter().map(|it| it["object"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(objects(""), ["public.p", "public.p1"]);
    // A copy into the partition itself uses the partition's own default.
    assert_eq!(objects("--table p2"), ["public.p2"]);
    db.run("alter table p alter at drop default; alter table p2 alter at drop default");
    assert_eq!(objects(""), ["public.p1"]);
    assert_eq!(objects("--table p2"), Vec::<String>::new());
    db.run(
        "drop trigger keep on p1; create trigger keep after insert on p \
         referencing new table as rows for each statement execute function keep()",
    );
    assert_eq!(objects(""), ["public.p"]);
}

#[test]
fn large_tables_are_partitioned_by_time() {
    let db = testing::database();
    db.run(
        "create table \"Big\" (at timestamptz not null, v text); \
         insert into \"Big\" select now(), repeat('x', 100) from generate_series(1, 5000); \
         create index big_v on \"Big\" (v, at); \
         alter table \"Big\" set (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01)",
    );
    expect_no_finding(&db.dsn(), "partitioning", "");
    let finding = wait_for_finding(&db.dsn(), "partitioning", "--large-table 100kB");
    db.run(&remedy(&finding).join("\n"));
    let kind = "select relkind::text from pg_class where relname = 'Big'";
    assert_eq!(db.query(kind), [[Some("p".to_owned())]]);
    assert_eq!(db.query("select count(*) from \"Big\""), [[Some("5000".to_owned())]]);
    db.run("insert into \"Big\" values (now() + interval '1 year', 'later')");
    // Rows beyond every bound have a partition, too, and the index covers the whole table.
    db.run("insert into \"Big\" values (now() + interval '9 years', 'much later')");
    let options = "select count(*) from pg_class where relkind = 'r' and relname like 'Big%' \
                   and reloptions = '{fillfactor=90,autovacuum_vacuum_scale_factor=0.01}'";
    assert_eq!(db.query(options), [[Some("3".to_owned())]]);
    let parts = "select count(*) from pg_inherits where inhparent = (select indexrelid from \
                 pg_index where indrelid = '\"Big\"'::regclass)";
    assert_eq!(db.query(parts), [[Some("3".to_owned())]]);
    expect_no_finding(&db.dsn(), "partitioning", "--large-table 100kB");
}

/// Partitioning keeps numeric keys, foreign keys and grants, and builds no index again.
#[test]
fn large_tables_with_keys_are_partitioned_by_number() {
    let columns = ["id serial", "id bigint generated always as identity", "\"o'I d\" bigserial"];
    for column in columns {
        let id = if column.starts_with('"') { "\"o'I d\"" } else { "id" };
        let db = testing::database();
        db.run(&format!(
            "create table \"Kind\" (kind int primary key) partition by range (kind); \
             create table kinds partition of \"Kind\" for values from (-9) to (9); \
             insert into \"Kind\" values (-1), (1), (2); \
             create table \"Big\" ({column} primary key, at timestamptz not null default now(), \
             kind int not null references \"Kind\", n int generated by default as identity, \
             unique (kind, {id}), check (kind > 0)); \
             insert into \"Big\" (kind) select 1 from generate_series(1, 9000); \
             grant select, insert on \"Big\" to pg_monitor; grant select on \"Big\" to public; \
             grant delete on \"Big\" to pg_monitor with grant option; \
             comment on table \"Big\" is 'it''s big'; analyze \"Big\""
        ));
        let is_whole = "select count(*), sum(kind) from \"Big\"";
        let before = db.query(is_whole);
        let files = "select i.indexrelid::text, pg_relation_filenode(i.indexrelid)::text \
                     from pg_index i join pg_class c on c.oid = i.indrelid \
                     where c.relname in ('Big', 'Big_old') and c.relkind = 'r' order by 1";
        let indexes = db.query(files);
        let finding = wait_for_finding(&db.dsn(), "partitioning", "--large-table 100kB");
        let statements = remedy(&finding);
        let begin = statements.iter().position(|it| it.starts_with("begin;")).unwrap();
        statements[..begin].iter().for_each(|statement| db.run(statement));
        db.run(&statements[begin..].join("\n"));
        assert_eq!(db.query(is_whole), before);
        assert_eq!(db.query(files), indexes);
        let bound = "select pg_get_expr(relpartbound, oid) from pg_class where relname = 'Big_old'";
        let bound = db.query(bound)[0][0].clone().unwrap().replace('\'', "");
        assert!(bound.ends_with("TO (12000)"), "{bound}");
        check_ids_continue(&db, column, id);
        let comment = "select obj_description('\"Big\"'::regclass)";
        assert_eq!(db.query(comment), [[Some("it's big".to_owned())]]);
        let grants = "select string_agg(privilege_type || is_grantable, ' ' \
                                        order by privilege_type) \
                      from pg_class, aclexplode(relacl) where oid = '\"Big\"'::regclass \
                      and grantee <> grantor";
        let all = "DELETEtrue INSERTfalse SELECTfalse SELECTfalse".to_owned();
        assert_eq!(db.query(grants), [[Some(all)]]);
        db.run("drop table \"Big_old\"; insert into \"Big\" (kind) values (2)");
        expect_no_finding(&db.dsn(), "partitioning", "--large-table 100kB");
    }
}

/// Checks that ids continue in the old and the later partitions, and that bad rows are refused.
fn check_ids_continue(db: &testing::TestDb, column: &str, id: &str) {
    let usage = match column.contains("serial") {
        true => "grant usage on all sequences in schema public to pg_monitor",
        // The right to insert includes the numbers of an identity column.
        false => "select",
    };
    db.run(&format!(
        "{usage}; set role pg_monitor; insert into \"Big\" (kind) values (2); reset role; \
         insert into \"Big\" ({id}, kind) overriding system value values (12001, 2), (99999, 2)"
    ));
    let rows = db.query(&format!("select {id}, n from \"Big\" where kind = 2 order by 1"));
    let row = |id: &str, n: &str| [id, n].map(|value| Some(value.to_owned()));
    assert_eq!(rows, [row("9001", "9001"), row("12001", "9002"), row("99999", "9003")]);
    for (values, condition) in [
        ("12001, 1", "unique_violation"),
        ("1, 2", "unique_violation"),
        ("5, -1", "check_violation"),
        ("12002, 3", "foreign_key_violation"),
    ] {
        db.run(&format!(
            "do $$ begin begin \
             insert into \"Big\" ({id}, kind) overriding system value values ({values}); \
             exception when {condition} then return; end; \
             raise 'the row was accepted: {values}'; end $$"
        ));
    }
}

#[test]
fn the_advice_lists_what_prevents_partitioning() {
    let db = testing::database();
    db.run(
        "create table big (id int generated always as identity primary key, \
         at timestamptz not null); \
         insert into big (at) select now() from generate_series(1, 9000); \
         create view v as select * from big; create table f (id int references big); \
         create publication p for table big; alter table big enable row level security; \
         alter table big alter at set statistics 500; grant select (at) on big to public; \
         alter table big add check (id > 0) not valid, add check (id > 0) no inherit; \
         revoke truncate on big from current_user; alter table big replica identity full; \
         cluster big using big_pkey; alter default privileges grant select on tables to public; \
         create table q (id int); \
         create policy q on q using (exists (select from big where big.id = q.id)); \
         create function whole(big[]) returns int language sql as 'select 1'",
    );
    let finding = wait_for_finding(&db.dsn(), "partitioning", "--large-table 100kB");
    assert_eq!(remedy(&finding), Vec::<String>::new());
    let advice = finding["advice"].as_str().unwrap();
    for word in [
        "keys that reference it",
        "not validated",
        "partitions do not inherit",
        "views",
        "row level security",
        "public",
        "targets",
        "on columns",
        "its owner lacks",
        "the index of CLUSTER",
        "replica identity",
        "default privileges",
        "functions or policies",
        "its row type",
    ] {
        assert!(advice.contains(word), "{word}: {advice}");
    }
}

/// Table `two` has two keys without a common column. The other sequences do not fit their ids.
#[test]
fn the_advice_says_why_no_column_can_partition_a_table() {
    let db = testing::database();
    db.run(
        "create table two (id serial primary key, at date not null unique, v text); \
         insert into two (at) select now()::date + nth from generate_series(1, 9000) nth; \
         create table late (id serial primary key, v text); \
         insert into late (v) select 'v' from generate_series(1, 9000) nth; \
         select setval('late_id_seq', 1900000000); \
         create table never (id serial primary key, v text); \
         insert into never (id) select nth from generate_series(1, 9000) nth; \
         create table below (id serial primary key, v text); \
         alter sequence below_id_seq minvalue -2147483648 restart with -2000000000; \
         insert into below (v) select 'v' from generate_series(1, 9000) nth",
    );
    for (table, words) in [
        ("two", "The table's unique keys have no date"),
        ("late", "Widen id first"),
        ("below", "still below 1"),
        ("never", "the last value of public.never_id_seq is unknown"),
    ] {
        let args = format!("--large-table 100kB --table {table}");
        let finding = wait_for_finding(&db.dsn(), "partitioning", &args);
        let advice = finding["advice"].as_str().unwrap();
        assert!(advice.contains(words), "{advice}");
        assert_eq!(remedy(&finding), Vec::<String>::new());
    }
}

#[test]
fn sequences_near_their_end_are_found() {
    for column in ["smallserial", "smallint generated always as identity", "serial"] {
        let end = if column == "serial" { 2_000_000_000_i64 } else { 30_000 };
        let bad = format!("create table t (id {column}); select setval('t_id_seq', {end})");
        let (db, finding) = check_remedy(&bad, "sequences", "");
        assert_eq!(finding["verdict"], "warning", "{finding}");
        db.run("insert into t default values");
    }
    // A maximum set by a user stays when the type is changed.
    for kind in ["int", "bigint"] {
        let bad = format!(
            "create sequence s as {kind} maxvalue 1000; select setval('s', 999); \
             create sequence healthy; select setval('healthy', 1000000000000)"
        );
        let (db, finding) = check_remedy(&bad, "sequences", "");
        assert_eq!(finding["object"], "public.s");
        db.run("select nextval('s'), nextval('s'), nextval('s')");
    }
}

#[test]
fn sequences_below_zero_are_judged_by_their_direction() {
    let db = testing::database();
    db.run(
        "create table t (id smallserial); \
         alter sequence t_id_seq minvalue -32768 restart with -32768; select nextval('t_id_seq'); \
         create sequence down as smallint increment -1; select setval('down', -30000)",
    );
    let found = warnings_and_notes(&db.dsn(), "sequences", "");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["object"], "public.down");
    assert_eq!(found[0]["evidence"], "at -30,000 of -32,768 (91.6 %)");
    db.run("drop sequence down; select setval('t_id_seq', 32000)");
    assert_eq!(warnings_and_notes(&db.dsn(), "sequences", "")[0]["object"], "public.t_id_seq");
}

/// Doctor does not read all these sequences. A partitioned table has the rows of its partitions.
#[test]
fn sequences_of_the_largest_tables_are_read_first() {
    let db = testing::database();
    db.run(
        "do $$ begin for nth in 1..500 loop \
         execute format('create table t%s (id serial); insert into t%1$s values (1), (2)', nth); \
         execute format('analyze t%s', nth); end loop; end $$",
    );
    db.run(
        "create table p (id serial) partition by range (id); \
         create table p1 partition of p for values from (0) to (9000); \
         insert into p select generate_series(1, 2000); select setval('p_id_seq', 2000000000)",
    );
    assert_eq!(wait_for_finding(&db.dsn(), "sequences", "")["object"], "public.p_id_seq");
}

#[test]
fn unlogged_tables_with_rows_are_found() {
    let bad = "create unlogged table orders (id int primary key); insert into orders values (1); \
               create unlogged table orders_stage (id int primary key); \
               insert into orders_stage values (1)";
    let (db, finding) = check_remedy(bad, "unlogged-tables", "");
    assert_eq!(finding["object"], "public.orders");
    // A table can only be made logged after the tables that it refers to.
    db.run(
        "create unlogged table a (id int primary key, a int references a); \
         create unlogged table b (id int primary key, a int references a); \
         create unlogged table c (a int references a, b int references b); \
         insert into a values (1, 1); insert into b values (1, 1); insert into c values (1, 1)",
    );
    let finding = wait_for_finding(&db.dsn(), "unlogged-tables", "--table c");
    let expected = ["a", "b", "c"].map(|table| format!("alter table public.{table} set logged;"));
    assert_eq!(remedy(&finding), expected);
    remedy(&finding).iter().for_each(|statement| db.run(statement));
    expect_no_finding(&db.dsn(), "unlogged-tables", "");
}

#[test]
fn a_named_table_is_examined_alone() {
    let db = testing::database();
    db.run(
        "create table a (id int); insert into a select generate_series(1, 2000); \
         create table b (id int); insert into b select generate_series(1, 2000)",
    );
    wait_for_finding(&db.dsn(), "primary-keys", "");
    assert_eq!(wait_for_finding(&db.dsn(), "primary-keys", "--table b")["object"], "public.b");
    assert_eq!(warnings_and_notes(&db.dsn(), "primary-keys", "--table b").len(), 1);
}
