//! Faults between the writer and the server: cut connections, swallowed commits, a killed server.

use std::collections::HashSet;

use pgspate::ErrorKind;
use pgspate::writer::WriterOptions;
use pgspate_embedded::testing;

use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::Proxy;
use crate::scene::{
    call_at_once, call_with_keys_at_once, into, open_writer, record, runtime, short_waits,
};
use crate::test_random::{TestRandom, long_run};

/// Every record that was acknowledged is in the table once, and no refused record is. A record whose
/// outcome is unknown is in the table at most once.
#[test]
fn random_faults_lose_and_double_no_record() {
    let db = testing::database();
    db.run(
        "create table t (id int, key int unique); \
         create table noted (id int, key int unique); \
         create function note() returns trigger language plpgsql as 'begin return null; end'; \
         create trigger note after insert on noted for each row execute function note()",
    );
    let runtime = runtime();
    let mut random = TestRandom::for_test_run(23);
    let (mut fired, mut unknown, mut next_id) = (0, 0, 0);
    for round in 0..long_run().unwrap_or(25) {
        let fault =
            random.pick(&[Fault::Cut, Fault::CutInside, Fault::CutAfter, Fault::SwallowCommit]);
        let place = match fault {
            Fault::SwallowCommit => FaultPlace::Commit(random.among(1..=10)),
            _ => FaultPlace::Message(random.among(40..=600)),
        };
        let proxy = Proxy::start(&db.dsn(), Some(FaultPlan::new(fault, place)));
        let options = WriterOptions { connections: random.among(1..=8) as usize, ..short_waits() };
        let Ok(writer) = open_writer(&proxy.dsn(), options, &runtime) else { continue };
        let table = random.pick(&["t", "noted"]);
        let ids = next_id..next_id + 300;
        next_id += 300;
        // Every tenth record is refused, because its key exists.
        let calls = ids.clone().map(|id| {
            let key = if id % 10 == 9 { id - 1 } else { id };
            vec![record(&[&id.to_string(), &key.to_string()])]
        });
        let request = into(table, &["id", "key"]);
        let outcomes = runtime.block_on(call_at_once(&writer, &request, calls.collect::<Vec<_>>()));
        runtime.block_on(writer.close());
        fired += u32::from(proxy.has_fired());
        let found = db.query(&format!("select id from {table} where id >= {}", ids.start));
        let found: Vec<i32> =
            found.iter().map(|row| row[0].as_ref().unwrap().parse().unwrap()).collect();
        let there: HashSet<i32> = found.iter().copied().collect();
        assert_eq!(there.len(), found.len(), "round {round}: a record was doubled");
        for (id, outcome) in ids.zip(&outcomes) {
            match outcome {
                Ok(_) => assert!(there.contains(&id), "round {round}: {id} was lost"),
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => unknown += 1,
                Err(error) => assert!(!there.contains(&id), "round {round}: {id}: {error:?}"),
            }
        }
    }
    println!("{fired} faults, {unknown} unknown outcomes");
    assert!(fired > 5, "{fired} faults");
}

/// With an idempotency key each record is written exactly once: the writer sends it again by itself,
/// and so does its caller if the writer gives up.
#[test]
fn records_with_keys_are_written_exactly_once_in_spite_of_faults() {
    let db = testing::database();
    db.run("create table t (id int)");
    let runtime = runtime();
    let mut random = TestRandom::for_test_run(25);
    let (mut fired, mut next_id) = (0, 0);
    for round in 0..long_run().unwrap_or(15) {
        let fault =
            random.pick(&[Fault::Cut, Fault::CutInside, Fault::CutAfter, Fault::SwallowCommit]);
        let place = match fault {
            Fault::SwallowCommit => FaultPlace::Commit(random.among(1..=10)),
            _ => FaultPlace::Message(random.among(40..=600)),
        };
        let ids: Vec<i32> = (next_id..next_id + 150).collect();
        next_id += 150;
        let request = into("t", &["id"]);
        let mut left = ids.clone();
        for plan in [Some(FaultPlan::new(fault, place)), None] {
            let proxy = Proxy::start(&db.dsn(), plan);
            let Ok(writer) = open_writer(&proxy.dsn(), short_waits(), &runtime) else { continue };
            let calls = left.iter().map(|id| {
                let id = id.to_string();
                (format!("key of {id}"), vec![record(&[&id])])
            });
            let calls = calls.collect::<Vec<_>>();
            let outcomes = runtime.block_on(call_with_keys_at_once(&writer, &request, calls));
            runtime.block_on(writer.close());
            fired += u32::from(proxy.has_fired());
            let mut unknown = Vec::new();
            for (id, outcome) in left.iter().zip(&outcomes) {
                match outcome {
                    Ok(outcome) => assert_eq!(outcome.rows, 1),
                    Err(error) => {
                        let may_happen =
                            matches!(error.kind(), ErrorKind::OutcomeUnknown | ErrorKind::Connect);
                        assert!(may_happen, "{error:?}");
                        unknown.push(*id);
                    }
                }
            }
            left = unknown;
        }
        assert!(left.is_empty(), "round {round}: {left:?}");
        let count =
            db.query(&format!("select count(*), count(distinct id) from t where id >= {}", ids[0]));
        let expected = [Some("150".to_owned()), Some("150".to_owned())];
        assert_eq!(count[0], expected, "round {round}, {fault}@{place:?}");
    }
    println!("{fired} faults");
    assert!(fired > 4, "{fired} faults");
}

#[test]
fn a_killed_server_loses_no_acknowledged_record() {
    let server = testing::server("");
    let runtime = runtime();
    let dsn = server.dsn();
    let ask = |sql: &str| -> Vec<i32> {
        runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            let rows = client.query(sql, &[]).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        })
    };
    ask("create table t (id int)");
    ask("create table noted (id int)");
    ask("create function note() returns trigger language plpgsql as 'begin return null; end'");
    ask("create trigger note after insert on noted for each row execute function note()");
    let writer = open_writer(&dsn, short_waits(), &runtime).unwrap();
    let mut next_id = 0;
    for table in ["t", "noted", "t"] {
        let request = into(table, &["id"]);
        let first = next_id;
        let mut acknowledged = Vec::new();
        let mut unsure = HashSet::new();
        let killed = std::thread::scope(|scope| {
            let kill = scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(300));
                server.kill().unwrap();
                server.restart().unwrap();
            });
            // Records are sent until the server was back for a while.
            while !kill.is_finished() {
                let ids: Vec<i32> = (next_id..next_id + 200).collect();
                next_id += 200;
                let calls = ids.iter().map(|id| vec![record(&[&id.to_string()])]).collect();
                let outcomes = runtime.block_on(call_at_once(&writer, &request, calls));
                for (id, outcome) in ids.into_iter().zip(outcomes) {
                    match outcome {
                        Ok(_) => acknowledged.push(id),
                        Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                            unsure.insert(id);
                        }
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
            kill.join()
        });
        killed.unwrap();
        let found = ask(&format!("select id from {table} where id >= {first}"));
        let there: HashSet<i32> = found.iter().copied().collect();
        assert_eq!(there.len(), found.len(), "a record was doubled");
        assert!(acknowledged.iter().all(|id| there.contains(id)), "a record was lost");
        let known: HashSet<i32> = acknowledged.into_iter().chain(unsure).collect();
        assert!(there.is_subset(&known), "a record was written that was not");
    }
    runtime.block_on(writer.close());
}
