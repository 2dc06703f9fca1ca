//! Deleted messages, topics that were created again, and unreadable messages. pgspate skips none of
//! them silently.

use insta::assert_snapshot;

use crate::cluster::KafkaCluster;
use crate::support::LoadCase;
use crate::{apply, apply_and_report, event, places, rows};

const CREATE_T: &str = "create table t (id int primary key, v int, note text)";

/// The test cluster keeps only the last five megabytes of a partition.
#[test]
fn a_stream_does_not_skip_deleted_messages() {
    let case = LoadCase::new(CREATE_T);
    let cluster = KafkaCluster::new(&[("a", 1)]);
    (0..3).for_each(|id| cluster.put("a", 0, &event(id, 0)));
    cluster.flush();
    assert_eq!(apply_and_report(&case, &cluster, "a", "")["events"], 3);
    let large = |id: u32| {
        let row = format!("{{\"id\":{id},\"v\":1,\"note\":\"{}\"}}", "x".repeat(400_000));
        format!("{{\"op\":\"insert\",\"table\":\"t\",\"row\":{row}}}")
    };
    for id in 3..23 {
        cluster.put("a", 0, &large(id));
        cluster.flush();
    }
    let before = case.contents();
    let refusal = apply(&case, &cluster, "a", "").refusal();
    let first = refusal.split("offsets 3 to ").nth(1).and_then(|rest| rest.split(' ').next());
    let first: u32 = first.unwrap_or_else(|| panic!("{refusal}")).parse().unwrap();
    assert!((4..22).contains(&first));
    assert_snapshot!(refusal.replace(&first.to_string(), "[LAST]"), @"
    error: offsets 3 to [LAST] of a/0 no longer exist, but were not applied

    hint: The topic keeps messages for a limited time or size (`retention.ms`,
          … `retention.bytes`), and these messages were older. Correct the tables in
          … another way, and begin a new stream with `--stream NAME`. Or continue without
          … these messages: `update pgspate.stream set source = 'offset [LAST]', digest = ''
          … where stream = 'topic a' and partition = 'a/0'`.
    ");
    assert_eq!(rows(&case, "t"), "(0,0,) (1,0,) (2,0,)");
    let fences = |contents: Vec<(String, Vec<String>)>| -> Vec<_> {
        contents.into_iter().filter(|(table, _)| table != "pgspate.stream").collect()
    };
    assert_eq!(fences(case.contents()), fences(before));
    // Follow the hint of the error.
    case.db.run(&format!(
        "update pgspate.stream set source = 'offset {first}', digest = '' \
         where stream = 'topic a' and partition = 'a/0'"
    ));
    let report = apply_and_report(&case, &cluster, "a", "");
    assert_eq!(report["events"], 22 - first);
    assert_eq!(case.value("select count(*) from t"), (3 + 22 - first).to_string());
}

#[test]
fn a_topic_that_was_created_again_is_not_mistaken_for_the_first() {
    let case = LoadCase::new(CREATE_T);
    let first = KafkaCluster::new(&[("a", 1)]);
    (0..5).for_each(|id| first.put("a", 0, &event(id, 0)));
    first.flush();
    apply_and_report(&case, &first, "a", "");
    let shorter = KafkaCluster::new(&[("a", 1)]);
    (0..4).for_each(|id| shorter.put("a", 0, &event(id, 1)));
    shorter.flush();
    assert_snapshot!(apply(&case, &shorter, "a", "").refusal(), @"
    error: a/0 ends before offset 4, but the stream is applied up to offset 4

    hint: The topic was created again, belongs to another cluster, or has lost its last
          … messages with a broker. To apply it from its beginning, begin a new stream with
          … `--stream NAME`, or run `delete from pgspate.stream where stream = 'topic a'
          … and starts_with(partition, 'a/')`.
    ");
    // The new topic is now longer than the first topic was.
    (4..9).for_each(|id| shorter.put("a", 0, &event(id, 1)));
    shorter.flush();
    assert_snapshot!(apply(&case, &shorter, "a", "").refusal(), @"
    error: the message at offset 4 of a/0 differs from the message that was applied before

    hint: The topic was created again, belongs to another cluster, or has lost its last
          … messages with a broker. To apply it from its beginning, begin a new stream with
          … `--stream NAME`, or run `delete from pgspate.stream where stream = 'topic a'
          … and starts_with(partition, 'a/')`.
    ");
    assert_eq!(places(&case), "a/0 5 offset 4");
    assert_eq!(case.value("select sum(v) from t"), "0");
    case.db.run(
        "delete from pgspate.stream where stream = 'topic a' and starts_with(partition, 'a/')",
    );
    assert_eq!(apply_and_report(&case, &shorter, "a", "")["events"], 9);
}

#[test]
fn errors_name_topics_that_cannot_be_read() {
    let case = LoadCase::new(CREATE_T);
    let cluster = KafkaCluster::new(&[("a", 1)]);
    cluster.put("a", 0, "\0\0\0\0\x07avro");
    cluster.flush();
    assert_snapshot!(apply(&case, &cluster, "a", "").refusal(), @"
    error: messages that need a schema registry are not supported
      at: a/0, offset 0

    hint: Let the connector write JSON: set `value.converter` and `key.converter` to
          … org.apache.kafka.connect.json.JsonConverter.
    ");
    let uncommitted = "a?isolation.level=read_uncommitted";
    assert_snapshot!(apply(&case, &cluster, uncommitted, "").refusal(), @r#"
    error: property "isolation.level" is set by pgspate itself

    hint: Leave it out of the URL, and out of the environment.
    "#);
    let refused = apply(&case, &cluster, "a?fetch.wait.max.ms=x", "").refusal();
    assert!(refused.contains("librdkafka refused property \"fetch.wait.max.ms\""), "{refused}");
    let twice = format!("--stream s {}", cluster.address("a"));
    assert_snapshot!(apply(&case, &cluster, "a", &twice).refusal(), @"
    error: a list of topics must be the only source

    hint: Name only this source. Apply the other sources with another `--stream`.
    ");
    assert_eq!(case.value("select count(*) from t"), "0");
}

#[test]
fn bad_messages_are_set_aside_with_their_place() {
    let case = LoadCase::new("create table t (id int primary key, v int check (v <> 2))");
    let cluster = KafkaCluster::new(&[("a", 2)]);
    cluster.put("a", 0, &event(1, 1));
    cluster.put("a", 1, &event(2, 2));
    cluster.put("a", 0, "{\"op\":\"insert\",\"table\":");
    cluster.put("a", 0, &event(3, 3));
    cluster.flush();
    let refusal = apply(&case, &cluster, "a", "").refusal();
    let stands = ["\n  at: a/0, offset 1\n", "\n  at: a/1, offset 0\n"];
    assert!(stands.iter().any(|place| refusal.contains(place)), "{refusal}");
    let report = apply_and_report(&case, &cluster, "a", "--max-dead-letters 2");
    let count = |name: &str| report[name].as_u64().unwrap();
    assert_eq!((count("events_before") + count("events"), count("dead_letters")), (4, 2));
    assert_eq!(rows(&case, "t"), "(1,1) (3,3)");
    let letters = "select string_agg(source || ' ' || coalesce(sqlstate, '-') || ' ' || \
                   (payload like '%insert%'), ', ' order by source) from pgspate.dead_letter";
    assert_eq!(case.value(letters), "a/0, offset 1 - true, a/1, offset 0 23514 true");
    assert_eq!(places(&case), "a/0 3 offset 2, a/1 1 offset 0");
    assert_eq!(apply_and_report(&case, &cluster, "a", "")["events"], 0);
}
