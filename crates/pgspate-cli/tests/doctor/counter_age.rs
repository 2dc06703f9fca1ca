//! Checks that depend on the age of the server's counters.

use pgspate_embedded::testing;

use crate::run::{command, finish, spawn, wait_until};
use crate::{findings, wait_for_finding, warnings_and_notes};

/// SQL that replaces the server's statistics views. The database's own counters were never reset.
const REPLACE_STATISTICS_VIEWS: &str = "\
set allow_system_table_mods = on;
alter view pg_catalog.pg_stat_database rename to pg_stat_database_own;
alter view pg_catalog.pg_stat_archiver rename to pg_stat_archiver_own;
alter view pg_catalog.pg_stat_bgwriter rename to pg_stat_bgwriter_own;
alter function pg_catalog.pg_postmaster_start_time() rename to own_start_time;
create view pg_catalog.pg_stat_database as
    select current_database() as datname, 30000::int8 as temp_files,
           1000000000000::int8 as temp_bytes, null::timestamptz as stats_reset;
create function pg_catalog.pg_postmaster_start_time() returns timestamptz language sql
    as $$ select now() - interval '300 days' $$;
create table t (id int) with (autovacuum_enabled = off);
insert into t select generate_series(1, 400000);
create index t_id on t (id) with (fillfactor = 10);
analyze t";

#[test]
fn counters_are_as_old_as_the_oldest_reset_of_the_server() {
    let db = testing::database();
    db.run(REPLACE_STATISTICS_VIEWS);
    let (old, young) = ("'2020-02-20 20:20:20+00'::timestamptz", "now()");
    let set_reset_times = |archiver: &str, writer: &str| {
        db.run(&format!(
            "set allow_system_table_mods = on; \
             create or replace view pg_catalog.pg_stat_archiver as \
             select {archiver} as stats_reset; \
             create or replace view pg_catalog.pg_stat_bgwriter as select {writer} as stats_reset"
        ));
    };
    // After a crash the counters start again, although the server started long ago.
    set_reset_times(young, young);
    wait_until("the server's statistics know of the rows", || {
        wait_for_finding(&db.dsn(), "unused-indexes", "")["numbers"]["entries_written"] == 400_000.0
    });
    for id in ["unused-indexes", "temporary-files"] {
        assert_eq!(wait_for_finding(&db.dsn(), id, "")["verdict"], "note", "{id}");
    }
    // An administrator may have reset only one of the counters.
    for [archiver, writer] in [[old, young], [young, old]] {
        set_reset_times(archiver, writer);
        let finding = wait_for_finding(&db.dsn(), "unused-indexes", "");
        assert_eq!(finding["verdict"], "warning", "{finding}");
        let evidence = finding["evidence"].as_str().unwrap();
        assert!(evidence.contains("no scan since 2020-02-2"), "{evidence}");
        // Over this time, few temporary files were written per hour.
        assert_eq!(
            warnings_and_notes(&db.dsn(), "temporary-files", ""),
            Vec::<serde_json::Value>::new()
        );
    }
    // A load of the last days may have built the index again.
    let folder = tempfile::TempDir::with_prefix("pgspate-cli-").unwrap();
    std::fs::write(folder.path().join("t.csv"), "id\n1\n").unwrap();
    let args = ["load", "--to", &db.dsn(), "t.csv", "--table", "t", "--quiet"];
    let run = finish(spawn(&mut command(folder.path(), &args)));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let finding = wait_for_finding(&db.dsn(), "unused-indexes", "");
    assert_eq!(finding["verdict"], "note", "{finding}");
    let advice = finding["advice"].as_str().unwrap();
    assert!(advice.contains("A load of the last 7 days may have built this index"), "{advice}");
    db.run("update pgspate.job set finished = now() - interval '8 days'");
    assert_eq!(wait_for_finding(&db.dsn(), "unused-indexes", "")["verdict"], "warning");
    let evidence = findings(&db.dsn(), "temporary-files", "")[0]["evidence"].to_string();
    assert!(evidence.contains("1.00 TB in 30,000 files of database"), "{evidence}");
}
