//! Changes by batch size: how fast a stream of inserts, updates and deletes is applied.
//!
//! For each batch size, all methods apply the same events to the same table. The table is then
//! compared with the expected rows. Small batches get fewer events, as they would take minutes.

mod events;
mod figures;
mod methods;

use std::collections::HashMap;

use pgspate::file::write_whole;
use pgspate::{Error, ErrorKind, Result};

use super::sending::{expect, failed};
use crate::data::{self, NumberedRows, put, scaled};
use crate::report::figure::Figure;
use crate::{
    Comparison, Experiment, Factor, LabRunSetup, LabTrial, Results, TrialContext, TrialOutcome,
    Unit,
};
use events::{OrderEvent, OrderRow};
use methods::{ChangeMethod, ChangeWriter, apply_file};

/// The number of events at scale 1.
const EVENTS: u64 = 1_000_000;
/// The number of rows of the table at scale 1.
const KEYS: u64 = 200_000;
const TABLE: &str = "orders";

const CONTENDER: &str = "contender";
const BATCH: &str = "batch";
const BATCHES: [&str; 6] = ["1", "10", "100", "1000", "10000", "100000"];

/// The experiment that applies changes in batches of several sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChangesExperiment;

/// Returns the number of events for a trial.
///
/// Small batches and single statements get as many events as they can apply in a few seconds.
/// Large batches get enough events for several batches, if there are enough.
fn events_of(trial: &LabTrial, scale: f64) -> u64 {
    let batch: u64 = trial.level(BATCH).parse().unwrap_or(1);
    let all = scaled(EVENTS, scale);
    let way = ChangeMethod::named(trial.level(CONTENDER));
    let part = match batch {
        1 => all / 50,
        10 => all / 10,
        _ if matches!(way, ChangeMethod::Statements | ChangeMethod::Pipelined) => all / 5,
        100 => all / 2,
        _ => all,
    };
    part.max(batch * 2).min(all).max(1)
}

fn keys(scale: f64) -> u64 {
    scaled(KEYS, scale).max(10)
}

impl Experiment for ChangesExperiment {
    fn name(&self) -> &'static str {
        "changes"
    }

    fn title(&self) -> &'static str {
        "Mixed changes, by batch size"
    }

    fn question(&self) -> &'static str {
        "A stream of changes (20 % inserts, 60 % updates, 20 % deletes) goes into a table. How \
         many events a second does each way of writing apply, by the number of events in a \
         transaction?"
    }

    fn factors(&self, _setup: &LabRunSetup) -> Vec<Factor> {
        let contenders: Vec<&str> = ChangeMethod::ALL.iter().map(|way| way.name()).collect();
        vec![Factor::new(CONTENDER, &contenders), Factor::new(BATCH, &BATCHES)]
    }

    fn makes_sense(&self, trial: &LabTrial) -> bool {
        // A batch of one statement cannot be pipelined.
        let is_pipelined = ChangeMethod::named(trial.level(CONTENDER)) == ChangeMethod::Pipelined;
        !(is_pipelined && trial.is(BATCH, "1"))
    }

    fn scale_default(&self) -> f64 {
        0.1
    }

    fn trial_seconds(&self, scale: f64) -> f64 {
        1.0 + 15.0 * scale
    }

    fn columns(&self) -> Vec<&'static str> {
        vec!["events a second", "events", "seconds"]
    }

    fn prepare(&self, context: &TrialContext) -> Result<()> {
        let connection = context.connect()?;
        context.block_on(async {
            let client = &connection.client;
            let wrong = failed(&connection, "make the table");
            client.batch_execute(events::CREATE).await.map_err(&wrong)?;
            let mut rows = events::start(keys(context.scale()), context.seed());
            data::copy(client, TABLE, &mut rows).await?;
            client.batch_execute(&format!("vacuum analyze {TABLE}")).await.map_err(&wrong)
        })
    }

    fn run(&self, trial: &LabTrial, context: &TrialContext) -> Result<TrialOutcome> {
        let way = ChangeMethod::named(trial.level(CONTENDER));
        let batch = trial.level(BATCH).parse().unwrap_or(1);
        let count = events_of(trial, context.scale());
        let events = events::events(count, keys(context.scale()), context.seed());
        let mut outcome = TrialOutcome::default();
        match way {
            ChangeMethod::Apply => {
                let path = context.scratch().join("events.ndjson");
                write_events(&path, &context.table(TABLE), &events)?;
                let path = path.display().to_string();
                let report = outcome.phase("apply", || apply_file(context, &path, batch))?;
                outcome.number("transactions", report.counts.batches as f64, Unit::Count);
            }
            _ => {
                let mut writer = ChangeWriter::open(way, context)?;
                outcome.phase("apply", || writer.write(way, &events, batch))?;
                let batches = events.len().div_ceil(batch);
                outcome.number("transactions", batches as f64, Unit::Count);
            }
        }
        outcome.number("events", count as f64, Unit::Count);
        let rate = count as f64 / outcome.seconds().max(1e-9);
        outcome.number("events a second", rate, Unit::PerSecond);
        Ok(outcome)
    }

    fn verify(
        &self,
        trial: &LabTrial,
        context: &TrialContext,
        _outcome: &mut TrialOutcome,
    ) -> Result<()> {
        let (keys, seed) = (keys(context.scale()), context.seed());
        let events = events::events(events_of(trial, context.scale()), keys, seed);
        let (mut changed, mut new): (HashMap<u64, Option<&OrderRow>>, Vec<u64>) =
            Default::default();
        for event in &events {
            let Ok(key) = event.key().parse() else { continue };
            let row = match event {
                OrderEvent::Insert(row) | OrderEvent::Update(row) => Some(row),
                OrderEvent::Delete(_) => None,
            };
            if changed.insert(key, row).is_none() && key >= keys {
                new.push(key);
            }
        }
        let mut start = Vec::new();
        let mut rows = events::start(keys, seed);
        while data::GeneratedRows::append(&mut rows, &mut start) {}
        let lines: Vec<&[u8]> = start.split_inclusive(|byte| *byte == b'\n').collect();
        let mut rows = NumberedRows::new(0..keys + new.len() as u64, |nth, out| {
            let key = if nth < keys { nth } else { new[(nth - keys) as usize] };
            match changed.get(&key) {
                None => out.extend_from_slice(lines[nth as usize]),
                Some(Some(row)) => put(out, format_args!("{}\n", row.join("\t"))),
                Some(None) => {}
            }
        });
        let connection = context.connect()?;
        context.block_on(expect(&connection, TABLE, &mut rows))
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

fn write_events(path: &std::path::Path, table: &str, events: &[OrderEvent]) -> Result<()> {
    let mut text = Vec::new();
    for event in events {
        event.json(table, &mut text);
        text.push(b'\n');
    }
    write_whole(path, &text).map_err(|error| {
        let message = format!("could not write \"{}\"", path.display());
        Error::new(ErrorKind::Source, message).because(error)
    })
}
