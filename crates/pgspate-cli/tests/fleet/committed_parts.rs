//! Reruns of jobs whose tasks have committed parts.

use pgspate::driven::AbortOutcome;

use crate::driven::DriverScene;
use crate::driven_modes::{begin, by_task, replacing};
use crate::run::{finish, spawn};

/// An engine aborts the job when a task fails. The parts that are visible stay known.
#[test]
fn an_aborted_job_knows_the_parts_that_tasks_have_committed() {
    let scene = DriverScene::new();
    let failed = begin(&scene, by_task(true));
    let kept = scene.write(&failed, 0, 1, 2);
    assert_eq!(scene.abort(&failed), AbortOutcome::Aborted);
    assert!(scene.write_csv(&failed, 1, "id\n9\n").is_err());
    let again = begin(&scene, by_task(true));
    assert_eq!(scene.write(&again, 0, 1, 2), kept);
    let more = scene.write(&again, 1, 3, 3);
    assert_eq!(scene.complete(&again, &[kept, more]).unwrap().rows_in, 3);
    assert_eq!(scene.ids(), "-1 1 2 3");

    let failed = scene.begin_with(Some("unstable"), by_task(false), None).unwrap();
    scene.write(&failed, 0, 4, 4);
    scene.abort(&failed);
    let error = scene.begin_with(Some("unstable"), by_task(false), None).unwrap_err();
    assert!(error.to_string().contains("has written 1 part to the table"), "{error}");
    let without_parts = scene.begin_with(Some("other"), by_task(false), None).unwrap();
    scene.abort(&without_parts);
    let names = "select string_agg(name, ' ' order by job) from pgspate.fleet_job";
    assert_eq!(scene.case.value(names), "job unstable");
}

/// Parts whose rows were removed are written again, and then once.
#[test]
fn a_rerun_writes_parts_again_if_the_table_was_emptied() {
    let scene = DriverScene::new();
    scene.case.put("one.csv", "id\n-2\n");
    let replace = |method: &str| {
        let dsn = scene.case.db.dsn();
        let args = ["load", "one.csv", "--table", "t", method, "--to", &dsn];
        let run = finish(spawn(&mut scene.case.command(&args)));
        assert_eq!(run.status, Some(0), "{}", run.stderr);
    };
    let exchange = || {
        let ticket = scene.begin_with(None, replacing(), None).unwrap();
        scene.complete(&ticket, &[scene.write(&ticket, 0, -2, -2)]).unwrap();
    };
    let ways: [(&str, &dyn Fn()); 4] = [
        ("", &|| scene.case.db.run("truncate t")),
        ("-2 ", &exchange),
        ("-2 ", &|| replace("--replace=swap")),
        ("-2 ", &|| replace("--replace=truncate")),
    ];
    for (nth, (other, empty)) in ways.into_iter().enumerate() {
        for stable in [true, false] {
            let name = format!("{nth} {stable}");
            let begin = || scene.begin_with(Some(&name), by_task(stable), None).unwrap();
            scene.write(&begin(), 0, 1, 2);
            empty();
            let again = begin();
            let first = scene.write(&again, 0, 1, 2);
            // The driver ends once more. The table has rows of the part now.
            let again = match stable {
                true => begin(),
                false => again,
            };
            assert_eq!(scene.write(&again, 0, 1, 2), first);
            let second = scene.write(&again, 1, 3, 3);
            assert_eq!(scene.complete(&again, &[first, second]).unwrap().rows_in, 3);
            assert_eq!(scene.ids(), format!("{other}1 2 3"));
            scene.case.db.run("delete from t where id > 0");
        }
    }
}
