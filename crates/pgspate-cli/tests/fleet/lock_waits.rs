//! Locks of other sessions on the table of a job.

use std::time::Duration;

use pgspate::driven::{self, FleetJobOptions, FleetMode};
use pgspate::session::WaitLimits;

use crate::driven::DriverScene;
use crate::run::session;

#[test]
fn a_driver_waits_for_a_locked_table_as_long_as_the_limit() {
    let scene = DriverScene::new();
    let (runtime, holder) = session(&scene.case.db.dsn());
    let limits = WaitLimits { lock_timeout: Duration::from_secs(1), ..WaitLimits::default() };
    // Rows that are appended need a stage, and rows that replace others a shadow.
    for mode in [FleetMode::Append, FleetMode::Replace] {
        let begin = || {
            let options = FleetJobOptions { mode, ..FleetJobOptions::default() };
            let handle = scene.runtime.handle();
            driven::begin("t", Some("nightly"), options, None, &scene.dsn, limits, handle)
        };
        runtime.block_on(holder.batch_execute("begin; lock t in access exclusive mode")).unwrap();
        let error = begin().unwrap_err();
        assert_eq!(error.sqlstate().map(|it| it.code()), Some("55P03"), "{error:?}");
        let hint = error.hint_text().unwrap_or_default();
        assert!(hint.starts_with("t is in use by session"), "{hint}");
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
        let ticket = begin().unwrap();
        let receipt = scene.write(&ticket, 0, 1, 2);
        assert_eq!(scene.complete(&ticket, &[receipt]).unwrap().rows_written, 2);
        scene.case.db.run("delete from t where id > 0; drop schema pgspate cascade");
    }
}
