//! Replays one source history through batches that end at every possible place.

use std::time::Duration;

use pgspate_embedded::{silent, testing};
use tokio::runtime::Runtime;

use super::*;
use crate::apply::ChangeEvent;
use crate::apply::route::{LoggedPlace, Router, TableMap, UnknownColumns};
use crate::apply::write::WriterSettings;
use pgspate_events::log::EventLog;
use pgspate_events::{ChangeKind, Lsn};
use pgspate_replication::postgres::SlotStream;
use pgspate_target::connect::{Dsn, Environment};
use pgspate_target::session::WaitLimits;
use pgspate_target::users_path_sql;

const CONF: &str = "wal_level = logical\nmax_wal_senders = 4\nmax_replication_slots = 4\n";

const TABLES: &str = "\
create table parent (id int primary key, code text not null unique, note text);
create table child (id int primary key, parent int references parent ACTION, n int);
create table swaps (id int primary key, place int,
                    unique (place) deferrable initially immediate);
insert into parent values (1, 'a', ''), (2, 'b', ''), (3, 'c', '');
insert into child values (1, 1, 0), (2, 1, 0), (3, 2, 0), (4, null, 0);
insert into swaps values (1, 1), (2, 2), (3, 3)";

/// The actions of the foreign key when the parent row is deleted or gets another key.
const ACTIONS: [&str; 2] =
    ["on delete set null on update cascade", "on delete cascade on update cascade"];

/// Transactions in which rows exchange unique values and keys.
const HISTORY: [&str; 10] = [
    "update parent set id = 11 where id = 1; update child set n = 1 where id = 1",
    "update parent set code = 'x' where id = 11; update parent set code = 'a' where id = 2; \
     update parent set code = 'b' where id = 11",
    "update parent set id = 1 where id = 11; update parent set id = 11 where id = 2",
    "update swaps set place = 3 - place where id < 3",
    "insert into parent values (4, 'd', ''); update child set parent = 4 where id = 4; \
     delete from parent where id = 1; insert into parent values (1, 'b', '')",
    "update child set id = 9, parent = 1 where id = 4; delete from parent where id = 4; \
     update parent set id = 4, code = 'd' where id = 1",
    "update swaps set id = id + 10; update swaps set place = null where id = 11",
    "truncate parent, child; insert into parent values (5, 'a', ''); \
     insert into child values (5, 5, 0)",
    "update parent set id = 6, code = 'b' where id = 5; insert into parent values (5, 'a', '')",
    "update child set parent = 5; delete from parent where id = 6; \
     update parent set code = 'b' where id = 5",
];

/// All rows as one text.
const CONTENTS: &str = "\
select (select string_agg(t::text, ' ' order by id) from parent t) || ' / '
    || coalesce((select string_agg(t::text, ' ' order by id) from child t), '') || ' / '
    || (select string_agg(t::text, ' ' order by id) from swaps t)";

fn dsn(of: &str) -> Dsn {
    let env = Environment { user: Some("tester".to_owned()), ..Environment::default() };
    Dsn::resolve(Some(of), &env).unwrap().unwrap()
}

/// Runs the history on a source. Returns its events, and the source's rows after each transaction.
async fn history(server: &str, action: &str) -> (Vec<ChangeEvent>, Vec<String>) {
    let connection = dsn(server).connect("source").await.unwrap();
    let client = &connection.client;
    client.batch_execute(&users_path_sql(false)).await.unwrap();
    client.batch_execute(&TABLES.replace("ACTION", action)).await.unwrap();
    client.batch_execute("create publication p for all tables").await.unwrap();
    let slot = "select pg_create_logical_replication_slot('s', 'pgoutput')";
    client.batch_execute(slot).await.unwrap();
    let mut states = Vec::new();
    for sql in HISTORY {
        client.batch_execute(&format!("begin; {sql}; commit")).await.unwrap();
        states.push(client.query_one(CONTENTS, &[]).await.unwrap().get(0));
    }
    let mut stream = SlotStream::start(&dsn(server), "s", "p", Lsn(0), Lsn(0)).await.unwrap();
    let mut events: Vec<ChangeEvent> = Vec::new();
    while events.iter().filter(|event| event.ends_transaction).count() < states.len() {
        events.extend(stream.next().await.unwrap().events);
    }
    stream.close().await;
    // The server may release the slot a little later.
    let is_free = "select not active from pg_replication_slots where slot_name = 's'";
    while !client.query_one(is_free, &[]).await.unwrap().get::<_, bool>(0) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    client.batch_execute("select pg_drop_replication_slot('s')").await.unwrap();
    connection.close().await;
    (events, states)
}

/// A target database and the session that writes to it.
struct TestTarget {
    runtime: Runtime,
    router: Router,
    inputs: SourceNames,
    session: WriterSession,
}

impl TestTarget {
    fn new(server: &str) -> TestTarget {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let names = TableMap::parse(&[], &[]).unwrap();
        let handle = runtime.handle().clone();
        let router =
            Router::new(dsn(server), names, UnknownColumns::Fail, WaitLimits::default(), handle);
        let router = runtime.block_on(router).unwrap();
        let inputs = SourceNames::new(vec!["s".to_owned()]);
        let (dsn, limits) = (dsn(server), WaitLimits::default());
        let (dead_letters_max, direct_rows) = (0, 0);
        let inputs_too = inputs.clone();
        let settings = WriterSettings {
            dsn,
            limits,
            value_settings: String::new(),
            dead_letters_max,
            inputs: inputs_too,
            direct_rows,
        };
        let session = runtime.block_on(WriterSession::open(&settings)).unwrap();
        TestTarget { runtime, router, inputs, session }
    }

    /// Writes events as one batch. Leaves the transaction open.
    fn write_events(&mut self, events: &[ChangeEvent], is_open: bool) -> Result<()> {
        let mut log = EventLog::default();
        for event in events {
            let at = LoggedPlace { event_place: Lsn(0).into(), ordinal: 0 };
            self.router.add(event, &mut log, at)?;
        }
        let tables = self.router.tables();
        let encoded_tables = encode_folded_rows(&log, 0..log.changes().len(), &tables)?;
        let batch = EventBatch {
            complete_changes: log.changes().len(),
            log,
            tables,
            encoded_tables,
            ..EventBatch::default()
        };
        let inputs = &self.inputs;
        let (dead_letters, watch) = (Vec::new(), &ApplyWatch::default());
        let mut search = RefusalSearch {
            batch: &batch,
            inputs,
            dead_letters_max: 0,
            dead_letters_left: 0,
            dead_letters,
            watch,
            tries: 0,
        };
        self.runtime.block_on(async {
            search.write_batch(&mut self.session, is_open).await?;
            self.session.clear_stages().await
        })
    }

    fn contents(&mut self) -> String {
        self.runtime.block_on(self.session.query_value(CONTENTS, "read all rows")).unwrap()
    }
}

/// Returns whether a batch may end before this event, by the rule that feeds follow.
fn may_cut(events: &[ChangeEvent], at: usize) -> bool {
    at == 0 || events[at - 1].op != ChangeKind::Truncate || events[at - 1].ends_transaction
}

#[test]
fn batches_may_end_at_every_event() {
    let server = testing::builder().conf(CONF).start(&silent).unwrap();
    for action in ACTIONS {
        let database = format!("source_{}", action.len());
        let connection = Runtime::new().unwrap();
        let make = async {
            let connection = dsn(&server.dsn()).connect("make").await.unwrap();
            connection.client.batch_execute(&format!("create database {database}")).await.unwrap();
            connection.close().await;
        };
        connection.block_on(make);
        let (events, states) = connection.block_on(history(&server.dsn_for(&database), action));
        let db = testing::database();
        db.run(&TABLES.replace("ACTION", action));
        write_with_every_cut(&mut TestTarget::new(&db.dsn()), &events, &states, action);
    }
}

/// Writes each transaction, and each pair of neighbours, in batches of every size and in two
/// batches cut at every place.
fn write_with_every_cut(
    target: &mut TestTarget,
    events: &[ChangeEvent],
    states: &[String],
    action: &str,
) {
    let ends = events.iter().enumerate().filter(|(_, event)| event.ends_transaction);
    let ends: Vec<usize> = ends.map(|(at, _)| at + 1).collect();
    let mut start = 0;
    for (nth, end) in ends.iter().enumerate() {
        for (later_end, state) in ends.iter().zip(states).skip(nth).take(2) {
            let sizes =
                (1..=later_end - start).map(|size| (start..*later_end).step_by(size).collect());
            let two = (start + 1..*later_end).map(|at| vec![start, at]);
            for mut starts in sizes.chain(two) {
                starts.retain(|at| may_cut(events, *at));
                let places = format!("{action}: batches from {starts:?} to {later_end}");
                starts.push(*later_end);
                for (nth, batch) in starts.windows(2).enumerate() {
                    let done = target.write_events(&events[batch[0]..batch[1]], nth > 0);
                    done.unwrap_or_else(|error| {
                        panic!("{places}: {}", error.messages().join(": "))
                    });
                }
                assert_eq!(target.contents(), *state, "{places}");
                target.runtime.block_on(target.session.roll_back()).unwrap();
            }
        }
        target.write_events(&events[start..*end], false).unwrap();
        target.runtime.block_on(target.session.commit()).unwrap();
        start = *end;
    }
}
