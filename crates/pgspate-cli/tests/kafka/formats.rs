//! Keys, headers, and messages without a value, in the event formats that use them.

use crate::cluster::KafkaCluster;
use crate::support::LoadCase;
use crate::{apply, apply_and_report, places, rows};

const CREATE_T: &str = "create table t (id int primary key, v int, note text)";
const TOPIC: &str = "shop.public.t";

/// Returns the key of a message about the row `id`.
fn key(id: u32) -> String {
    format!("{{\"id\":{id}}}")
}

/// Returns an event of Debezium without schemas.
fn envelope(op: &str, before: &str, after: &str) -> String {
    let source = "{\"schema\":\"public\",\"table\":\"t\",\"lsn\":1}";
    format!("{{\"before\":{before},\"after\":{after},\"source\":{source},\"op\":\"{op}\"}}")
}

fn row(id: u32, v: u32, note: &str) -> String {
    format!("{{\"id\":{id},\"v\":{v},\"note\":\"{note}\"}}")
}

/// Debezium's placeholder for an omitted value.
const UNAVAILABLE: &str = "__debezium_unavailable_value";

#[test]
fn a_tombstone_after_a_delete_changes_nothing() {
    let case = LoadCase::new(CREATE_T);
    let cluster = KafkaCluster::new(&[(TOPIC, 1)]);
    let send = |id, value: Option<&str>| cluster.send(TOPIC, 0, Some(&key(id)), value, &[]);
    send(1, Some(&envelope("c", "null", &row(1, 1, "a"))));
    send(2, Some(&envelope("c", "null", &row(2, 1, "b"))));
    send(1, Some(&envelope("d", &row(1, 1, "a"), "null")));
    send(1, None);
    send(3, Some(&envelope("c", "null", &row(3, 1, "c"))));
    send(2, Some(&envelope("u", "null", &row(2, 2, UNAVAILABLE))));
    send(3, Some(&envelope("d", &row(3, 1, "c"), "null")));
    send(3, None);
    cluster.flush();
    let report = apply_and_report(&case, &cluster, TOPIC, "");
    assert_eq!((&report["events"], &report["missing"]), (&6.into(), &0.into()));
    assert_eq!(rows(&case, "t"), "(2,2,b)");
    // The position lies after the tombstone at the end.
    assert_eq!(places(&case), "shop.public.t/0 6 offset 7");
}

/// Compaction removes the event of a deleted row and keeps its tombstone.
#[test]
fn a_tombstone_without_its_event_deletes_the_row() {
    let case = LoadCase::new(CREATE_T);
    let cluster = KafkaCluster::new(&[("cdc", 1)]);
    let send = |id, value: Option<&str>| cluster.send("cdc", 0, Some(&key(id)), value, &[]);
    send(1, Some(&envelope("c", "null", &row(1, 1, "a"))));
    send(2, Some(&envelope("c", "null", &row(2, 1, "b"))));
    cluster.flush();
    apply_and_report(&case, &cluster, "cdc", "");
    send(1, None);
    send(3, None);
    cluster.flush();
    let report = apply_and_report(&case, &cluster, "cdc", "");
    assert_eq!((&report["deleted"], &report["missing"]), (&1.into(), &0.into()));
    assert_eq!(rows(&case, "t"), "(2,1,b)");
}

#[test]
fn a_key_without_a_value_is_a_delete_of_a_flattened_row() {
    let case = LoadCase::new(CREATE_T);
    let cluster = KafkaCluster::new(&[(TOPIC, 2), ("t", 1)]);
    let send = |part, id, value: Option<&str>| {
        cluster.send(TOPIC, part, Some(&key(id)), value, &[]);
    };
    send(0, 1, Some(&row(1, 1, "a")));
    send(1, 2, Some(&row(2, 1, "b")));
    send(0, 1, None);
    cluster.flush();
    apply_and_report(&case, &cluster, TOPIC, "--format debezium");
    assert_eq!(rows(&case, "t"), "(2,1,b)");
    // A tombstone is the first message of a run. The topic has the name of its table.
    send(1, 2, None);
    cluster.send("t", 0, Some(&key(4)), Some(&row(4, 1, "d")), &[]);
    cluster.flush();
    apply_and_report(&case, &cluster, "shop.public.t,t", "--format debezium");
    assert_eq!(rows(&case, "t"), "(4,1,d)");
}

/// A row changes its key. Omitted values are taken from the row with the old key.
#[test]
fn a_key_change_within_a_partition_keeps_omitted_values() {
    let case = LoadCase::new(CREATE_T);
    let cluster = KafkaCluster::new(&[(TOPIC, 1)]);
    let send = |id, value: Option<&str>, headers: &[(&str, &str)]| {
        cluster.send(TOPIC, 0, Some(&key(id)), value, headers);
    };
    send(1, Some(&envelope("c", "null", &row(1, 1, "large"))), &[]);
    let new = ("__debezium.newkey", key(9));
    send(1, Some(&envelope("d", &row(1, 1, UNAVAILABLE), "null")), &[(new.0, &new.1)]);
    send(1, None, &[]);
    let old = ("__debezium.oldkey", key(1));
    send(9, Some(&envelope("c", "null", &row(9, 2, UNAVAILABLE))), &[(old.0, &old.1)]);
    cluster.flush();
    apply_and_report(&case, &cluster, TOPIC, "");
    assert_eq!(rows(&case, "t"), "(9,2,large)");
}

/// Partitions have no common order. The delete of the old row and the insert of the new row are
/// applied separately, and omitted values are lost.
#[test]
fn a_key_change_between_partitions_keeps_no_omitted_values() {
    let case = LoadCase::new(CREATE_T);
    let cluster = KafkaCluster::new(&[(TOPIC, 2)]);
    let send = |part, id, value: Option<&str>, headers: &[(&str, &str)]| {
        cluster.send(TOPIC, part, Some(&key(id)), value, headers);
    };
    let old = key(1);
    let old = [("__debezium.oldkey", old.as_str())];
    send(1, 9, Some(&envelope("c", "null", &row(9, 2, "new"))), &old);
    cluster.flush();
    apply_and_report(&case, &cluster, TOPIC, "");
    send(0, 1, Some(&envelope("c", "null", &row(1, 1, "old"))), &[]);
    send(0, 1, Some(&envelope("u", "null", &row(1, 2, "old"))), &[]);
    let new = key(9);
    let new = [("__debezium.newkey", new.as_str())];
    send(0, 1, Some(&envelope("d", &row(1, 2, "old"), "null")), &new);
    send(0, 1, None, &[]);
    cluster.flush();
    apply_and_report(&case, &cluster, TOPIC, "");
    assert_eq!(rows(&case, "t"), "(9,2,new)");
    send(1, 8, Some(&envelope("c", "null", &row(8, 2, UNAVAILABLE))), &old);
    cluster.flush();
    let refusal = apply(&case, &cluster, TOPIC, "").refusal();
    assert!(refusal.contains("a row whose key has changed lacks columns"), "{refusal}");
}

/// Transactions marked in the messages are kept whole if the topic has only one partition.
#[test]
fn marked_transactions_are_not_split() {
    let case = LoadCase::new(CREATE_T);
    let cluster = KafkaCluster::new(&[("one", 1), ("two", 2)]);
    let event = |tx: u32, id: u32, end: bool| {
        format!(
            "{{\"op\":\"insert\",\"table\":\"t\",\"row\":{{\"id\":{id}}},\"tx\":\"{tx}\"{}}}",
            if end { ",\"end\":true" } else { "" }
        )
    };
    for topic in ["one", "two"] {
        cluster.put(topic, 0, &event(1, 1, false));
        cluster.put(topic, 0, &event(1, 2, true));
        cluster.put(topic, 0, &event(2, 3, false));
    }
    cluster.flush();
    let refusal = apply(&case, &cluster, "one", "").refusal();
    assert!(refusal.contains("the input ends within a source transaction"), "{refusal}");
    assert_eq!(rows(&case, "t"), "(1,,) (2,,)");
    assert_eq!(places(&case), "one/0 2 offset 1");
    cluster.put("one", 0, &event(2, 4, true));
    cluster.flush();
    assert_eq!(apply_and_report(&case, &cluster, "one", "")["events"], 2);
    assert_eq!(apply_and_report(&case, &cluster, "two", "")["events"], 3);
    assert_eq!(rows(&case, "t"), "(1,,) (2,,) (3,,) (4,,)");
}
