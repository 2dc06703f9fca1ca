//! Connections that are lost while a job is completed.

use std::thread;
use std::time::Duration;

use pgspate::driven::{self, FleetJobOptions, FleetMode};
use pgspate::session::WaitLimits;
use pgspate::sync::{Scope, SyncOptions};
use pgspate::target::connect::{Dsn, Environment};

use crate::driven::DriverScene;
use crate::proxy::Proxy;
use crate::run::{session, wait_until};

/// Returns how to connect through the first proxy that still runs.
fn through(proxies: &[Proxy]) -> Dsn {
    let ports: Vec<_> = proxies.iter().map(|it| it.address().port().to_string()).collect();
    let hosts = vec!["127.0.0.1"; ports.len()].join(",");
    let first = format!("host=127.0.0.1 port={}", ports[0]);
    let all = format!("host={hosts} port={}", ports.join(","));
    let dsn = proxies[0].dsn().replace(&first, &all);
    Dsn::resolve(Some(&dsn), &Environment::default()).unwrap().unwrap()
}

/// Loses two connections of a completion that takes long. The server notices neither loss, and its
/// backends keep the lock on the job's row until they are terminated.
fn check_lost_connections(mode: FleetMode) {
    let scene = DriverScene::new();
    let options = FleetJobOptions { mode, ..FleetJobOptions::default() };
    let upsert = SyncOptions { scope: Scope::NoDelete, ..SyncOptions::default() };
    let sync = (mode == FleetMode::Sync).then_some(upsert);
    let ticket = scene.begin_with(None, options, sync.as_ref()).unwrap();
    let receipts = [scene.write(&ticket, 0, 1, 3)];
    // A lock request would end by the lock timeout.
    scene.case.db.run(
        "create function wait() returns trigger language plpgsql as
             'begin while not pg_try_advisory_xact_lock_shared(7) loop perform pg_sleep(0.01);
              end loop; return new; end';
         create trigger wait before insert on t for each row execute function wait()",
    );
    let (runtime, holder) = session(&scene.case.db.dsn());
    runtime.block_on(holder.batch_execute("select pg_advisory_lock(7)")).unwrap();
    let mut proxies: Vec<_> = (0..3).map(|_| Proxy::start(&scene.case.db.dsn(), None)).collect();
    let dsn = through(&proxies);
    let (retry_for, lock_timeout) = (Duration::from_secs(1), Duration::from_secs(3));
    let limits = WaitLimits { retry_for, lock_timeout, ..WaitLimits::default() };
    let report = thread::scope(|scope| {
        let completion = scope.spawn(|| {
            let handle = scene.runtime.handle();
            driven::complete(&ticket, &receipts, sync, &dsn, limits, handle)
        });
        let mut lost = "0".to_owned();
        while !proxies.is_empty() {
            // The attempt lasts longer than a lost connection is tried again.
            let sql = format!(
                "select coalesce(max(pid), 0) from pg_stat_activity \
                 where datname = current_database() and application_name like 'pgspate%' \
                   and state = 'active' and wait_event_type is distinct from 'Lock' \
                   and pid <> {lost} and clock_timestamp() - query_start > '1.5 s'"
            );
            let mut pid = "0".to_owned();
            wait_until("a session writes the rows", || {
                pid = scene.case.value(&sql);
                pid != "0" || completion.is_finished()
            });
            lost = pid;
            if proxies.len() == 1 || completion.is_finished() {
                break;
            }
            drop(proxies.remove(0));
        }
        runtime.block_on(holder.batch_execute("select pg_advisory_unlock(7)")).unwrap();
        completion.join().unwrap()
    });
    assert_eq!(report.unwrap().rows_written, 3);
    assert_eq!(scene.case.value("select count(*) from t where id > 0"), "3");
}

#[test]
fn a_completion_survives_two_lost_connections() {
    check_lost_connections(FleetMode::Append);
}

#[test]
fn a_completion_by_a_sync_survives_two_lost_connections() {
    check_lost_connections(FleetMode::Sync);
}
