//! Temporary space: many sessions whose queries spill to disk at the same time.
//!
//! `work_mem` and limits are shares of the table's size. So a query that spills at one scale spills
//! at every scale. The lab checks the queries' row counts. If a trial limits temporary space, the
//! lab also checks that the other sessions still work.

mod clients;
mod figures;
mod room;
mod space;

use pgspate::measure::Measurement;
use pgspate::{Error, ErrorKind, Result};

use super::sending::{failed, number};
use crate::data::{self, tpch};
use crate::report::figure::Figure;
use crate::{
    Comparison, Experiment, Factor, LabRunSetup, LabTrial, Results, TrialContext, TrialOutcome,
    Unit,
};
use clients::{QueryResults, SpillingQueries};
use space::TempTablespace;

const QUERY: &str = "query";
const CLIENTS: &str = "clients";
const WORK_MEM: &str = "work_mem";
const SPACE: &str = "temp space";
const LIMIT: &str = "temp_file_limit";

const CREATE_AS: &str = "create temp table as";
const DISTINCT: &str = "select distinct";
const ORDER_BY: &str = "order by";
const SPILLS: &str = "a sixteenth of the table";
const FITS: &str = "twice the table";
const DATA_FOLDER: &str = "data folder";
const TABLESPACE: &str = "tablespace";
const NO_LIMIT: &str = "none";
const SMALL_LIMIT: &str = "a quarter of the table";

/// The approximate bytes of a row in memory and on disk.
const ROW_BYTES: u64 = 160;
/// The least `work_mem` in kB.
const WORK_MEM_MIN: u64 = 64;

/// The experiment that fills temporary space from many sessions.
#[derive(Debug, Clone, Copy)]
pub(super) struct TempExperiment;

/// The table that the queries read.
const TABLE: data::GeneratedTable = tpch::TABLES[0];

/// Returns TPC-H's scale factor at a scale of the experiment.
fn factor(scale: f64) -> f64 {
    scale.max(tpch::FACTOR_MIN)
}

/// Returns the approximate bytes of the table.
fn table_bytes(scale: f64) -> u64 {
    data::scaled(tpch::LINES, factor(scale)) * ROW_BYTES
}

fn work_mem_kb(trial: &LabTrial, scale: f64) -> u64 {
    let bytes = match trial.level(WORK_MEM) {
        FITS => table_bytes(scale) * 2,
        _ => table_bytes(scale) / 16,
    };
    (bytes >> 10).clamp(WORK_MEM_MIN, i32::MAX as u64)
}

/// Returns the bytes of memory and of disk that all sessions of a trial may take together. A
/// session takes at most twice `work_mem` (for hashing), and at most about twice the table's size,
/// in memory as on disk.
fn needs(trial: &LabTrial, scale: f64) -> (u64, u64) {
    let clients = clients(trial);
    let table = table_bytes(scale) * 2;
    let memory = match trial.is(QUERY, CREATE_AS) {
        true => 0,
        false => (work_mem_kb(trial, scale) << 11).min(table),
    };
    (clients * memory, clients * table)
}

fn clients(trial: &LabTrial) -> u64 {
    trial.level(CLIENTS).parse().unwrap_or(4)
}

impl Experiment for TempExperiment {
    fn name(&self) -> &'static str {
        "temp"
    }

    fn title(&self) -> &'static str {
        "Temporary tables and queries that spill"
    }

    fn question(&self) -> &'static str {
        "Many sessions at once fill temporary tables, or sort more than fits into their memory. \
         How fast is it? What do more memory and a separate tablespace for temporary files change, \
         and what happens when the space runs out?"
    }

    fn factors(&self, _setup: &LabRunSetup) -> Vec<Factor> {
        vec![
            Factor::new(QUERY, &[CREATE_AS, DISTINCT, ORDER_BY]),
            Factor::new(CLIENTS, &["4", "8", "12", "16", "20"]),
            Factor::new(WORK_MEM, &[SPILLS, FITS]),
            Factor::new(SPACE, &[DATA_FOLDER, TABLESPACE]),
            Factor::new(LIMIT, &[NO_LIMIT, SMALL_LIMIT]),
        ]
    }

    fn makes_sense(&self, trial: &LabTrial) -> bool {
        let is_table = trial.is(QUERY, CREATE_AS);
        let changed = [
            (trial.is(WORK_MEM, FITS), !is_table && trial.is(CLIENTS, "8")),
            (trial.is(SPACE, TABLESPACE), matches!(trial.level(CLIENTS), "8" | "20")),
            // `temp_file_limit` applies to temporary files, not to temporary tables.
            (trial.is(LIMIT, SMALL_LIMIT), !is_table && trial.is(CLIENTS, "8")),
        ];
        let others = changed.iter().filter(|(is_changed, _)| *is_changed).count();
        others <= 1 && changed.iter().all(|(is_changed, where_tried)| !is_changed || *where_tried)
    }

    fn scale_default(&self) -> f64 {
        0.02
    }

    fn trial_seconds(&self, scale: f64) -> f64 {
        1.0 + 60.0 * scale
    }

    fn columns(&self) -> Vec<&'static str> {
        vec!["seconds", "mean time", "throughput", "temp bytes", "failed"]
    }

    fn settings(&self, trial: &LabTrial, context: &TrialContext) -> Vec<(String, String)> {
        match trial.is(LIMIT, SMALL_LIMIT) {
            false => Vec::new(),
            true => {
                let limit = (table_bytes(context.scale()) / 4) >> 10;
                vec![("temp_file_limit".to_owned(), format!("{}kB", limit.max(64)))]
            }
        }
    }

    fn refusal(&self, trial: &LabTrial, context: &TrialContext) -> Option<String> {
        if trial.is(SPACE, TABLESPACE) && !context.is_own() {
            return Some("tablespaces are made on the lab's own server only".to_owned());
        }
        let (memory, disk) = needs(trial, context.scale());
        if let Some((bound, what)) = room::memory(context)
            && memory > bound
        {
            return Some(format!("its sessions might take more memory than {what}"));
        }
        let is_full = room::disk(context).is_some_and(|free| disk > free);
        is_full.then(|| "its temporary tables and files might fill the disk".to_owned())
    }

    fn prepare(&self, context: &TrialContext) -> Result<()> {
        space::remove_left_over();
        let connection = context.connect()?;
        context.block_on(async {
            let client = &connection.client;
            let wrong = failed(&connection, "make the table");
            client.batch_execute(TABLE.create).await.map_err(&wrong)?;
            let mut rows = TABLE.all(factor(context.scale()), context.seed());
            data::copy(client, TABLE.name, &mut *rows).await?;
            let bystander = "create table bystander (id bigint)";
            client.batch_execute(bystander).await.map_err(&wrong)?;
            client.batch_execute("vacuum analyze lineitem").await.map_err(&wrong)
        })
    }

    fn run(&self, trial: &LabTrial, context: &TrialContext) -> Result<TrialOutcome> {
        let mut outcome = TrialOutcome::default();
        let space = match trial.is(SPACE, TABLESPACE) {
            true => Some(TempTablespace::make(context, needs(trial, context.scale()).1)?),
            false => None,
        };
        outcome.notes.extend(space.as_ref().map(TempTablespace::note));
        let work = SpillingQueries {
            clients: clients(trial) as usize,
            query: trial.level(QUERY).to_owned(),
            work_mem_kb: work_mem_kb(trial, context.scale()),
            tablespace: space.as_ref().map(|_| space::NAME),
            rows: TABLE.rows_at(factor(context.scale())),
            has_bystander: trial.is(LIMIT, SMALL_LIMIT),
        };
        let before = temp_bytes(context)?;
        let ready = context.block_on(work.connect(context))?;
        let answers = outcome.phase("queries", || context.block_on(work.run(&ready)))?;
        context.block_on(work.close(ready))?;
        let files = temp_bytes(context)?.zip(before).map(|(now, then)| now.saturating_sub(then));
        if let Some(space) = space {
            space.remove(context)?;
        }
        note(&mut outcome, &answers, files, &work);
        match trial.is(LIMIT, SMALL_LIMIT) {
            true => check_end(&answers, &mut outcome, context)?,
            false => answers.check()?,
        }
        Ok(outcome)
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

/// Returns the bytes of temporary files that the database has written so far. The sessions must
/// have ended, as they publish their counters then.
fn temp_bytes(context: &TrialContext) -> Result<Option<u64>> {
    let connection = context.connect()?;
    let look = async { Ok(Measurement::take(&connection.client, &[]).await) };
    Ok(context.block_on(look)?.database.temp_bytes)
}

fn note(
    outcome: &mut TrialOutcome,
    answers: &QueryResults,
    files: Option<u64>,
    work: &SpillingQueries,
) {
    let seconds = outcome.seconds().max(1e-9);
    let bytes = match work.query.as_str() {
        CREATE_AS => Some(answers.table_bytes),
        _ => files,
    };
    outcome.number_if("mean time", answers.mean_seconds(), Unit::Seconds);
    outcome.number_if("temp bytes", bytes.map(|bytes| bytes as f64), Unit::Bytes);
    let rate = bytes.filter(|bytes| *bytes > 0).map(|bytes| bytes as f64 / seconds);
    outcome.number_if("throughput", rate, Unit::BytesPerSecond);
    outcome.number("failed", answers.errors.len() as f64, Unit::Count);
    outcome.number("work_mem", (work.work_mem_kb << 10) as f64, Unit::Bytes);
}

/// Checks a trial in which queries had to exceed `temp_file_limit`. Other sessions must be
/// unaffected and no temporary file may be left. Notes the error.
fn check_end(
    answers: &QueryResults,
    outcome: &mut TrialOutcome,
    context: &TrialContext,
) -> Result<()> {
    let Some(error) = answers.errors.first() else {
        return Err(Error::new(ErrorKind::Bug, "no query exceeded temp_file_limit"));
    };
    let connection = context.connect()?;
    let count =
        async |sql: &str| number(&connection, "look for remaining rows and files", sql).await;
    let rows = context.block_on(count("select count(*) from bystander"))?;
    if rows.unsigned_abs() != answers.bystander_rows {
        return Err(Error::new(ErrorKind::Bug, "rows of the bystander session are lost"));
    }
    let left = context.block_on(count("select count(*) from pg_ls_tmpdir()"))?;
    if left != 0 {
        return Err(Error::new(ErrorKind::Bug, format!("{left} temporary files still exist")));
    }
    outcome.notes.push(format!(
        "{} of {} queries ended with: {error}. The sessions went on, their files were gone, and \
         another session committed {rows} inserts meanwhile.",
        answers.errors.len(),
        answers.seconds.len() + answers.errors.len(),
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(query: &str, clients: &str, work_mem: &str) -> LabTrial {
        LabTrial::of(&[(QUERY, query), (CLIENTS, clients), (WORK_MEM, work_mem)])
    }

    #[test]
    fn needed_memory_and_disk_grow_with_sessions_and_work_mem() {
        let table = table_bytes(1.0);
        let (memory, disk) = needs(&trial(DISTINCT, "8", FITS), 1.0);
        assert_eq!((memory, disk), (8 * 2 * table, 8 * 2 * table));
        let (spilling, _) = needs(&trial(ORDER_BY, "20", SPILLS), 1.0);
        assert!(spilling > 2 * table && spilling < 3 * table, "{spilling}");
        // Filling a temporary table needs no work_mem.
        assert_eq!(needs(&trial(CREATE_AS, "20", SPILLS), 1.0).0, 0);
    }
}
