//! Topics and partitions: where reading starts and ends, and their positions in the ledger.

use insta::assert_snapshot;

use crate::cluster::KafkaCluster;
use crate::run::{finish, spawn};
use crate::support::{LoadCase, redact};
use crate::{apply, apply_and_report, command, event, places, rows};

const CREATE_T: &str = "create table t (id int primary key, v int)";

#[test]
fn all_partitions_of_all_topics_are_applied_to_their_ends() {
    let case = LoadCase::new(CREATE_T);
    let cluster = KafkaCluster::new(&[("a", 3), ("b", 1), ("c", 1)]);
    for id in 0..300 {
        cluster.put("a", id % 2, &event(id as u64, 1));
    }
    (300..310).for_each(|id| cluster.put("b", 0, &event(id, 1)));
    cluster.put("c", 0, &event(999, 1));
    cluster.flush();
    let plan = finish(spawn(&mut command(&case, &cluster, "a,b", "--plan")));
    assert_snapshot!(redact(&plan.stdout), @"
    stream topic a
      reads   topic a, 3 partitions
      reads   topic b, 1 partition
      begins  a/0 at offset 0, 150 behind
              a/1 at offset 0, 150 behind
              a/2 at its end, offset 0
              b/0 at offset 0, 10 behind
      ends    where each partition ends now
    ");
    let report = apply_and_report(&case, &cluster, "a,b", "");
    assert_eq!(report["events"], 310);
    assert_eq!(case.value("select count(*) from t where v = 1"), "310");
    assert_eq!(places(&case), "a/0 150 offset 149, a/1 150 offset 149, a/2 0 , b/0 10 offset 9");
    // The topics have no new messages.
    let report = apply_and_report(&case, &cluster, "a,b", "");
    assert_eq!((&report["events_before"], &report["events"]), (&310.into(), &0.into()));
    // The list of topics has another topic now, and the stream is the same.
    cluster.put("a", 2, &event(5, 2));
    cluster.put("b", 0, &event(6, 2));
    cluster.flush();
    let report = apply_and_report(&case, &cluster, "a,b,c", "");
    assert_eq!((&report["events_before"], &report["events"]), (&310.into(), &3.into()));
    assert_eq!(
        case.value("select string_agg(id::text, ' ' order by id) from t where v = 2"),
        "5 6"
    );
    assert_eq!(case.value("select count(*) from t"), "311");
    let status = finish(spawn(case.command(&["status"]).args(["--to", &case.db.dsn()])));
    assert_snapshot!(redact(&status.stdout), @"
    stream topic a  313 events applied, up to b/0, offset 10
      last advanced at [WHEN]
    stream topic a, part a/0  150 events applied, up to offset 149
      last advanced at [WHEN]
    stream topic a, part a/1  150 events applied, up to offset 149
      last advanced at [WHEN]
    stream topic a, part a/2  1 event applied, up to offset 0
      last advanced at [WHEN]
    stream topic a, part b/0  11 events applied, up to offset 10
      last advanced at [WHEN]
    stream topic a, part c/0  1 event applied, up to offset 0
      last advanced at [WHEN]
    ");
    let plan = finish(spawn(&mut command(&case, &cluster, "a,b,c", "--plan --follow")));
    assert_snapshot!(redact(&plan.stdout), @"
    stream topic a
      reads   topic a, 3 partitions
      reads   topic b, 1 partition
      reads   topic c, 1 partition
      begins  a/0 at its end, offset 150
              a/1 at its end, offset 150
              a/2 at its end, offset 1
              b/0 at its end, offset 11
              c/0 at its end, offset 1
      ends    never: new messages are applied when they arrive
    ");
}

#[test]
fn a_stream_may_begin_with_messages_written_after_its_start() {
    let case = LoadCase::new(CREATE_T);
    let cluster = KafkaCluster::new(&[("a", 2)]);
    (0..10).for_each(|id| cluster.put("a", 0, &event(id, 1)));
    cluster.flush();
    let late = "a?auto.offset.reset=latest";
    assert_eq!(apply_and_report(&case, &cluster, late, "")["events"], 0);
    assert_eq!(places(&case), "a/0 0 offset 9, a/1 0 ");
    // The next run continues at the position where the first began.
    cluster.put("a", 0, &event(10, 1));
    cluster.put("a", 1, &event(11, 1));
    cluster.flush();
    assert_eq!(apply_and_report(&case, &cluster, late, "")["events"], 2);
    assert_eq!(rows(&case, "t"), "(10,1) (11,1)");
}

#[test]
fn every_compression_is_read() {
    let case = LoadCase::new(CREATE_T);
    for (nth, compression) in ["gzip", "snappy", "lz4", "zstd"].into_iter().enumerate() {
        let cluster = KafkaCluster::compressing(&[("a", 1)], compression);
        (0..50).for_each(|id| cluster.put("a", 0, &event(50 * nth as u64 + id, 1)));
        cluster.flush();
        let report = apply_and_report(&case, &cluster, "a", &format!("--stream {compression}"));
        assert_eq!(report["events"], 50, "{compression}");
    }
    assert_eq!(case.value("select count(*) from t"), "200");
}

/// A stream is named after its first topic. Topics in another order are another stream, which would
/// apply all messages again.
#[test]
fn topics_in_another_order_are_not_applied_again() {
    let case = LoadCase::new(CREATE_T);
    let cluster = KafkaCluster::new(&[("a", 1), ("b", 2)]);
    cluster.put("a", 0, &event(1, 1));
    cluster.put("b", 1, &event(2, 1));
    cluster.flush();
    apply_and_report(&case, &cluster, "a,b", "");
    let refusal = apply(&case, &cluster, "b,a", "").refusal();
    assert!(refusal.contains("was applied as part of stream \"topic a\""), "{refusal}");
    for (topics, args) in [("b", ""), ("b,a", "--plan")] {
        let run = apply(&case, &cluster, topics, args);
        assert!(run.stderr.contains("was applied as part of stream"), "{}", run.stderr);
    }
    let mut continued = command(&case, &cluster, "b,a", "--json --quiet --stream");
    let run = finish(spawn(continued.arg("topic a")));
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&report["events_before"], &report["events"]), (&2.into(), &0.into()));
    assert_eq!(apply_and_report(&case, &cluster, "a", "")["events"], 0);
    assert_eq!(apply_and_report(&case, &cluster, "b,a", "--stream own")["events"], 2);
}
