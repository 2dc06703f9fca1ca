//! `doctor` as a role without grants, and the proof that `doctor` writes nothing.

use pgspate_embedded::testing;

use crate::run::{session, wait_until};
use crate::{doctor, findings, warnings_and_notes};

#[test]
fn the_report_names_the_grants_that_a_role_lacks() {
    let server = testing::server("");
    let (runtime, owner) = session(&server.dsn());
    let sql = "create role plain login; create table t (id serial, v text) \
               with (autovacuum_enabled = off); \
               insert into t (v) select repeat('x', 900) from generate_series(1, 10000); \
               analyze t; \
               grant usage on schema public to plain";
    runtime.block_on(owner.batch_execute(sql)).unwrap();
    let plain = format!("{} user=plain", server.dsn());
    let (busy, sleeper) = session(&server.dsn());
    let sleeping = busy.spawn(async move { sleeper.batch_execute("select pg_sleep(60)").await });
    wait_until("another session runs a statement", || {
        crate::run::ask(
            &server.dsn(),
            "select count(*) from pg_stat_activity \
                                        where query = 'select pg_sleep(60)'",
        ) == "1"
    });
    let hidden = |id: &str| {
        let found = findings(&plain, id, "");
        let finding = found.iter().find(|it| it["verdict"] == "cannot_see");
        let finding = finding.unwrap_or_else(|| panic!("{found:?}")).clone();
        finding["remedy"].as_array().unwrap().last().unwrap().as_str().unwrap().to_owned()
    };
    let grants = ["storage-waits", "bloat", "sequences"].map(hidden);
    assert_eq!(
        grants,
        [
            "grant pg_read_all_stats to plain;",
            "grant select on public.t to plain;",
            "grant select on sequence public.t_id_seq to plain;",
        ]
    );
    // With these grants, the role sees everything that the server version reports.
    for grant in grants {
        runtime.block_on(owner.batch_execute(&grant)).unwrap();
    }
    let run = doctor(&plain, "--watch 100ms");
    assert!(!run.stdout.contains("grant "), "{}", run.stdout);
    assert!(!warnings_and_notes(&plain, "primary-keys", "").is_empty());
    sleeping.abort();
}

#[test]
fn doctor_writes_nothing() {
    let db = testing::database();
    db.run("create table t (id int); insert into t select generate_series(1, 2000)");
    let state = || db.query("select count(*), sum(age(xmin)) > 0 from pg_class where oid > 16384");
    let before = state();
    let next = "select nspname from pg_namespace where nspname = 'pgspate'";
    doctor(&db.dsn(), "--watch 100ms");
    assert_eq!(state(), before);
    assert_eq!(db.query(next), Vec::<Vec<Option<String>>>::new());
}
