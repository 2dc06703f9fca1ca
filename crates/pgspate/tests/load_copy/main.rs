//! pgspate's first promise: a load stores the rows that `\copy` would store, or refuses the input
//! with the same message for the same row.
//!
//! The test loads random files into random tables twice, by COPY and by pgspate, in sessions with
//! random settings. `PGSPATE_TEST_SECONDS` is the duration (default 10), `PGSPATE_TEST_SEED` the
//! first seed.

mod case;
mod random;
mod spellings;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::SinkExt;
use pgspate::load::{self, LoadWatch};
use pgspate::target::connect::{Dsn, Environment};
use pgspate_embedded::testing::{self, TestDb};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use case::{CopyCase, TYPES_SQL};
use random::CopyRandom;

/// The outcome of loading a file.
#[derive(Debug, PartialEq)]
enum LoadFileOutcome {
    /// The number of rows.
    Loaded(u64),
    /// The SQLSTATE, the message, and the number of the row if it is known.
    Refused(String, String, Option<u64>),
}

impl LoadFileOutcome {
    /// Returns whether the outcome agrees with COPY's outcome. If a row has too few fields, pgspate
    /// reports the missing field, and COPY may report an invalid value of the same row.
    fn is_like(&self, by_copy: &LoadFileOutcome) -> bool {
        match (self, by_copy) {
            // pgspate refuses an end-of-copy marker in the middle. COPY may skip the rows after it.
            (LoadFileOutcome::Refused(_, message, _), _)
                if message.contains("end-of-copy marker") =>
            {
                true
            }
            (
                LoadFileOutcome::Refused(state, message, row),
                LoadFileOutcome::Refused(copy_state, _, copy_row),
            ) => {
                let is_short = message.starts_with("missing data for") && row == copy_row;
                // The message quotes the bytes after an invalid byte, and these bytes differ. Also,
                // COPY may check more of the file before it has finished a row.
                let is_encoding = state == "22021" || copy_state == "22021";
                self == by_copy || is_short || is_encoding
            }
            _ => self == by_copy,
        }
    }
}

/// A database with a schema for the tables of pgspate and a schema for those of COPY.
struct CopyDatabase {
    db: TestDb,
    folder: tempfile::TempDir,
    runtime: Runtime,
}

impl CopyDatabase {
    fn new() -> CopyDatabase {
        let db = testing::database();
        db.run(TYPES_SQL);
        db.run("create schema by_pgspate; create schema by_copy");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        CopyDatabase { db, folder: tempfile::tempdir().unwrap(), runtime: runtime.unwrap() }
    }

    fn dsn(&self, case: &CopyCase) -> String {
        format!("{} options='{}'", self.db.dsn(), case.options())
    }

    /// Opens a session with the case's settings.
    fn session(&self, case: &CopyCase) -> Client {
        let dsn = self.dsn(case);
        self.runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&dsn, NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        })
    }

    fn generate(&self, seed: u64) -> CopyCase {
        let mut random = CopyRandom::new(seed);
        let mut case = CopyCase::new(&mut random);
        let all = case.spellings(&mut random);
        let client = self.session(&case);
        let valid = all.iter().zip(&case.columns).map(|(spellings, column)| {
            let sql = "select s from unnest($2::text[]) s where is_valid($1, s)";
            let rows = self.runtime.block_on(client.query(sql, &[&column.ty, spellings])).unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        });
        let valid: Vec<Vec<String>> = valid.collect();
        case.fill(&valid, &all, &mut random);
        case
    }

    /// Returns how the results of COPY and pgspate differ, or `None`.
    fn difference(&self, case: &CopyCase) -> Option<String> {
        let client = self.session(case);
        let (ours, theirs) = ("by_pgspate.t", "by_copy.t");
        self.runtime.block_on(async {
            let sql = format!(
                "drop table if exists {ours}, {theirs}; {}; {}",
                case.create(ours),
                case.create(theirs)
            );
            client.batch_execute(&sql).await.unwrap();
        });
        let file = case.file();
        let by_copy = self.runtime.block_on(load_by_copy(&client, case, theirs, &file));
        let by_pgspate = self.load_by_pgspate(case, ours, &file);
        if !by_pgspate.is_like(&by_copy) {
            return Some(format!("by COPY: {by_copy:?}\nby pgspate: {by_pgspate:?}"));
        }
        let rows = |table: &str| {
            let sql = format!("select t::text from {table} t order by 1");
            let rows = self.runtime.block_on(client.query(&sql, &[])).unwrap();
            rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
        };
        let (by_copy, by_pgspate) = (rows(theirs), rows(ours));
        if by_copy != by_pgspate {
            let differs = by_copy.iter().zip(&by_pgspate).find(|(copy, ours)| copy != ours);
            return Some(format!("rows differ, by COPY and by pgspate: {differs:#?}"));
        }
        // Rows with the same text may still have different bytes.
        let images = format!(
            "select count(*) from (select row_number() over (order by t::text), t from {ours} t) a \
             join (select row_number() over (order by t::text), t from {theirs} t) b \
             using (row_number) where a.t *<> b.t"
        );
        let row = self.runtime.block_on(client.query_one(&images, &[])).unwrap();
        (row.get::<_, i64>(0) > 0).then(|| "the rows' images differ".to_owned())
    }

    fn load_by_pgspate(&self, case: &CopyCase, table: &str, file: &[u8]) -> LoadFileOutcome {
        let path = self.folder.path().join("input");
        std::fs::write(&path, file).unwrap();
        let environment = Environment::capture().unwrap();
        let dsn = Dsn::resolve(Some(&self.dsn(case)), &environment).unwrap().unwrap();
        let options = case.load(table, path.to_str().unwrap());
        let load = load::prepare(options, dsn, self.runtime.handle()).unwrap();
        match load.run(&Arc::new(LoadWatch::default())) {
            Ok(report) => LoadFileOutcome::Loaded(report.rows_written),
            Err(error) => {
                let message = match error.refusal() {
                    Some(refusal) => {
                        let text = refusal.to_string();
                        text.split(" (SQLSTATE").next().unwrap_or_default().to_owned()
                    }
                    None => std::error::Error::source(&error).unwrap().to_string(),
                };
                let state = error.sqlstate().map_or("none", |state| state.code()).to_owned();
                let line = error.place().and_then(|place| place.line);
                LoadFileOutcome::Refused(
                    state,
                    message,
                    line.map(|line| case.row_beginning_at(line)),
                )
            }
        }
    }

    /// Returns a smaller case in which pgspate and COPY still differ.
    fn shrink(&self, mut case: CopyCase) -> CopyCase {
        let mut step = case.rows.len();
        while step > 0 {
            let mut at = 0;
            while at < case.rows.len() {
                let mut smaller = case.clone();
                smaller.rows.drain(at..(at + step).min(case.rows.len()));
                if self.difference(&smaller).is_some() {
                    case = smaller;
                } else {
                    at += step;
                }
            }
            step /= 2;
        }
        let mut nth = 0;
        while nth < case.rubbish.len() {
            let mut smaller = case.clone();
            smaller.rubbish.remove(nth);
            if self.difference(&smaller).is_some() {
                case = smaller;
            } else {
                nth += 1;
            }
        }
        nth = 0;
        while nth < case.columns.len() && case.columns.len() > 1 {
            let mut smaller = case.clone();
            smaller.columns.remove(nth);
            smaller
                .rows
                .iter_mut()
                .filter(|row| nth < row.len())
                .for_each(|row| drop(row.remove(nth)));
            if self.difference(&smaller).is_some() {
                case = smaller;
            } else {
                nth += 1;
            }
        }
        case
    }
}

async fn load_by_copy(
    client: &Client,
    case: &CopyCase,
    table: &str,
    file: &[u8],
) -> LoadFileOutcome {
    let sink = client.copy_in::<_, Bytes>(&case.copy(table)).await.unwrap();
    let mut sink = Box::pin(sink);
    let _ = sink.send(Bytes::copy_from_slice(file)).await;
    match sink.as_mut().finish().await {
        Ok(rows) => LoadFileOutcome::Loaded(rows),
        Err(error) => {
            let said = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
            let line: Option<u64> = said.where_().and_then(|context| {
                // An error in JSON has its own context line before COPY's line.
                let rest = context.lines().find_map(|line| line.strip_prefix("COPY t, line "))?;
                rest.split([',', ':']).next()?.trim().parse().ok()
            });
            let line = line.map(|line| case.row_ending_at(line));
            let state = said.code().code().to_owned();
            LoadFileOutcome::Refused(state, said.message().to_owned(), line)
        }
    }
}

fn env_number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

#[test]
fn random_files_are_loaded_as_copy_loads_them() {
    let bench = CopyDatabase::new();
    let budget = Duration::from_secs(env_number("PGSPATE_TEST_SECONDS", 10));
    let (first, begin) = (env_number("PGSPATE_TEST_SEED", 1), Instant::now());
    let mut differences = 0;
    let mut seed = first;
    while begin.elapsed() < budget && differences < 10 {
        let case = bench.generate(seed);
        if bench.difference(&case).is_some() {
            let case = bench.shrink(case);
            let difference = bench
                .difference(&case)
                .unwrap_or_else(|| "the difference did not occur again".to_owned());
            println!("seed {seed}: {difference}\n{}", case.reproduction());
            differences += 1;
        }
        seed += 1;
    }
    println!("compared {} cases", seed - first);
    assert_eq!(differences, 0);
}
