//! Tests of random tables, sources and scopes, while another session writes outside of the scope.
//!
//! After a sync, the scope equals the source, and all other rows are as the other session left
//! them. A killed sync leaves the old rows or the new rows. `PGSPATE_TEST_SECONDS` is the duration
//! (default 10), `PGSPATE_TEST_SEED` the first seed.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::run::{session, wait_until};
use crate::support::LoadCase;
use crate::test_random::{TestRandom, from_environment};
use crate::{command, finish, spawn, sync};

/// Types with valid values. Some values of a type are equal and have different bytes.
const TYPES: [(&str, &[&str]); 9] = [
    ("int", &["0", "1", "-7", "2147483647"]),
    ("text", &["a", "A", "a b", "\"x,y\"", "ü", "\"\""]),
    ("numeric", &["1", "1.0", "1.00", "-0.5", "NaN", "1e20"]),
    ("numeric(8,2)", &["1", "1.0", "1.005", "-0.50", "NaN"]),
    ("float8", &["0", "-0", "NaN", "Infinity", "1e-300"]),
    ("timestamptz", &["2026-01-01 00:00:00+00", "infinity", "0044-03-15 12:00:00+00 BC"]),
    ("jsonb", &["1", "\"{\"\"a\"\": 1.0}\"", "\"{\"\"a\"\": 1}\"", "null"]),
    ("json", &["1", "\"{\"\"a\"\": 1}\"", "\"{\"\"a\"\":1}\""]),
    ("char(3)", &["a", "ab", "abc"]),
];

/// The scope in which the other session writes. No source contains this scope.
const OUTSIDE_SCOPE: u64 = 99;
/// The first id of the rows in the scope `OUTSIDE_SCOPE`.
const OUTSIDE_ID: u64 = 1000;

/// Makes pgspate find rows by key, as in a distributed table of Citus.
const AS_IF_DISTRIBUTED: &str = "\
set allow_system_table_mods = on;
create table pg_catalog.pg_dist_partition (logicalrelid regclass);
insert into pg_catalog.pg_dist_partition values ('t')";

/// Selects the rows of the scopes that the syncs may change.
const SELECT_INSIDE: &str = "select * from t where scope <> 99";

/// A random table with random flags of a sync.
struct SyncSetting {
    columns: Vec<usize>,
    /// The columns of the key, with or without the column `scope`.
    key: &'static str,
    has_index: bool,
    flags: &'static str,
    /// Selects the expected rows from the tables `src` and `old`.
    expected: String,
}

impl SyncSetting {
    fn random(chance: &mut TestRandom) -> SyncSetting {
        let columns = (0..chance.among(1..=3)).map(|_| chance.among(0..=8) as usize).collect();
        let key = chance.pick(&["scope,id", "id"]);
        let same_key = match key {
            "id" => "s.id = o.id",
            _ => "(s.scope, s.id) is not distinct from (o.scope, o.id)",
        };
        // Rows of the scope `OUTSIDE_SCOPE` are compared separately.
        let rest = |stays: &str| {
            format!("select * from src union all select * from old o where scope <> 99 and {stays}")
        };
        let (flags, expected) = match chance.among(0..=3) {
            0 => {
                ("--scope-by scope", rest("not exists (select from src s where s.scope = o.scope)"))
            }
            1 => ("--scope scope<5", rest("not scope < 5")),
            2 => ("--no-delete", rest(&format!("not exists (select from src s where {same_key})"))),
            _ => (
                "--insert-only",
                format!(
                    "select * from old where scope <> 99 union all select * from src s \
                     where not exists (select from old o where {same_key})"
                ),
            ),
        };
        SyncSetting { columns, key, has_index: chance.among(0..=3) > 0, flags, expected }
    }

    fn create(&self, name: &str) -> String {
        let mut sql = format!("create table {name} (scope int not null, id int not null");
        for (nth, of) in self.columns.iter().enumerate() {
            write!(sql, ", c{nth} {}", TYPES[*of].0).unwrap();
        }
        sql + ")"
    }

    /// Returns rows with unique keys and scopes below `scopes`.
    fn rows(&self, chance: &mut TestRandom, scopes: u64) -> String {
        let mut text = String::new();
        for id in 0..chance.among(0..=60) {
            // Each id has only one scope, so the id alone can be the key.
            let scope = id % 10;
            if scope < scopes && chance.among(0..=2) > 0 {
                write!(text, "{scope},{id}").unwrap();
                for of in &self.columns {
                    let value = match chance.among(0..=4) {
                        0 => "",
                        _ => chance.pick(TYPES[*of].1),
                    };
                    write!(text, ",{value}").unwrap();
                }
                text.push('\n');
            }
        }
        text
    }
}

/// Returns the rows that only one of two queries has, or an empty string.
fn rows_in_one_query_only(case: &LoadCase, left: &str, right: &str) -> String {
    let text = |query: &str| format!("select x::text from ({query}) x");
    case.value(&format!(
        "select coalesce(string_agg(row, '; '), '') from ( \
             (select '-' || a.x as row from ({0}) a(x) \
              except all select '-' || b.x from ({1}) b(x)) \
             union all \
             (select '+' || b.x from ({1}) b(x) except all select '+' || a.x from ({0}) a(x))) d",
        text(left),
        text(right)
    ))
}

/// Writes rows of the scope `OUTSIDE_SCOPE` into `t` and the same rows into `outside`, until `stop`
/// is set.
fn write_outside(dsn: &str, seed: u64, stop: &AtomicBool) {
    let (runtime, client) = session(dsn);
    let mut chance = TestRandom::new(seed);
    while !stop.load(Relaxed) {
        let id = OUTSIDE_ID + chance.among(0..=9);
        let change = |table: &str, what: u64| match what {
            0 => format!("insert into {table} (scope, id) values ({OUTSIDE_SCOPE}, {id})"),
            1 => format!("delete from {table} where scope = {OUTSIDE_SCOPE} and id = {id}"),
            _ => {
                format!("update {table} set c0 = null where scope = {OUTSIDE_SCOPE} and id = {id}")
            }
        };
        let what = chance.among(0..=2);
        let once = match what {
            // Each key has one row, also if no unique index enforces this.
            0 => format!("delete from t where id = {id}; delete from outside where id = {id};"),
            _ => String::new(),
        };
        let sql =
            format!("begin; {once} {}; {}; commit", change("t", what), change("outside", what));
        runtime.block_on(client.batch_execute(&sql)).unwrap();
    }
}

fn check_table(case: &LoadCase, setting: &SyncSetting, what: &str) {
    let wrong = rows_in_one_query_only(case, &setting.expected, SELECT_INSIDE);
    assert_eq!(wrong, "", "{what}: the scope, {}", setting.flags);
    let wrong =
        rows_in_one_query_only(case, "select * from outside", "select * from t where scope = 99");
    assert_eq!(wrong, "", "{what}: outside, {}", setting.flags);
}

fn check_random_sync(seed: u64) {
    let mut chance = TestRandom::new(seed);
    let setting = SyncSetting::random(&mut chance);
    let case = LoadCase::new(&format!("{}; {}", setting.create("t"), setting.create("src")));
    if setting.has_index {
        case.db.run(&format!("alter table t add primary key ({})", setting.key));
    }
    if setting.has_index && chance.among(0..=3) == 0 {
        case.db.run(AS_IF_DISTRIBUTED);
    }
    case.put("old.csv", setting.rows(&mut chance, 10));
    let source = setting.rows(&mut chance, 5);
    case.put("t.csv", &source);
    case.put("src.csv", &source);
    for name in ["old", "src"] {
        if std::fs::read(case.path(&format!("{name}.csv"))).unwrap().is_empty() {
            continue;
        }
        let table = if name == "old" { "t" } else { "src" };
        case.load(&format!("{name}.csv --table {table} --header no --no-ledger")).success();
    }
    case.db.run(
        "create table old as select * from t; create table outside as select * from t where false",
    );
    let names = (0..setting.columns.len()).map(|nth| format!(",c{nth}")).collect::<String>();
    let shares = chance.among(1..=3);
    let flag = chance.pick(&["--lanes", "--transactions", "--vacuum --transactions"]);
    let ahead = chance.pick(&["always", "never"]);
    let args = format!(
        "t.csv --table t --header no --columns scope,id{names} --key {} {} --max-delete 100 \
         --allow-empty --quiet {flag} {shares} --read-ahead {ahead}",
        setting.key, setting.flags
    );
    if source.is_empty() {
        return;
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| write_outside(&case.db.dsn(), seed, &stop));
        if chance.among(0..=3) == 0 {
            let mut child = spawn(&mut command(&case, &args));
            thread::sleep(Duration::from_millis(chance.among(0..=120)));
            child.kill().unwrap();
            finish(child);
            wait_until("its session is gone", || case.is_quiet());
            // With several sessions or transactions, each scope is old or new by itself.
            let parts: Vec<String> = match shares {
                1 => vec!["true".to_owned()],
                _ => (0..10).map(|scope| format!("scope = {scope}")).collect(),
            };
            for part in parts {
                let of = |query: &str| format!("select * from ({query}) q where {part}");
                let is = |query: &str| {
                    rows_in_one_query_only(&case, &of(query), &of(SELECT_INSIDE)).is_empty()
                };
                let either = is("select * from old") || is(&setting.expected);
                assert!(either, "seed {seed}: {args}: {part}");
            }
        }
        let run = sync(&case, &args);
        stop.store(true, Relaxed);
        assert_eq!(run.status, Some(0), "seed {seed}: {args}\n{}", run.stderr);
    });
    check_table(&case, &setting, &format!("seed {seed}"));
    // A second sync writes nothing.
    let before = case.rows("(select ctid, xmin, * from t)");
    assert_eq!(sync(&case, &args).status, Some(0));
    assert_eq!(case.rows("(select ctid, xmin, * from t)"), before, "seed {seed}");
}

#[test]
fn random_syncs_make_the_scope_equal_to_the_source_and_keep_all_else() {
    let budget = Duration::from_secs(from_environment("PGSPATE_TEST_SECONDS").unwrap_or(10));
    let (first, begin) = (from_environment("PGSPATE_TEST_SEED").unwrap_or(1), Instant::now());
    let mut seed = first;
    while begin.elapsed() < budget {
        check_random_sync(seed);
        seed += 1;
    }
    println!("ran {} random syncs", seed - first);
}
