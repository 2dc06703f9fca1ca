//! Jobs of distributed engines during which another session changes the type of a column, or
//! creates a rule. The bytes of a value of one type must not be stored as a value of another type.

use pgspate::ErrorKind;
use pgspate::driven::{FleetJobOptions, FleetMode};
use pgspate::sync::{Scope, SyncOptions};

use crate::driven::DriverScene;
use crate::driven_modes::{begin, by_task, replacing};
use crate::run::{session, wait_until};

const ADD: &str = "alter table t add price bigint";
const ALTER: &str = "alter table t alter price type double precision";
const PART: &str = "id,price\n1,7\n";

/// The stage or the shadow has the types that the table had when the job began.
#[test]
fn a_part_does_not_fit_a_stage_of_other_types() {
    for options in [FleetJobOptions::default(), replacing()] {
        let scene = DriverScene::new();
        scene.case.db.run(ADD);
        let ticket = begin(&scene, options.clone());
        let kept = scene.write_csv(&ticket, 0, PART).unwrap();
        scene.case.db.run(ALTER);
        let error = scene.write_csv(&ticket, 1, "id,price\n2,8\n").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Plan, "{error:?}");
        assert_eq!(error.sqlstate().unwrap().code(), "42804");
        let words = "another session has changed the type of a column";
        assert!(error.chain().contains(words), "{error:?}");
        // Neither does the server convert what was written before.
        let error = scene.complete(&ticket, &[kept]).unwrap_err();
        assert!(error.chain().contains(words), "{error:?}");
        assert_eq!(scene.ids(), "-1");
        let again = scene.begin_with(None, options, None).unwrap();
        let receipt = scene.write_csv(&again, 0, "id,price\n2,8\n").unwrap();
        scene.complete(&again, &[receipt]).unwrap();
        assert_eq!(scene.case.value("select price from t where id = 2"), "8");
    }
}

#[test]
fn a_committed_part_is_not_written_as_values_of_another_type() {
    let scene = DriverScene::new();
    scene.case.db.run(ADD);
    let ticket = begin(&scene, by_task(true));
    let (runtime, holder) = session(&scene.case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; lock table t in share mode")).unwrap();
    let error = std::thread::scope(|scope| {
        let writing = scope.spawn(|| scene.write_csv(&ticket, 0, PART));
        // The attempt has read the catalog when its COPY waits for the lock.
        wait_until("COPY waits", || {
            let waiting = "select count(*) from pg_stat_activity \
                           where datname = current_database() and wait_event = 'relation' \
                             and query ilike 'copy %'";
            scene.case.value(waiting) == "1"
        });
        runtime.block_on(holder.batch_execute(&format!("{ALTER}; commit"))).unwrap();
        writing.join().unwrap().unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Plan, "{error:?}");
    assert_eq!(scene.ids(), "-1");
    let receipt = scene.write_csv(&ticket, 0, PART).unwrap();
    scene.complete(&ticket, &[receipt]).unwrap();
    assert_eq!(scene.case.value("select price from t where id = 1"), "7");
}

/// A stage has the types of the job's begin. A cast to the table's types could round its values.
#[test]
fn staged_rows_are_not_cast_to_another_type() {
    let upsert = SyncOptions { scope: Scope::NoDelete, ..SyncOptions::default() };
    for (was, value, now) in [
        ("numeric", "1.5", "int"),
        ("int", "1999", "numeric using price / 100.0"),
        ("numeric(8, 2)", "1.25", "numeric(8, 1)"),
        ("timestamptz", "2026-11-30 12:00:00+00", "timestamp"),
    ] {
        for mode in [FleetMode::Append, FleetMode::Replace, FleetMode::Sync] {
            let scene = DriverScene::new();
            scene.case.db.run(&format!("alter table t add price {was}"));
            let options = FleetJobOptions { mode, ..FleetJobOptions::default() };
            let sync = (mode == FleetMode::Sync).then_some(&upsert);
            let ticket = scene.begin_with(None, options, sync).unwrap();
            let part = format!("id,price\n1,{value}\n");
            let receipt = scene.write_csv(&ticket, 0, &part).unwrap();
            scene.case.db.run(&format!("alter table t alter price type {now}"));
            let complete = || match sync {
                Some(sync) => scene.complete_sync(&ticket, std::slice::from_ref(&receipt), sync),
                None => scene.complete(&ticket, std::slice::from_ref(&receipt)),
            };
            let error = complete().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Plan, "{error:?}");
            assert!(error.chain().contains("do not fit public.t"), "{error:?}");
            assert!(error.chain().contains("has changed the type of a column"), "{error:?}");
            assert!(error.hint_text().unwrap().contains("Begin the job again"), "{error:?}");
            assert_eq!(scene.ids(), "-1");
            scene.case.db.run(&format!("alter table t alter price type {was}"));
            assert_eq!(complete().unwrap().inserted, 1);
            let equal = format!("select price = '{value}'::{was} from t where id = 1");
            assert_eq!(scene.case.value(&equal), "t", "{was} {mode:?}");
        }
    }
}

#[test]
fn a_rule_that_is_created_meanwhile_takes_no_rows_away() {
    for options in [FleetJobOptions::default(), replacing()] {
        let scene = DriverScene::new();
        let ticket = begin(&scene, options);
        let receipt = scene.write(&ticket, 0, 1, 2);
        scene.case.db.run(
            "create table elsewhere (id int); \
             create rule divert as on insert to t do instead insert into elsewhere values (new.id)",
        );
        let error = scene.complete(&ticket, std::slice::from_ref(&receipt)).unwrap_err();
        assert!(error.chain().contains("rule \"divert\" rewrites statements"), "{error:?}");
        assert_eq!(scene.ids(), "-1");
        scene.case.db.run("drop rule divert on t");
        assert_eq!(scene.complete(&ticket, &[receipt]).unwrap().inserted, 2);
        assert_eq!(scene.case.value("select count(*) from elsewhere"), "0");
    }
}
