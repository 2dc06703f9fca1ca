//! Rejected rows of jobs of distributed engines such as Spark.

use pgspate::ErrorKind;
use pgspate::driven::{AbortOutcome, FleetCommit, FleetJobOptions, FleetMode, FleetTicket};
use pgspate::sync::{Scope, SyncOptions};

use crate::driven::DriverScene;

const REJECTS: &str = "select string_agg(concat_ws('|', chunk, row, line, column_name, sqlstate, \
                       trim(e'\\n' from convert_from(record, 'UTF8'))), ' ' order by chunk, row) \
                       from pgspate.reject";

fn rejecting(max: u64) -> FleetJobOptions {
    FleetJobOptions { max_rejects: Some(max), ..FleetJobOptions::default() }
}

fn begin(scene: &DriverScene, options: FleetJobOptions) -> FleetTicket {
    scene.begin_with(Some("job"), options, None).unwrap()
}

#[test]
fn rejects_of_attempts_that_count_stay() {
    for (options, sync) in [
        (rejecting(3), None),
        (FleetJobOptions { mode: FleetMode::Replace, ..rejecting(3) }, None),
        (FleetJobOptions { commit: FleetCommit::Task, ..rejecting(3) }, None),
        (FleetJobOptions { mode: FleetMode::Sync, ..rejecting(3) }, Some(Scope::NoDelete)),
    ] {
        let scene = DriverScene::new();
        let sync = sync.map(|scope| SyncOptions { scope, ..SyncOptions::default() });
        let ticket = scene.begin_with(None, options.clone(), sync.as_ref()).unwrap();
        let good = scene.write(&ticket, 0, 1, 2);
        let mixed = scene.write_csv(&ticket, 1, "id,name\n3,a\nx,b\n4,c\ny,d\n").unwrap();
        assert_eq!(mixed.rows, 2);
        // Of attempts that commit, the first is the only one.
        scene.write_csv(&ticket, 1, "id,name\n3,a\n4,c\nz,d\n").unwrap();
        let report = match &sync {
            Some(sync) => scene.complete_sync(&ticket, &[good, mixed], sync),
            None => scene.complete(&ticket, &[good, mixed]),
        };
        let report = report.unwrap();
        let counts = (report.rows_in, report.inserted, report.rejected, report.parts);
        assert_eq!(counts, (6, 4, 2, 2), "{options:?}");
        let expected = "1|1|3|id|22P02|x,b 1|3|5|id|22P02|y,d";
        assert_eq!(scene.case.value(REJECTS), expected, "{options:?}");
        let before = if options.mode == FleetMode::Replace { "" } else { "-1 " };
        assert_eq!(scene.ids(), format!("{before}1 2 3 4"));
        assert_eq!(scene.case.value("select max(rows_rejected) from pgspate.job"), "2");
        scene.assert_clean();
    }
}

#[test]
fn too_many_rejects_fail_the_attempt_or_the_job() {
    let scene = DriverScene::new();
    let ticket = begin(&scene, rejecting(2));
    let error = scene.write_csv(&ticket, 0, "id\nx\n1\ny\nz\n").unwrap_err();
    assert!(error.to_string().starts_with("could not write part 0 of job"), "{error}");
    let two = [
        scene.write_csv(&ticket, 0, "id\nx\n1\n").unwrap(),
        scene.write_csv(&ticket, 1, "id\n2\ny\nz\n").unwrap(),
    ];
    let error = scene.complete(&ticket, &two).unwrap_err();
    assert_eq!(error.to_string(), "3 rows rejected; --max-rejects allows 2");
    // The losers' rejects do not count.
    let [one, _] = two;
    let again = scene.write_csv(&ticket, 1, "id\n2\n").unwrap();
    assert_eq!(scene.complete(&ticket, &[one, again]).unwrap().rejected, 1);
    assert_eq!(scene.case.value("select count(*) from pgspate.reject"), "1");
    assert_eq!(scene.ids(), "-1 1 2");
}

/// The rows of a part are numbered through all of its chunks, each of which writes its rejects.
#[test]
fn rejects_of_all_chunks_of_a_part_stay() {
    let scene = DriverScene::new();
    let ticket = begin(&scene, rejecting(2));
    let name = "n".repeat(500);
    let good =
        |ids: std::ops::Range<u32>| ids.map(|id| format!("{id},{name}\n")).collect::<String>();
    let csv = |last: &str| format!("id,name\n{}x,\n{}y,\n{last}", good(0..4500), good(4500..9000));
    let error = scene.write_csv(&ticket, 0, &csv("z,\n")).unwrap_err();
    let caused = "3 rows rejected; --max-rejects allows 2";
    assert!(error.chain().contains(caused), "{}", error.chain());
    let receipt = scene.write_csv(&ticket, 0, &csv("")).unwrap();
    assert_eq!(receipt.rows, 9000);
    assert_eq!(scene.complete(&ticket, &[receipt]).unwrap().rejected, 2);
    let expected = "0|4500|4502|id|22P02|x, 0|9001|9003|id|22P02|y,";
    assert_eq!(scene.case.value(REJECTS), expected);
}

#[test]
fn an_aborted_job_leaves_no_rejects() {
    let scene = DriverScene::new();
    let ticket = begin(&scene, rejecting(5));
    scene.write_csv(&ticket, 0, "id\nx\n1\n").unwrap();
    assert_eq!(scene.case.value("select count(*) from pgspate.reject"), "1");
    scene.abort(&ticket);
    assert_eq!(scene.case.value("select count(*) from pgspate.reject"), "0");
    scene.assert_clean();
}

/// A task that commits meets constraints. A stage has none, so they are met when the job completes.
#[test]
fn a_task_that_commits_rejects_rows_that_a_constraint_refuses() {
    let scene = DriverScene::new();
    let by_task = FleetJobOptions { commit: FleetCommit::Task, ..rejecting(5) };
    let ticket = begin(&scene, by_task);
    let receipt = scene.write_csv(&ticket, 0, "id\n1\n-1\n1\n2\n").unwrap();
    assert_eq!(receipt.rows, 2);
    let report = scene.complete(&ticket, &[receipt]).unwrap();
    assert_eq!((report.rows_in, report.rejected), (4, 2));
    assert_eq!(scene.case.value(REJECTS), "0|1|3|23505|-1 0|2|4|23505|1");
    let ticket = scene.begin_with(None, rejecting(5), None).unwrap();
    let receipt = scene.write_csv(&ticket, 0, "id\n1\n3\n").unwrap();
    let error = scene.complete(&ticket, &[receipt]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
    assert_eq!(scene.ids(), "-1 1 2");
}

#[test]
fn rejects_of_committed_parts_outlive_an_abort() {
    let scene = DriverScene::new();
    let by_task = FleetJobOptions { commit: FleetCommit::Task, ..rejecting(5) };
    let ticket = scene.begin_with(None, by_task, None).unwrap();
    scene.write_csv(&ticket, 0, "id\nx\n1\n").unwrap();
    assert_eq!(scene.abort(&ticket), AbortOutcome::Aborted);
    assert_eq!(scene.ids(), "-1 1");
    assert_eq!(scene.case.value("select count(*) from pgspate.reject"), "1");
}
