//! Applying wal2json's stream of a random workload makes source and target equal.

use std::fs::OpenOptions;
use std::io::Write;

use crate::database::{WorkloadSource, differences, server};
use crate::run::{session, try_ask};
use crate::seeds::run_trials;
use crate::support::LoadCase;
use crate::test_random::TestRandom;
use crate::values::WorkloadLimits;
use crate::workload::{PostgresWorkload, schema};

/// Returns random settings of the plugin.
fn random_options(random: &mut TestRandom) -> Vec<(&'static str, &'static str)> {
    let mut options = vec![("format-version", random.pick(&["1", "2"]))];
    for name in [
        "include-xids",
        "include-timestamp",
        "include-pk",
        "include-types",
        "include-typmod",
        "include-type-oids",
        "include-not-null",
        "include-default",
        "include-lsn",
        "include-domain-data-type",
        "include-column-positions",
        "include-transaction",
    ] {
        if random.below(3) == 0 {
            options.push((name, random.pick(&["1", "0"])));
        }
    }
    options
}

/// Returns the lines that the slot has, and removes them from the slot.
fn take_slot_lines(source: &WorkloadSource, options: &[(&str, &str)]) -> String {
    let options: String =
        options.iter().map(|(name, value)| format!(", '{name}', '{value}'")).collect();
    let (runtime, client) = session(&source.dsn());
    let sql = format!(
        "select data from pg_logical_slot_get_changes('w_{}', null, null{options})",
        source.name
    );
    let rows = runtime.block_on(client.query(&sql, &[])).unwrap();
    rows.iter().map(|row| format!("{}\n", row.get::<_, String>(0))).collect()
}

/// Runs a workload and applies wal2json's stream of it.
fn trial(seed: u64) {
    let mut random = TestRandom::new(seed);
    let options = random_options(&mut random);
    let is = |name, value| options.contains(&(name, value));
    let limits = WorkloadLimits {
        special_numbers: false,
        truncates: is("format-version", "2"),
        chains: !is("include-transaction", "0"),
        beyond_java: true,
        keyless: true,
        large_moves: true,
    };
    let mut workload = PostgresWorkload::new(seed, limits);
    let source = WorkloadSource::new();
    let case = LoadCase::new(&schema());
    let slot =
        format!("select pg_create_logical_replication_slot('w_{}', 'wal2json')", source.name);
    crate::run::ask(&source.dsn(), &slot);
    println!("seed {seed} uses database {}: {options:?}", source.name);
    for part in 0..3 {
        let phase = workload.phase(40);
        source.run_transactions(&phase);
        phase.before.iter().for_each(|sql| case.db.run(sql));
        let lines = take_slot_lines(&source, &options);
        let file = OpenOptions::new().create(true).append(true).open(case.path("s.ndjson"));
        file.unwrap().write_all(lines.as_bytes()).unwrap();
        crate::apply_in_pieces(&case, &mut random, "");
        phase.after.iter().for_each(|sql| case.db.run(sql));
        let found = differences(&source.dsn(), &case.db);
        if !found.is_empty() {
            let kept = crate::keep_stream(&case, &format!("wal2json-{seed}"));
            panic!("seed {seed} {options:?} part {part}, {kept}:\n{}", found.join("\n"));
        }
    }
}

#[test]
fn wal2json_leads_to_the_same_tables() {
    let slot = "select pg_create_logical_replication_slot('is_there', 'wal2json')";
    if let Err(error) = try_ask(&server().dsn(), slot) {
        println!("wal2json is not there: {error:?}; Debian has it as postgresql-15-wal2json");
        return;
    }
    run_trials("wal2json", 4, &trial);
}
