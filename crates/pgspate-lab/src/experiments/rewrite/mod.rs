//! Results that are replaced every night: the cost of each method, and the table's size afterwards.
//!
//! All methods begin with the same table and write the same ten nights. At the end, the table is
//! compared with the last night's rows. The server makes a checkpoint between two nights, as during
//! a day. After the checkpoint the lab draws the table's pages; the drawing is not measured.

mod figures;
mod heap;
mod methods;
mod watcher;

use pgspate::measure::{MeasuredDifference, PRICE_PER_MILLION};
use pgspate::target::TargetTable;
use pgspate::target::connect::Connection;
use pgspate::{Error, ErrorKind, Result};
use pgspate_doctor::doctor::picture::TablePicture as HeapPicture;

use super::sending::{expect, failed};
use crate::data::{self, meters};
use crate::report::figure::Figure;
use crate::{
    Comparison, Experiment, Factor, LabRunSetup, LabTrial, Publication, PublishedResults, Results,
    TrialContext, TrialOutcome, TrialPicture, Unit,
};
use methods::{NightlyJob, RewriteMethod};
use watcher::NightWatcher;

/// The number of nights of a trial.
const NIGHTS: u32 = 10;
/// The number of meters at scale 1.
const METERS: f64 = 100.0;

const CONTENDER: &str = "contender";
const AUTOVACUUM: &str = "autovacuum";

/// The experiment that replaces a table's rows every night.
#[derive(Debug, Clone, Copy)]
pub(super) struct RewriteExperiment;

/// Returns the number of meters, and of rows per meter. Below the scale of one meter, this meter
/// has fewer rows.
fn size(scale: f64) -> (u32, u32) {
    let meters = METERS * scale;
    let rows = f64::from(meters::ROWS) * meters.min(1.0);
    (meters.round().max(1.0) as u32, rows.round().max(20.0) as u32)
}

impl Experiment for RewriteExperiment {
    fn name(&self) -> &'static str {
        "rewrite"
    }

    fn title(&self) -> &'static str {
        "Results replaced every night"
    }

    fn question(&self) -> &'static str {
        "Every night a job replaces a table's rows, and most rows do not change. What does each \
         method cost? How large is the table after ten nights, and how many rows are dead?"
    }

    fn published(&self) -> Option<PublishedResults> {
        Some(PublishedResults {
            source: Publication {
                title: "Gridium, Measuring Aurora query IO with Batch experiments",
                url: "https://gridium.com/measuring-aurora-query-io-with-batch-experiments/",
            },
            setting: "A utility-analytics team on Aurora, more than 400 such jobs a night: 15 % of \
                      the rows inserted, 43 % updated, 15 % deleted, the rest unchanged.",
            figures: vec![
                ("delete, then insert", "9.5 M I/Os"),
                ("upsert", "8.7 M I/Os"),
                ("an ORM's merge, which writes only what differs", "4.9 M I/Os"),
            ],
        })
    }

    fn factors(&self, _setup: &LabRunSetup) -> Vec<Factor> {
        let contenders: Vec<&str> = RewriteMethod::ALL.iter().map(|way| way.name()).collect();
        vec![Factor::new(CONTENDER, &contenders), Factor::new(AUTOVACUUM, &["off", "on"])]
    }

    fn makes_sense(&self, trial: &LabTrial) -> bool {
        // With autovacuum each night waits for autovacuum, so only three methods are tried.
        let way = RewriteMethod::named(trial.level(CONTENDER));
        trial.is(AUTOVACUUM, "off")
            || matches!(
                way,
                RewriteMethod::DeleteInsert | RewriteMethod::Merge | RewriteMethod::Sync
            )
    }

    fn scale_default(&self) -> f64 {
        0.1
    }

    fn trial_seconds(&self, scale: f64) -> f64 {
        4.0 + 60.0 * scale
    }

    fn columns(&self) -> Vec<&'static str> {
        vec![
            "seconds",
            "WAL of the nights",
            "pages written",
            "billed I/Os",
            "cost of I/Os",
            "dead rows",
            "table size",
        ]
    }

    fn settings(&self, trial: &LabTrial, _ground: &TrialContext) -> Vec<(String, String)> {
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        match trial.is(AUTOVACUUM, "on") {
            // A table option turns autovacuum off. Any server allows this option.
            false => Vec::new(),
            true => vec![set("autovacuum", "on"), set("autovacuum_naptime", "1s")],
        }
    }

    fn refusal(&self, trial: &LabTrial, context: &TrialContext) -> Option<String> {
        let is_merge = RewriteMethod::named(trial.level(CONTENDER)) == RewriteMethod::Merge;
        (is_merge && context.server_version() < 150_000)
            .then(|| "MERGE needs PostgreSQL 15".to_owned())
    }

    fn prepare(&self, context: &TrialContext) -> Result<()> {
        let (meters, rows) = size(context.scale());
        let first = meters::NightlyPredictions::new(meters, rows, context.seed());
        let connection = context.connect()?;
        context.block_on(async {
            let client = &connection.client;
            let wrong = failed(&connection, "make the table");
            client.batch_execute(meters::CREATE).await.map_err(&wrong)?;
            data::copy(client, meters::TABLE, &mut first.text()).await?;
            let rest = format!("vacuum analyze {}", meters::TABLE);
            client.batch_execute(&rest).await.map_err(&wrong)?;
            // For the pictures; created here so that it is not measured. Without pageinspect there
            // is only the last picture, with live rows only.
            let _ = client.batch_execute("create extension if not exists pageinspect").await;
            Ok(())
        })
    }

    fn run(&self, trial: &LabTrial, context: &TrialContext) -> Result<TrialOutcome> {
        let way = RewriteMethod::named(trial.level(CONTENDER));
        let vacuums = trial.is(AUTOVACUUM, "on");
        set_options(way, vacuums, context)?;
        let (meters, rows) = size(context.scale());
        let mut nights = meters::NightlyPredictions::new(meters, rows, context.seed());
        let mut job = NightlyJob::open(way, context)?;
        let watcher = NightWatcher::open(context)?;
        let per_cell = heap::pages_per_cell(u64::from(meters) * u64::from(rows));
        let (mut outcome, mut pages) = (TrialOutcome::default(), Vec::new());
        for night in 1..=NIGHTS {
            context.check()?;
            nights.advance();
            job.take(&nights, night)?;
            let before = watcher.look()?;
            outcome.phase(&format!("night {night}"), || job.write())?;
            job.flush_counters()?;
            watcher.settle(vacuums, &before)?;
            let done = watcher.look()?.since(&before);
            note_night(&mut outcome, night, &done);
            pages.extend(watcher.pages(per_cell)?.map(|cells| (night, cells)));
        }
        outcome.pictures = heap::pictures(&pages);
        outcome.number("rows", nights.rows() as f64, Unit::Count);
        Ok(outcome)
    }

    fn verify(
        &self,
        _trial: &LabTrial,
        context: &TrialContext,
        outcome: &mut TrialOutcome,
    ) -> Result<()> {
        let (meters, rows) = size(context.scale());
        let mut nights = meters::NightlyPredictions::new(meters, rows, context.seed());
        (0..NIGHTS).for_each(|_| nights.advance());
        let connection = context.connect()?;
        outcome.pictures.push(context.block_on(draw(&connection))?);
        context.block_on(expect(&connection, meters::TABLE, &mut nights.text()))
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

/// Sets the table's options. A fillfactor needs a rewrite of the table, which is not measured.
fn set_options(way: RewriteMethod, vacuums: bool, context: &TrialContext) -> Result<()> {
    let table = meters::TABLE;
    let sql = format!("alter table {table} set (autovacuum_enabled = {vacuums})");
    context.sql("set the table's options", &sql)?;
    if way == RewriteMethod::SyncWithRoom {
        let sql = format!("alter table {table} set (fillfactor = 60)");
        context.sql("set the table's options", &sql)?;
        context.sql("rewrite the table", &format!("vacuum full analyze {table}"))?;
    }
    Ok(())
}

/// Adds the measurements of a night to the numbers and the series of the outcome.
fn note_night(outcome: &mut TrialOutcome, night: u32, done: &MeasuredDifference) {
    let seconds = outcome.phases.last().map_or(0.0, |phase| phase.seconds);
    let io = done.bill(PRICE_PER_MILLION);
    let written = done.checkpoints.buffers_written;
    let sums = [
        ("WAL of the nights", done.wal_bytes, Unit::Bytes),
        ("full page images", done.wal.full_page_images, Unit::Count),
        ("pages read", done.database.blocks_read, Unit::Count),
        ("pages written", written, Unit::Count),
        ("billed I/Os", io.map(|io| io.reads + io.writes), Unit::Count),
    ];
    for (name, value, unit) in sums {
        let Some(value) = value else { continue };
        let before = outcome.numbers.iter().find(|number| number.name == name);
        let sum = before.map_or(0.0, |number| number.value) + value as f64;
        outcome.number(name, sum, unit);
    }
    let io = outcome.numbers.iter().find(|number| number.name == "billed I/Os");
    let cost = io.map(|io| io.value * PRICE_PER_MILLION / 1e6);
    outcome.number_if("cost of I/Os", cost, Unit::Dollars);
    let at = f64::from(night);
    outcome.point("seconds", Unit::Seconds, at, seconds);
    if let Some(wal) = done.wal_bytes {
        outcome.point("WAL", Unit::Bytes, at, wal as f64);
    }
    let Some(tables) = &done.tables else { return };
    let now = [
        ("dead rows", tables.after.rows_dead, Unit::Count),
        ("table size", tables.after.table_bytes, Unit::Bytes),
        ("index size", tables.after.index_bytes, Unit::Bytes),
    ];
    for (name, value, unit) in now {
        if let Some(value) = value {
            outcome.point(name, unit, at, value as f64);
            outcome.number(name, value as f64, unit);
        }
    }
}

/// Draws the table's pages. The picture shows dead rows if the role may use `pageinspect`.
async fn draw(connection: &Connection) -> Result<TrialPicture> {
    let table = TargetTable::read(&connection.client, meters::TABLE).await?;
    let table = table.ok_or_else(|| Error::new(ErrorKind::Bug, "the table is gone"))?;
    let picture = HeapPicture::take(&connection.client, &table).await?;
    Ok(TrialPicture { name: "heap".to_owned(), svg: picture.svg() })
}
