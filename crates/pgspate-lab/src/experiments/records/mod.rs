//! Single records into tables that grow: what indexes and partitions cost, and what batches save.
//!
//! A trial fills its table to three sizes in turn and measures writing at each size. Trials that
//! write one record at a time also measure reading. At the end, the first rows must be the same in
//! all trials of a table.

mod figures;
mod reads;
mod tables;
mod writing;

use pgspate::Result;

use super::sending::{failed, number, wal_bytes};
use crate::data::accounts::{BankAccounts, BankTable, TABLES};
use crate::data::{self, NumberedRows, scaled};
use crate::report::figure::Figure;
use crate::{
    Comparison, Experiment, Factor, LabRunSetup, LabTrial, Publication, PublishedResults, Results,
    TrialContext, TrialOutcome, Unit,
};
use writing::{BankRows, RecordMethod};

const TABLE: &str = "table";
const WRITING: &str = "writing";
const WITHOUT: &str = "without index";
const SHAPE: &str = "shape";

const NO_INDEX: &str = "none";
const PLAIN: &str = "plain";
const PARTITIONED: &str = "partitioned";

/// The numbers of rows at which a table is measured, at scale 1.
const SIZES: [u64; 3] = [1_000_000, 15_000_000, 30_000_000];
/// The greatest number of records that are written one at a time at each size.
const RECORDS_MAX: u64 = 10_000;
/// The number of batches. A batch has the number of single records divided by `BATCH_ROWS_SHARE`.
const BATCHES: u64 = 10;
const BATCH_ROWS_SHARE: u64 = 2;

/// The experiment that writes single records and batches into growing tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordsExperiment;

fn sizes(scale: f64) -> [u64; 3] {
    SIZES.map(|size| scaled(size, scale).max(20))
}

/// Returns the number of records at each size: at most half of the existing rows.
fn records(scale: f64) -> u64 {
    (sizes(scale)[0] / 2).min(RECORDS_MAX)
}

fn table(trial: &LabTrial) -> BankTable {
    let found = TABLES.into_iter().find(|table| trial.is(TABLE, table.name()));
    found.unwrap_or(BankTable::Transaction)
}

impl Experiment for RecordsExperiment {
    fn name(&self) -> &'static str {
        "records"
    }

    fn title(&self) -> &'static str {
        "Single records, as tables grow"
    }

    fn question(&self) -> &'static str {
        "Records come one at a time into wide tables with indexes. How many records a second are \
         committed as the tables grow? What do indexes and partitions cost, how fast are reads, \
         and what do batches gain?"
    }

    fn published(&self) -> Option<PublishedResults> {
        Some(PublishedResults {
            source: Publication {
                title: "Vadzim Tashlikovich, How fast can one create records in a low-budget \
                        Amazon Cloud PostgreSQL?",
                url: "https://medium.com/@vtashlikovich/how-fast-can-one-create-records-in-a-low-\
                      budget-amazon-cloud-postgresql-b3f7ac79eeb8",
            },
            setting: "A load test with a bank's tables on a small managed PostgreSQL: account \
                      (964 bytes a row, one index) and transaction (1,097 bytes, four indexes), \
                      one insert at a time.",
            figures: vec![
                ("account", "490 a second"),
                ("transaction, one index left out or another", "370 to 396 a second"),
                ("transaction, at 30 million rows", "348 a second"),
            ],
        })
    }

    fn factors(&self, _setup: &LabRunSetup) -> Vec<Factor> {
        let names =
            BankTable::Transaction.indexes().iter().map(|columns| BankTable::index_name(columns));
        let mut without = Factor::new(WITHOUT, &[NO_INDEX]);
        without.levels.extend(names);
        vec![
            Factor::new(TABLE, &[BankTable::Transaction.name(), BankTable::Account.name()]),
            Factor::new(WRITING, &RecordMethod::ALL.map(RecordMethod::name)),
            without,
            Factor::new(SHAPE, &[PLAIN, PARTITIONED]),
        ]
    }

    fn makes_sense(&self, trial: &LabTrial) -> bool {
        let without = trial.level(WITHOUT);
        let changed = [
            !trial.is(WRITING, RecordMethod::Single.name()),
            without != NO_INDEX,
            trial.is(SHAPE, PARTITIONED),
        ];
        let changed = changed.iter().filter(|is_changed| **is_changed).count();
        let has = |columns: &str| BankTable::index_name(columns) == without;
        let is_there =
            without == NO_INDEX || table(trial).indexes().iter().any(|columns| has(columns));
        changed <= 1 && is_there
    }

    fn scale_default(&self) -> f64 {
        0.002
    }

    fn trial_seconds(&self, scale: f64) -> f64 {
        4.0 + 1000.0 * scale
    }

    fn columns(&self) -> Vec<&'static str> {
        vec!["small, rows a second", "large, rows a second", "WAL per row"]
    }

    fn prepare(&self, _ground: &TrialContext) -> Result<()> {
        // Each trial creates its own table, because the indexes of the tables differ.
        Ok(())
    }

    fn run(&self, trial: &LabTrial, context: &TrialContext) -> Result<TrialOutcome> {
        let (table, writing) = (table(trial), RecordMethod::named(trial.level(WRITING)));
        tables::make(table, trial.level(WITHOUT), trial.is(SHAPE, PARTITIONED), context)?;
        let rows = BankAccounts::new(context.seed());
        let all = BankRows { bank: &rows, table, accounts: sizes(context.scale())[2] };
        let records = records(context.scale());
        let connection = context.connect()?;
        let mut outcome = TrialOutcome::default();
        let mut id = 1;
        for (name, size) in ["small", "middle", "large"].into_iter().zip(sizes(context.scale())) {
            context.check()?;
            let filled = id..(size + 1).max(id);
            id = filled.end;
            context.block_on(async {
                let mut some = NumberedRows::new(filled, |id, out| all.text(id, out));
                data::copy(&connection.client, table.name(), &mut some).await?;
                let analyze = format!("analyze {}", table.name());
                let done = connection.client.batch_execute(&analyze).await;
                done.map_err(failed(&connection, "analyze the table"))
            })?;
            context.settle_disk();
            let batch = records / BATCH_ROWS_SHARE;
            let count = if writing == RecordMethod::Single { records } else { batch * BATCHES };
            let batches = writing.batches(id..id + count, batch.max(1), &all);
            let before = context.block_on(wal_bytes(&connection))?;
            let work = || context.block_on(writing.write(&connection, table, &batches));
            outcome.phase(name, work)?;
            let wal = (context.block_on(wal_bytes(&connection))? - before) as f64 / count as f64;
            id += count;
            let seconds = outcome.phases.last().map_or(0.0, |phase| phase.seconds).max(1e-9);
            let rate = count as f64 / seconds;
            outcome.number(&format!("{name}, rows a second"), rate, Unit::PerSecond);
            outcome.number("WAL per row", wal, Unit::Bytes);
            outcome.point("rows a second", Unit::PerSecond, size as f64, rate);
            if writing == RecordMethod::Single {
                for (query, millis) in context.block_on(reads::measure(&connection, table, id))? {
                    outcome.point(query, Unit::Milliseconds, size as f64, millis);
                }
            }
        }
        if writing == RecordMethod::Single {
            outcome.notes.push(reads::NOTE.to_owned());
        }
        outcome.number("rows", (id - 1) as f64, Unit::Count);
        Ok(outcome)
    }

    fn verify(
        &self,
        trial: &LabTrial,
        context: &TrialContext,
        outcome: &mut TrialOutcome,
    ) -> Result<()> {
        let table = table(trial).name();
        let connection = context.connect()?;
        let what = "look at the rows in the end";
        let sql = format!("select count(*) from {table}");
        let count = context.block_on(number(&connection, what, &sql))?;
        let rows = outcome.numbers.iter().find(|number| number.name == "rows");
        let rows = rows.map_or(0.0, |rows| rows.value);
        context.expect_same(
            &format!("rows of {table} beside those written: {rows}"),
            &count.to_string(),
        )?;
        let largest = sizes(context.scale())[2];
        let sql = format!(
            "select (count(*) + sum(hashtextextended(t::text, 0)) % 1000000007)::int8 \
             from {table} t where id <= {largest}"
        );
        let sum = context.block_on(number(&connection, what, &sql))?;
        context.expect_same(&format!("the checksum of {table}"), &sum.to_string())
    }

    fn figures(&self, results: &Results) -> Vec<Figure> {
        figures::figures(results)
    }

    fn comparisons(&self, results: &Results) -> Vec<Comparison> {
        figures::comparisons(results)
    }

    fn answer(&self, results: &Results) -> String {
        figures::answer(results)
    }
}
