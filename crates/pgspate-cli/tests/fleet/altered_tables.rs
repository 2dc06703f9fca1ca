//! Jobs of distributed engines during which another session changes the type of a column. The bytes
//! of a value of one type must not be stored as a value of another type.

use pgspate::ErrorKind;
use pgspate::driven::FleetJobOptions;

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
        // What was written before is converted by the server.
        scene.complete(&ticket, &[kept]).unwrap();
        assert_eq!(scene.case.value("select price from t where id = 1"), "7");
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
