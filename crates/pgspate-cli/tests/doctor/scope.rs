//! Which tables are looked at: not those that are locked, or somebody else's.

use pgspate_embedded::testing;
use serde_json::Value;

use crate::run::{ask, session, wait_until};
use crate::{findings, found, trouble};

/// Whatever is left of the server's answers where a check could not be asked.
#[track_caller]
fn nothing_refused(dsn: &str, args: &str) {
    assert_eq!(findings(dsn, "refused", args), Vec::<Value>::new());
}

/// Tables in which every check of tables finds something, or would.
fn bad(schema: &str) -> String {
    format!(
        "create table {schema}.t (id int, v text, at timestamptz default clock_timestamp()); \
         create index on {schema}.t (v); create index on {schema}.t (v); \
         insert into {schema}.t select g, 'a' from generate_series(1, 20000) g; \
         create sequence {schema}.s maxvalue 10; select setval('{schema}.s', 10); \
         create unlogged table {schema}.u (id int primary key); insert into {schema}.u values (1)"
    )
}

const CHECKS: [&str; 6] = [
    "primary-keys",
    "duplicate-indexes",
    "row-by-row",
    "partitioning",
    "sequences",
    "unlogged-tables",
];

fn objects(dsn: &str, id: &str) -> Vec<String> {
    let found = trouble(dsn, id, "--large-table 100kB");
    found.iter().map(|it| it["object"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_locked_table_hides_no_other() {
    let db = testing::database();
    db.run(&bad("public"));
    db.run("create schema free");
    db.run(&bad("free"));
    let dsn = db.dsn();
    for id in CHECKS {
        wait_until(&format!("{id} sees both"), || objects(&dsn, id).len() == 2);
    }
    let (runtime, holder) = session(&dsn);
    let locks = "begin; lock table public.t, public.u; alter sequence public.s cycle";
    runtime.block_on(holder.batch_execute(locks)).unwrap();
    let seen = |locked: &str| {
        for id in CHECKS {
            let objects = objects(&dsn, id);
            assert_eq!(objects.len(), 1, "{id}: {objects:?}");
            assert!(objects[0].starts_with("free."), "{id}: {objects:?}");
        }
        nothing_refused(&dsn, "");
        let left_out = findings(&dsn, "locked-tables", "");
        assert_eq!(left_out.len(), 1);
        assert_eq!(left_out[0]["verdict"], "cannot_see");
        let evidence = left_out[0]["evidence"].as_str().unwrap();
        assert!(evidence.contains(locked), "{evidence}");
    };
    seen("public.t (by ");
    // Asked for by name, it is not waited for either.
    nothing_refused(&dsn, "--table public.t");
    assert_eq!(findings(&dsn, "locked-tables", "--table free.t"), Vec::<Value>::new());
    // Who waits for such a lock has everybody wait who comes later.
    let (runtime2, reader) = session(&dsn);
    runtime.block_on(holder.batch_execute("commit; drop table u; drop sequence s")).unwrap();
    runtime2.block_on(reader.batch_execute("begin; select from t limit 1")).unwrap();
    let waiting = runtime.spawn(async move { holder.batch_execute("begin; lock table t").await });
    wait_until("the other waits", || {
        ask(&dsn, "select count(*) from pg_locks where not granted") == "1"
    });
    seen("public.t (by ");
    waiting.abort();
}

#[test]
fn what_belongs_to_others_is_left_to_them() {
    let db = testing::database();
    for schema in ["pgspate_job_7", "_timescaledb_internal", "ext"] {
        db.run(&format!("create schema {schema}"));
        db.run(&bad(schema));
    }
    db.run("create schema pgspate_jobs");
    db.run(&bad("pgspate_jobs"));
    for object in ["table ext.t", "table ext.u", "sequence ext.s"] {
        db.run(&format!("alter extension plpgsql add {object}"));
    }
    for id in CHECKS {
        wait_until(&format!("{id} sees what is the user's"), || !objects(&db.dsn(), id).is_empty());
        let objects = objects(&db.dsn(), id);
        assert!(objects.iter().all(|name| name.starts_with("pgspate_jobs.")), "{id}: {objects:?}");
    }
}

#[test]
fn partitions_are_looked_at_alone_when_asked_for() {
    let db = testing::database();
    db.run(
        "create table p (id int, v text) partition by range (id); \
         create table p1 partition of p for values from (0) to (9000); \
         insert into p select g, 'a' from generate_series(1, 2000) g; analyze p",
    );
    assert_eq!(found(&db.dsn(), "primary-keys", "--table p1")["object"], "public.p1");
}

#[test]
fn indexes_whose_columns_this_role_does_not_see() {
    let server = testing::server("");
    let dsn = server.dsn();
    ask(
        &dsn,
        "create role plain login; create table t (id int primary key); \
         insert into t select generate_series(1, 400000); analyze t",
    );
    let plain = format!("{dsn} user=plain");
    let hidden = |id: &str| {
        let found = findings(&plain, id, "");
        assert_eq!(found[0]["verdict"], "cannot_see", "{found:?}");
        found[0]["remedy"][0].as_str().unwrap().to_owned()
    };
    assert_eq!(hidden("oversized-indexes"), "grant select on public.t to plain;");
    ask(&dsn, &hidden("oversized-indexes"));
    assert_eq!(findings(&plain, "oversized-indexes", "")[0]["verdict"], "ok");
}
