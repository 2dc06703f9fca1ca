//! A stream of topics as a service: signals, metrics, and brokers that stop and start again.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};

use crate::cluster::KafkaCluster;
use crate::run::{finish, wait_until};
use crate::support::LoadCase;
use crate::{apply, event, places, start};

const CREATE_T: &str = "create table t (id int primary key, v int)";

/// Returns the page of the metrics server, or an empty text.
fn scrape(port: u16) -> String {
    let mut page = String::new();
    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
        let _ = stream.read_to_string(&mut page);
    }
    page
}

/// Sends SIGTERM to the command.
fn terminate(child: &Child) {
    let status = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(status.success());
}

#[test]
fn after_a_broker_restart_reading_continues_at_the_last_position() {
    let case = LoadCase::new(CREATE_T);
    let cluster = KafkaCluster::new(&[("a", 2)]);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let args = format!("--follow --metrics 127.0.0.1:{port} --json");
    let child = start(&case, &cluster, "a", &args);
    for id in 0..1000 {
        cluster.put("a", id % 2, &event(id as u64, 1));
    }
    let has = |line: &str| scrape(port).contains(&format!("\npgspate_apply_{line}\n"));
    wait_until("the metrics show the events", || has("events_total 1000") && has("lag_messages 0"));
    assert!(has("connected 1") && has("lag_seconds 0"));
    cluster.stop();
    wait_until("the metrics show the lost broker", || has("connected 0"));
    assert!(has("reconnects_total 1"));
    cluster.restart();
    for id in 0..1000 {
        cluster.put("a", id % 2, &event(id as u64, 2));
    }
    wait_until("the metrics show the broker again", || {
        has("events_total 2000") && has("connected 1")
    });
    terminate(&child);
    let run = finish(child);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&report["is_stopped"], &report["events"]), (&true.into(), &2000.into()));
    assert_eq!(case.value("select count(*) from t where v = 2"), "1000");
    assert_eq!(places(&case), "a/0 1000 offset 999, a/1 1000 offset 999");
}

#[test]
fn a_broker_that_stays_down_ends_the_run() {
    let case = LoadCase::new(CREATE_T);
    let cluster = KafkaCluster::new(&[("a", 1)]);
    cluster.put("a", 0, &event(1, 1));
    cluster.flush();
    let child = start(&case, &cluster, "a", "--follow --retry-for 2");
    wait_until("the run applies events", || {
        case.value("select to_regclass('pgspate.stream') is not null") == "t"
            && places(&case) == "a/0 1 offset 0"
    });
    cluster.stop();
    let stopped = finish(child);
    stopped.refusal();
    assert!(stopped.stderr.contains("no broker was reachable for 2 s"), "{}", stopped.stderr);
    cluster.restart();
    let run = apply(&case, &cluster, "a", "");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
}
