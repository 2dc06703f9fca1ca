//! Exactly once: kills and lost sessions at random moments, and two runs of the same stream.
//!
//! `PGSPATE_TEST_FAULTS=100` kills 100 times instead of a few times.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::cluster::{KafkaCluster, TopicWriter};
use crate::run::{finish, wait_until};
use crate::support::LoadCase;
use crate::{apply_and_report, event, places, start};

/// The table, and a trigger that logs each version of a row that was written.
const CREATE_TABLES: &str = "\
create table t (id int primary key, v int);
create table log (n bigint generated always as identity, id int, v int);
create function note() returns trigger language plpgsql as $$ begin
  insert into log (id, v) values (new.id, new.v); return new; end $$;
create trigger note after insert or update on t for each row execute function note()";

/// Terminates the sessions of pgspate on the server.
const TERMINATE_SESSIONS: &str = "\
select count(pg_terminate_backend(pid)) from pg_stat_activity
where datname = current_database() and application_name like 'pgspate%'";

/// The number of counters. The messages of a counter are in one partition, so the log shows a
/// message that is lost or applied twice.
const COUNTERS: u64 = 30;
const PARTITIONS: u64 = 3;

/// Writes the nth message, which sets one counter to its next value.
fn write_nth(writer: &TopicWriter, nth: u64) {
    let id = nth % COUNTERS;
    let topic = if id.is_multiple_of(2) { "even" } else { "odd" };
    writer.put(topic, (id % PARTITIONS) as i32, &event(id, nth / COUNTERS));
}

/// Returns the next random number of a linear congruential generator.
fn next_random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[test]
fn kills_lose_and_double_no_message() {
    let kills = std::env::var("PGSPATE_TEST_FAULTS").map_or(8, |many| many.parse().unwrap());
    let case = LoadCase::new(CREATE_TABLES);
    let cluster = KafkaCluster::new(&[("even", 3), ("odd", 3)]);
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let args = "--follow --batch-delay 0 --batch-rows 50";
    let writer = &cluster.writer;
    let mut errors = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..20 {
                    write_nth(writer, written.load(Ordering::Relaxed));
                    written.fetch_add(1, Ordering::Relaxed);
                }
                // A debug build must be able to apply these messages between two kills.
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut seed = 7;
        for _ in 0..kills {
            let mut child = start(&case, &cluster, "even,odd", args);
            std::thread::sleep(Duration::from_millis(200 + next_random(&mut seed) % 1500));
            if next_random(&mut seed).is_multiple_of(2) {
                case.db.run(TERMINATE_SESSIONS);
                std::thread::sleep(Duration::from_millis(next_random(&mut seed) % 1000));
            }
            child.kill().unwrap();
            errors.push(finish(child).stderr);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // On a busy machine, a run may still be preparing when its session is terminated.
    let is_expected = |error: &String| error.is_empty() || error.contains("57P01");
    assert!(errors.iter().all(is_expected), "{errors:?}");
    cluster.flush();
    let written = written.load(Ordering::Relaxed);
    let last = apply_and_report(&case, &cluster, "even,odd", "");
    let (before, now) = (last["events_before"].as_u64(), last["events"].as_u64());
    assert_eq!(before.unwrap() + now.unwrap(), written);
    assert!(before.unwrap() > 0);
    // Each counter has its last written value.
    let behind = format!("select count(*) from t where v <> ({written} - 1 - id) / {COUNTERS}");
    assert_eq!(case.value(&behind), "0");
    let twice = "select count(*) from (select from log group by id, v having count(*) > 1) x";
    assert_eq!(case.value(twice), "0");
    let back = "select count(*) from (select v - lag(v) over (partition by id order by n) as step \
                from log) x where step <= 0";
    assert_eq!(case.value(back), "0");
    let sum = "select sum(ordinal) from pgspate.stream where partition <> ''";
    assert_eq!(case.value(sum), written.to_string());
}

#[test]
fn a_second_run_of_a_stream_ends_the_first() {
    let case = LoadCase::new(CREATE_TABLES);
    let cluster = KafkaCluster::new(&[("even", 1)]);
    cluster.put("even", 0, &event(0, 0));
    let at = |place: &str| {
        let place = place.to_owned();
        move |case: &LoadCase| {
            case.value("select to_regclass('pgspate.stream') is not null") == "t"
                && places(case) == place
        }
    };
    let first = start(&case, &cluster, "even", "--follow");
    let reached = at("even/0 1 offset 0");
    wait_until("the first run applies messages", || reached(&case));
    let mut second = start(&case, &cluster, "even", "--follow");
    wait_until("the second run has taken over the stream", || {
        case.value("select fence from pgspate.stream where partition = ''") == "2"
    });
    cluster.put("even", 0, &event(0, 1));
    let reached = at("even/0 2 offset 1");
    wait_until("the second run applies messages", || reached(&case));
    let first = finish(first);
    assert!(first.refusal().contains("the stream was taken over by another pgspate"));
    second.kill().unwrap();
    second.wait().unwrap();
    assert_eq!(case.value("select string_agg(v::text, ' ' order by n) from log"), "0 1");
}
