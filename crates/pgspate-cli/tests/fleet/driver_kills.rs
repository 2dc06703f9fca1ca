//! Drivers that end at a message, and are run again.

use std::time::Duration;

use pgspate::session::WaitLimits;
use pgspate::target::connect::{Dsn, Environment};

use crate::driven::{DriverRun, DriverScene, JobWay};
use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::Proxy;
use crate::test_random::{TestRandom, long_run};

/// Messages that are tried for each way to write, unless all are.
const TRIALS: u64 = 5;

/// Runs a driver over a proxy, and returns the number of messages and whether the fault happened.
fn drive(scene: &DriverScene, way: JobWay, name: &str, ids: (i32, i32), at: u64) -> (u64, bool) {
    let server_is_gone = Duration::from_secs(600);
    let plan = FaultPlan::new(Fault::Cut, FaultPlace::Message(at)).away(server_is_gone);
    let proxy = Proxy::start(&scene.case.db.dsn(), (at > 0).then_some(plan));
    let dsn = Dsn::resolve(Some(&proxy.dsn()), &Environment::default()).unwrap().unwrap();
    let limits = WaitLimits { retry_for: Duration::ZERO, ..WaitLimits::default() };
    let run = DriverRun { scene, dsn, limits, way };
    assert_eq!(run.drive(name, ids).is_err(), proxy.has_fired(), "{way:?}, message {at}");
    (proxy.counts().0, proxy.has_fired())
}

/// From the message on, the driver cannot reach the server, as if it was killed. The next run has
/// the same name.
#[test]
fn a_driver_that_is_killed_at_any_message_and_run_again_writes_once() {
    let scene = DriverScene::new();
    let mut random = TestRandom::for_test_run(7);
    let (mut round, mut kills) = (0, 0);
    for way in JobWay::ALL {
        let mut next = || {
            round += 1;
            if way == JobWay::AppendToEmpty {
                scene.case.db.run("truncate t");
            }
            (format!("round {round}"), (10 * round + 1, 10 * round + 4))
        };
        let (name, ids) = next();
        let (messages, _) = drive(&scene, way, &name, ids, 0);
        let trials: Vec<u64> = match long_run() {
            Some(_) => (1..=messages).collect(),
            None => (0..TRIALS).map(|_| random.among(1..=messages)).collect(),
        };
        for at in trials {
            let (name, ids) = next();
            kills += u32::from(drive(&scene, way, &name, ids, at).1);
            let limits = WaitLimits::default();
            let run = DriverRun { scene: &scene, dsn: scene.dsn.clone(), limits, way };
            let report = run.drive(&name, ids).unwrap();
            assert_eq!((report.rows_in, report.parts), (4, 2), "{way:?}, message {at}");
            let found = format!("select count(*) from t where id between {} and {}", ids.0, ids.1);
            assert_eq!(scene.case.value(&found), "4", "{way:?}, message {at}");
        }
    }
    println!("{kills} kills");
    scene.assert_clean();
}
