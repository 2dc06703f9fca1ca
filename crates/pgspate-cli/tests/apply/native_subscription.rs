//! PostgreSQL's own logical replication as the reference. A subscription and `pgspate apply` get
//! the same random history and must lead to the same tables.
//!
//! By default the test runs one history for each clause of the foreign key.
//! `PGSPATE_TEST_LONG=300` runs new histories for 300 seconds. `PGSPATE_TEST_SEED=7` begins with
//! the history of seed 7.

use std::fmt::Write as _;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pgspate_embedded::{ThrowawayServer, silent, testing};

use crate::random_history::SplitMix;
use crate::run::{ask, wait_until};
use crate::source::{CONF, PublishedDatabase, apply_slot_and_report};
use crate::support::LoadCase;

const TABLES: [&str; 5] = ["parent", "child", "loner", "swaps", "wide"];

/// Returns the SQL that creates the tables, with this clause of the foreign key.
fn create_tables(clause: &str) -> String {
    format!(
        "create table parent (id int primary key, code text unique, note text);
         create table child (id int primary key, parent int references parent {clause},
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

/// Returns a random statement, which may fail.
fn random_statement(random: &mut SplitMix) -> String {
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
                random_statement(random)
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

/// Returns the rows of each table in a database.
fn table_rows(dsn: &str) -> Vec<String> {
    let rows = |table| {
        ask(dsn, &format!("select string_agg(t::text, E'\\n' order by t::text) from {table} t"))
    };
    TABLES.map(rows).to_vec()
}

/// The clauses that follow `references parent` in the foreign key.
const FOREIGN_KEY_CLAUSES: [&str; 5] = [
    "",
    "on delete cascade",
    "on delete set null on update cascade",
    "deferrable initially deferred",
    "on update cascade deferrable",
];

/// Replicates one history with a subscription and with `pgspate apply`, and compares the tables.
/// Returns how many tables have rows in the end.
fn replicate_history(subscriber: &ThrowawayServer, seed: u64) -> usize {
    let clause = FOREIGN_KEY_CLAUSES[seed as usize % FOREIGN_KEY_CLAUSES.len()];
    let mut random = SplitMix(seed);
    let source = PublishedDatabase::new(&create_tables(clause));
    run_transactions(&source, &mut random, 30);
    source.run("create publication p for all tables");
    let case = LoadCase::new(&create_tables(clause));
    println!("seed {seed}: the source database is {}", source.name());
    let database = format!("copy_{seed}");
    ask(&subscriber.dsn(), &format!("create database {database} template template0"));
    let native = subscriber.dsn_for(&database);
    ask(&native, &create_tables(clause));
    let connection = source.dsn().replace('\'', "''");
    let subscribe = format!(
        "create subscription native_{seed} connection '{connection}' \
                             publication p"
    );
    ask(&native, &subscribe);
    let is_ready = "select count(*) from pg_subscription_rel where srsubstate <> 'r'";
    wait_until("the subscription has copied its tables", || ask(&native, is_ready) == "0");
    apply_slot_and_report(&source, &case, "--snapshot");
    for _ in 0..3 {
        run_transactions(&source, &mut random, 25);
        let rows = 1 + random.below(90);
        // Send batches directly where possible, or stage all of them.
        let direct = [0, 1000][random.below(2) as usize];
        apply_slot_and_report(
            &source,
            &case,
            &format!("--batch-rows {rows} --direct-rows {direct}"),
        );
        assert_eq!(table_rows(&case.db.dsn()), table_rows(&source.dsn()), "seed {seed} {clause}");
    }
    let end = source.value("select pg_current_wal_lsn()");
    let caught_up = format!(
        "select confirmed_flush_lsn >= '{end}' from pg_replication_slots \
         where slot_name = 'native_{seed}'"
    );
    wait_until("the subscription has caught up", || source.value(&caught_up) == "t");
    let (ours, theirs) = (table_rows(&case.db.dsn()), table_rows(&native));
    ask(&native, &format!("drop subscription native_{seed}"));
    ask(&subscriber.dsn(), &format!("drop database {database} with (force)"));
    assert_eq!(
        ours, theirs,
        "seed {seed} {clause}: the tables differ from the subscription's tables"
    );
    theirs.iter().filter(|rows| !rows.is_empty()).count()
}

/// Settings that subscriptions of several databases need at the same time.
const WORKER_SETTINGS: &str = "max_worker_processes = 60\nmax_logical_replication_workers = 50\n\
                       max_sync_workers_per_subscription = 5\n";

#[test]
fn apply_and_a_subscription_lead_to_the_same_tables() {
    let started = testing::builder().conf(&format!("{CONF}{WORKER_SETTINGS}")).start(&silent);
    let subscriber = started.unwrap_or_else(|error| panic!("{}", error.chain()));
    let limit = env_number("PGSPATE_TEST_LONG").map(Duration::from_secs);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let first = env_number("PGSPATE_TEST_SEED").unwrap_or_else(|| limit.map_or(0, |_| now()));
    let (begin, mut seed, mut filled) = (Instant::now(), first, 0);
    while seed == first || limit.is_some_and(|limit| begin.elapsed() < limit) {
        filled += run_histories_in_parallel(&subscriber, seed);
        seed += FOREIGN_KEY_CLAUSES.len() as u64;
    }
    let histories = seed - first;
    assert!(filled as u64 > 3 * histories, "{histories} histories filled only {filled} tables");
    println!("ran {histories} histories in {:?}, beginning with seed {first}", begin.elapsed());
}

/// Runs one history for each clause of the foreign key, with seeds from `first`. Returns how many
/// tables have rows in the end. The histories run in parallel, because subscriptions start slowly
/// and mostly wait.
#[track_caller]
fn run_histories_in_parallel(subscriber: &ThrowawayServer, first: u64) -> usize {
    let (filled, failed) = thread::scope(|scope| {
        let (mut trials, mut filled, mut failed) = (Vec::new(), 0, Vec::new());
        for seed in first..first + FOREIGN_KEY_CLAUSES.len() as u64 {
            trials.push((seed, scope.spawn(move || replicate_history(subscriber, seed))));
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
        "the histories of seeds {failed:?} failed; their panics are above. To repeat the first: \
         PGSPATE_TEST_SEED={seed} cargo test -p pgspate-cli --test apply native_subscription"
    );
}

/// Returns the number in an environment variable, if the variable is set.
pub(crate) fn env_number(name: &str) -> Option<u64> {
    let number = std::env::var(name).ok()?;
    Some(number.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}
