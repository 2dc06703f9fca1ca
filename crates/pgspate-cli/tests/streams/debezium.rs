//! Applying Debezium's streams of random workloads makes source and target equal.
//!
//! With some settings, connectors cannot represent every value. A trial's workload avoids such
//! values, or the trial excludes their columns: see docs/reference/event-formats.md.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use tempfile::TempDir;

use crate::connector_settings::{ConnectorFeatures, ConnectorSettings};
use crate::database::{WorkloadSource, server};
use crate::debezium_engine::{ConnectorConfig, DebeziumEngine, engine_folder};
use crate::mariadb::{MariaDbDatabase, MariaDbServer, MariaDbWorkload};
use crate::run::ask;
use crate::seeds::run_trials;
use crate::support::LoadCase;
use crate::test_random::TestRandom;
use crate::values::WorkloadLimits;
use crate::workload::{PostgresWorkload, TYPED_TABLES};
use crate::{database, mariadb, workload};

/// A connector and its target.
struct ConnectorStream {
    connector: ConnectorConfig,
    /// The options of `pgspate apply`.
    args: String,
    case: LoadCase,
    /// The number of bytes of the connector's records that were copied to the case's file.
    taken: usize,
}

impl ConnectorStream {
    /// Makes a connector of this class, and a target without the excluded columns.
    fn new(
        nth: usize,
        class: &str,
        features: ConnectorFeatures,
        random: &mut TestRandom,
    ) -> ConnectorStream {
        let variant = ConnectorSettings::random(features, random);
        let is_postgres = class.contains("postgresql");
        let (schema, columns) = match is_postgres {
            true => (workload::schema(), excluded_columns(&variant.excluded_types)),
            false => (mariadb::target_schema(), excluded_mariadb_columns(&variant.excluded_types)),
        };
        let case = LoadCase::new(&schema);
        for (table, column) in &columns {
            case.db.run(&format!("alter table {table} drop column {column}"));
        }
        let name = format!("c{nth}");
        let schema = if is_postgres { "public" } else { "shop_[0-9]+" };
        let columns: Vec<String> =
            columns.iter().map(|(table, column)| format!("{schema}.{table}.{column}")).collect();
        let mut settings = variant.settings;
        let mut set = |name: &str, value: &str| settings.push((name.to_owned(), value.to_owned()));
        set("connector.class", &format!("io.debezium.connector.{class}"));
        set("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        set("topic.prefix", &name);
        set("skipped.operations", "none");
        set("poll.interval.ms", "50");
        set("column.exclude.list", &columns.join(","));
        for (_, value) in &mut settings {
            *value = value.replace("NAME", if is_postgres { "schema" } else { "db" });
            if !is_postgres && value == "adaptive" {
                "adaptive_time_microseconds".clone_into(value);
            }
        }
        let args = match is_postgres {
            true => variant.args,
            false => format!("{} --map SHOP.*=public.*", variant.args),
        };
        ConnectorStream { connector: ConnectorConfig { name, settings }, args, case, taken: 0 }
    }

    /// Adds a setting of the connector.
    fn set(&mut self, name: &str, value: &str) {
        self.connector.settings.push((name.to_owned(), value.to_owned()));
    }

    /// Configures the connector to read the changes of a PostgreSQL database.
    fn read_postgres(&mut self, source: &WorkloadSource) {
        for (name, value) in [
            ("database.hostname", "127.0.0.1"),
            ("database.port", &server().port().to_string()),
            ("database.user", "postgres"),
            ("database.password", server().password()),
            ("database.dbname", &source.name),
            ("plugin.name", "pgoutput"),
            ("slot.name", &format!("{}_{}", source.name, self.connector.name)),
            ("publication.name", "p"),
            ("publication.autocreate.mode", "disabled"),
        ] {
            self.set(name, value);
        }
    }

    /// Configures the connector to read the changes of a MariaDB database.
    fn read_mariadb(&mut self, source: &MariaDbDatabase<'_>, nth: usize) {
        self.args = self.args.replace("SHOP", &source.name);
        for (name, value) in [
            ("database.hostname", "127.0.0.1"),
            ("database.port", &source.server.port.to_string()),
            ("database.user", "reader"),
            ("database.password", "reader"),
            ("database.include.list", &source.name),
            ("database.server.id", &(100 + nth).to_string()),
            ("schema.history.internal", "io.debezium.relational.history.MemorySchemaHistory"),
            ("bigint.unsigned.handling.mode", "precise"),
        ] {
            self.set(name, value);
        }
    }

    /// Applies the complete lines that the engine wrote since the last call. An error has the
    /// message of the failed run.
    fn apply(&mut self, folder: &Path, random: &mut TestRandom) -> Result<(), String> {
        let records = fs::read(folder.join(&self.connector.name)).unwrap();
        let end = records.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let file = OpenOptions::new().create(true).append(true).open(self.case.path("s.ndjson"));
        file.unwrap().write_all(&records[self.taken..end]).unwrap();
        self.taken = end;
        let run = crate::try_in_pieces(&self.case, random, &self.args);
        match run.status {
            Some(0) => Ok(()),
            status => Err(format!("{status:?} {}{}", run.stdout, run.stderr)),
        }
    }

    /// Returns a description of a failed comparison.
    fn failure(&self, trial: &str, part: usize, found: &[String]) -> String {
        let kept = crate::keep_stream(&self.case, &format!("{trial}-{}", self.connector.name));
        let settings = &self.connector.settings;
        format!("{trial} part {part}, {kept}:\n{settings:?}\n{}\n{}", self.args, found.join("\n"))
    }
}

/// Returns the columns of these types.
fn excluded_columns(types: &[&str]) -> Vec<(&'static str, String)> {
    let columns = TYPED_TABLES.iter().flat_map(|(table, all)| {
        let nth = all.iter().enumerate().filter(|(_, ty)| types.contains(ty));
        nth.map(|(nth, _)| (*table, format!("c{nth}")))
    });
    let raw = types.contains(&"raw").then(|| ("large", "raw".to_owned()));
    columns.chain(raw).collect()
}

/// Returns MariaDB's columns of types that correspond to these.
fn excluded_mariadb_columns(types: &[&str]) -> Vec<(&'static str, String)> {
    let mut columns = Vec::new();
    for (ty, theirs) in [
        ("time", "time(6)"),
        ("timestamp", "datetime(6)"),
        ("timestamp(3)", "datetime"),
        ("timestamp(3)", "datetime(3)"),
        ("bit(16)", "bit(9)"),
        // Debezium writes this type as a decimal, or as bytes even if decimals are text.
        ("bit(16)", "bigint unsigned"),
    ] {
        if types.contains(&ty) {
            columns.push(("wide", mariadb::column_of(theirs)));
        }
    }
    columns
}

/// Applies all streams after a part of a trial and compares source and targets.
fn apply_and_compare_all(
    trial: &str,
    part: usize,
    streams: &mut [ConnectorStream],
    folder: &Path,
    random: &mut TestRandom,
    (before, after): (&[String], &[String]),
    differences: &dyn Fn(&LoadCase) -> Vec<String>,
) {
    let mut failed = Vec::new();
    for stream in streams {
        before.iter().for_each(|sql| stream.case.db.run(sql));
        let found = match stream.apply(folder, random) {
            Ok(()) => differences(&stream.case),
            Err(said) => vec![said],
        };
        after.iter().for_each(|sql| stream.case.db.run(sql));
        if !found.is_empty() {
            failed.push(stream.failure(trial, part, &found));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

const STREAMS: usize = 4;
const PARTS: usize = 3;

/// Runs a workload on PostgreSQL and applies several Debezium streams of it.
fn postgres_trial(seed: u64) {
    let mut random = TestRandom::new(seed);
    let features = ConnectorFeatures::random(&mut random);
    let limits = WorkloadLimits {
        special_numbers: features.has_special_numbers,
        truncates: !features.is_flat,
        chains: true,
        beyond_java: false,
        keyless: !features.is_flat,
        large_moves: features.has_headers && !features.is_flat,
    };
    let mut workload = PostgresWorkload::new(seed, limits);
    let source = WorkloadSource::new();
    ask(&source.dsn(), "create publication p for all tables");
    println!("seed {seed} uses database {}: {features:?}", source.name);
    let class = "postgresql.PostgresConnector";
    let new = |nth| ConnectorStream::new(nth, class, features, &mut random);
    let mut streams: Vec<ConnectorStream> = (0..STREAMS).map(new).collect();
    streams.iter_mut().for_each(|stream| stream.read_postgres(&source));
    let folder = TempDir::with_prefix("pgspate-debezium-").unwrap();
    let mut engine = None;
    for part in 0..PARTS {
        let phase = workload.phase(50);
        source.run_transactions(&phase);
        ask(&source.dsn(), &format!("insert into zz_marker values ({part})"));
        let engine = engine.get_or_insert_with(|| start(folder.path(), &streams));
        engine.wait_for_markers(streams.len());
        apply_and_compare_all(
            &format!("postgres-{seed}"),
            part,
            &mut streams,
            folder.path(),
            &mut random,
            (&phase.before, &phase.after),
            &|case| database::differences(&source.dsn(), &case.db),
        );
    }
    engine.unwrap().finish();
}

/// Runs a workload on MariaDB and applies several Debezium streams of it.
fn mariadb_trial(server: &MariaDbServer, seed: u64) {
    let mut random = TestRandom::new(seed);
    let features =
        ConnectorFeatures { has_special_numbers: false, ..ConnectorFeatures::random(&mut random) };
    let mut workload = MariaDbWorkload::new(seed, !features.is_flat);
    let source = MariaDbDatabase::new(server);
    println!("seed {seed} uses database {}: {features:?}", source.name);
    let new = |nth| ConnectorStream::new(nth, "mariadb.MariaDbConnector", features, &mut random);
    let mut streams: Vec<ConnectorStream> = (0..STREAMS).map(new).collect();
    for (nth, stream) in streams.iter_mut().enumerate() {
        stream.read_mariadb(&source, nth);
    }
    let folder = TempDir::with_prefix("pgspate-debezium-").unwrap();
    let mut engine = None;
    for part in 0..PARTS {
        let phase = workload.phase(40);
        source.try_each(&phase.sql);
        source.run(&format!("insert into zz_marker values ({part})"));
        let engine = engine.get_or_insert_with(|| start(folder.path(), &streams));
        engine.wait_for_markers(streams.len());
        apply_and_compare_all(
            &format!("mariadb-{seed}"),
            part,
            &mut streams,
            folder.path(),
            &mut random,
            (&phase.before, &phase.after),
            &|case| mariadb::differences(&source, &case.db),
        );
    }
    engine.unwrap().finish();
}

/// Starts the connectors of all streams.
fn start(folder: &Path, streams: &[ConnectorStream]) -> DebeziumEngine {
    let connectors: Vec<&ConnectorConfig> =
        streams.iter().map(|stream| &stream.connector).collect();
    DebeziumEngine::start(&engine_folder().unwrap(), folder, &connectors)
}

#[test]
fn debezium_of_postgresql_leads_to_the_same_tables() {
    match engine_folder() {
        Some(_) => run_trials("debezium_of_postgresql", 6, &postgres_trial),
        None => println!("Debezium is not built: `make test-debezium` does that"),
    }
}

#[test]
fn debezium_of_mariadb_leads_to_the_same_tables() {
    match engine_folder() {
        Some(_) => {
            let server = MariaDbServer::start();
            run_trials("debezium_of_mariadb", 6, &|seed| mariadb_trial(&server, seed));
        }
        None => println!("Debezium is not built: `make test-debezium` does that"),
    }
}
