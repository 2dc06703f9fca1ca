//! PostgreSQL's own logical replication as the reference. A subscription and `pgspate apply` get
//! the same random history and must lead to the same tables.
//!
//! By default there is one history for each action of a foreign key. `PGSPATE_TEST_LONG=300` runs
//! new histories for 300 seconds. `PGSPATE_TEST_SEED=7` begins with the history of seed 7.

use std::fmt::Write as _;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pgspate_embedded::{ThrowawayServer, silent, testing};

use crate::random_history::SplitMix;
use crate::run::{ask, wait_until};
use crate::source::{CONF, PublishedDatabase, applied_slot};
use crate::support::LoadCase;

const NAMES: [&str; 5] = ["parent", "child", "loner", "swaps", "wide"];

/// Returns the SQL that creates the tables, with this action of the foreign key.
fn tables(action: &str) -> String {
    format!(
        "create table parent (id int primary key, code text unique, note text);
         create table child (id int primary key, parent int references parent {action},
                             n numeric, big text);
         alter table child alter big set storage external;
         create table loner (a int, b text, big text);
         alter table loner alter big set storage external;
         alter table loner replica identity full;
         create table swaps (id int primary key, place int,
                             unique (place) deferrable initially immediate);
         create table wide (a int, b text, c jsonb, d timestamptz, e bytea, f int[], g float8,
                            h boolean, primary key (b, a));"
    )
}

/// Returns a random statement. Some statements fail, and a failed one changes nothing.
fn statement(random: &mut SplitMix) -> String {
    let mut n = |limit| random.below(limit);
    let (id, other, x) = (n(14), n(14), n(6));
    let big = format!("repeat(md5('{id}{other}{x}'), {})", if x < 3 { 2 } else { 90 });
    match n(30) {
        0..=2 => format!("insert into parent values ({id}, 'c{x}', 'note {other}')"),
        3..=5 => format!("insert into child values ({id}, {other}, {x} / 3.0, {big})"),
        6 => format!("insert into child values ({id}, null, {x}, null)"),
        7 => format!("update parent set note = E'n\\t{x}' where id = {id}"),
        8 => format!("update parent set code = 'c{x}' where id = {id}"),
        9 => format!("update child set n = n + 1 where id % 3 = {}", x % 3),
        10 => format!("update child set parent = {other} where id = {id}"),
        11 => format!("update child set big = {big} where id = {id}"),
        12 => format!("update child set id = {other} where id = {id}"),
        13 => format!("update parent set id = {other} where id = {id}"),
        14 => format!("delete from parent where id = {id}"),
        15 => format!("delete from child where id = {id}"),
        16 | 17 => format!("insert into loner values ({x}, 'b{}', {big}), ({x})", other % 3),
        18 => format!("update loner set b = 'u{x}' where a = {}", other % 6),
        19 => format!("delete from loner where a = {x}"),
        20 | 21 => format!("insert into swaps values ({id}, {other})"),
        22 => format!(
            "update swaps set place = case id when {id} then \
             (select place from swaps where id = {other}) else \
             (select place from swaps where id = {id}) end where id in ({id}, {other})"
        ),
        23 => format!("update swaps set id = {other} where id = {id}"),
        24 => format!("delete from swaps where id = {id}"),
        25 | 26 => format!(
            "insert into wide values \
             ({x}, 'k{}', '{{\"n\": {other}.50}}', '2024-02-29 12:00:0{x}', \
             '\\xff0{x}', '{{{id},null}}', {other} / 7.0, {x} > 2)",
            id % 4
        ),
        27 => format!("update wide set b = 'k{}', g = 'NaN', c = null where a = {x}", other % 4),
        28 => format!("update wide set f = f || {id} where a = {x}"),
        _ => match n(20) {
            0 => "truncate loner".to_owned(),
            1 => "truncate parent, child".to_owned(),
            2 => "truncate swaps, wide".to_owned(),
            _ => format!("delete from wide where a = {x}"),
        },
    }
}

/// Runs random transactions on the source.
fn run_transactions(source: &PublishedDatabase, random: &mut SplitMix, transactions: u64) {
    let (runtime, client) = crate::run::session(&source.dsn());
    for _ in 0..transactions {
        let mut sql = "begin;".to_owned();
        for _ in 0..=random.below(5) {
            // A failed statement is ignored and changes nothing.
            writeln!(
                sql,
                "do $do$ begin {}; exception when others then null; end $do$;",
                statement(random)
            )
            .unwrap();
        }
        let end = if random.below(9) == 0 { "rollback" } else { "commit" };
        // Deferred constraints may refuse the whole transaction.
        if runtime.block_on(client.batch_execute(&format!("{sql} {end}"))).is_err() {
            runtime.block_on(client.batch_execute("rollback")).unwrap();
        }
    }
}

/// Returns the rows of a database's tables.
fn contents(dsn: &str) -> Vec<String> {
    let rows = |table| {
        ask(dsn, &format!("select string_agg(t::text, E'\\n' order by t::text) from {table} t"))
    };
    NAMES.map(rows).to_vec()
}

/// The actions of the foreign key.
const ACTIONS: [&str; 5] = [
    "",
    "on delete cascade",
    "on delete set null on update cascade",
    "deferrable initially deferred",
    "on update cascade deferrable",
];

/// Replicates one history both ways. Returns how many tables have rows in the end.
fn trial(subscriber: &ThrowawayServer, seed: u64) -> usize {
    let action = ACTIONS[seed as usize % ACTIONS.len()];
    let mut random = SplitMix(seed);
    let source = PublishedDatabase::new(&tables(action));
    run_transactions(&source, &mut random, 30);
    source.run("create publication p for all tables");
    let case = LoadCase::new(&tables(action));
    println!("seed {seed} is in {}", source.name());
    let database = format!("copy_{seed}");
    ask(&subscriber.dsn(), &format!("create database {database} template template0"));
    let native = subscriber.dsn_for(&database);
    ask(&native, &tables(action));
    let connection = source.dsn().replace('\'', "''");
    let subscribe = format!(
        "create subscription native_{seed} connection '{connection}' \
                             publication p"
    );
    ask(&native, &subscribe);
    let is_ready = "select count(*) from pg_subscription_rel where srsubstate <> 'r'";
    wait_until("the subscription has its tables", || ask(&native, is_ready) == "0");
    applied_slot(&source, &case, "--snapshot");
    for _ in 0..3 {
        run_transactions(&source, &mut random, 25);
        let rows = 1 + random.below(90);
        // Send batches directly where possible, or stage all of them.
        let direct = [0, 1000][random.below(2) as usize];
        applied_slot(&source, &case, &format!("--batch-rows {rows} --direct-rows {direct}"));
        assert_eq!(contents(&case.db.dsn()), contents(&source.dsn()), "seed {seed} {action}");
    }
    let end = source.value("select pg_current_wal_lsn()");
    let caught_up = format!(
        "select confirmed_flush_lsn >= '{end}' from pg_replication_slots \
         where slot_name = 'native_{seed}'"
    );
    wait_until("the subscription has caught up", || source.value(&caught_up) == "t");
    let (ours, theirs) = (contents(&case.db.dsn()), contents(&native));
    ask(&native, &format!("drop subscription native_{seed}"));
    ask(&subscriber.dsn(), &format!("drop database {database} with (force)"));
    assert_eq!(ours, theirs, "seed {seed} {action}: not as the subscription");
    theirs.iter().filter(|rows| !rows.is_empty()).count()
}

/// Settings that subscriptions of several databases need at the same time.
const WORKERS: &str = "max_worker_processes = 60\nmax_logical_replication_workers = 50\n\
                       max_sync_workers_per_subscription = 5\n";

#[test]
fn a_subscription_leads_to_the_same_tables() {
    let started = testing::builder().conf(&format!("{CONF}{WORKERS}")).start(&silent);
    let subscriber = started.unwrap_or_else(|error| panic!("{}", error.chain()));
    let limit = number("PGSPATE_TEST_LONG").map(Duration::from_secs);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let first = number("PGSPATE_TEST_SEED").unwrap_or_else(|| limit.map_or(0, |_| now()));
    let (begin, mut seed, mut filled) = (Instant::now(), first, 0);
    while seed == first || limit.is_some_and(|limit| begin.elapsed() < limit) {
        filled += some_at_once(&subscriber, seed);
        seed += ACTIONS.len() as u64;
    }
    let histories = seed - first;
    assert!(filled as u64 > 3 * histories, "{histories} histories end with {filled} filled tables");
    println!("{histories} histories from seed {first} on in {:?}", begin.elapsed());
}

/// Runs one history for each foreign key action, at the same time, with seeds from `first`.
/// Subscriptions start slowly and mostly wait. Returns how many tables have rows in the end.
#[track_caller]
fn some_at_once(subscriber: &ThrowawayServer, first: u64) -> usize {
    let (filled, failed) = thread::scope(|scope| {
        let (mut trials, mut filled, mut failed) = (Vec::new(), 0, Vec::new());
        for seed in first..first + ACTIONS.len() as u64 {
            trials.push((seed, scope.spawn(move || trial(subscriber, seed))));
        }
        for (seed, trial) in trials {
            match ScopedJoinHandle::join(trial) {
                Ok(tables) => filled += tables,
                Err(_) => failed.push(seed),
            }
        }
        (filled, failed)
    });
    let Some(seed) = failed.first() else { return filled };
    panic!(
        "histories of the seeds {failed:?} failed, as is said above; the first again: \
         PGSPATE_TEST_SEED={seed} cargo test -p pgspate-cli --test apply oracle"
    );
}

/// Returns the number in an environment variable, if the variable is set.
pub(crate) fn number(name: &str) -> Option<u64> {
    let number = std::env::var(name).ok()?;
    Some(number.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}
