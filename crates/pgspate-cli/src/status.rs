//! The command `pgspate status`: shows the ledger's jobs, restores tables, forgets jobs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pgspate::ledger::{self, FleetReport, JobStatus, StreamStatus};
use pgspate::load::LoadWatch;
use pgspate::numbers::thousands;
use pgspate::target::connect::{Connection, Dsn};
use pgspate::target::shards::{
    LeftPrepared, LeftPreparedList, PreparedScope, list_prepared, resolve_prepared,
};
use pgspate::{Result, care};
use pgspate_doctor::tune;
use tokio::runtime::Runtime;

use crate::CommandAnswer;
use crate::args::StatusArgs;
use crate::errors::TerminalStyle;
use crate::fleet::render_progress;
use crate::load::{InterruptActions, print_json, runtime, stop_on_interrupt};
use crate::output::{write_stderr_line, write_stdout_lines};
use crate::summary::plural;
use crate::target;

pub(crate) fn run(args: &StatusArgs, style: TerminalStyle) -> Result<CommandAnswer> {
    let target = target::resolve_and_ask(args.to.as_deref(), true, style)?;
    let runtime = runtime()?;
    let dsn = target.dsn.with_stall_timeout(args.stall.0.0);
    let connection = runtime.block_on(dsn.connect("pgspate status"))?;
    if let (true, Some(job)) = (args.forget, args.job) {
        runtime.block_on(ledger::forget_job(&connection.client, job))?;
        if args.json {
            print_json(&ForgottenJob { job, forgotten: true })?;
        }
        if !args.quiet {
            write_stderr_line(format!(
                "job {job} is forgotten; rows that it has written to the table stay there"
            ));
        }
        return Ok(CommandAnswer::Yes);
    }
    if args.restore {
        let ending = resolve_prepared(&connection.client, PreparedScope::AnyJob);
        let ended = runtime.block_on(ending)?.ended;
        return restore(args, ended, &dsn, &runtime);
    }
    let status = runtime.block_on(DatabaseStatus::read(&connection, args.job))?;
    for node in &status.prepared.unheard_nodes {
        write_stderr_line(format!("warning: the coordinator could not query {node}"));
    }
    if args.json {
        print_json(&status.into_entries())?;
        return Ok(CommandAnswer::Yes);
    }
    if status.is_empty() && !args.quiet {
        write_stderr_line("the ledger of this database has no jobs");
    }
    status.print()?;
    Ok(CommandAnswer::Yes)
}

/// The most finished jobs that are printed.
const FINISHED_JOBS_MAX: usize = 20;

/// What `status` shows of a database.
#[derive(Default)]
struct DatabaseStatus {
    jobs: Vec<JobStatus>,
    streams: Vec<StreamStatus>,
    fleets: Vec<FleetReport>,
    /// Names of the settings of `pgspate tune` that are not put back yet.
    settings: Vec<String>,
    prepared: LeftPreparedList,
}

impl DatabaseStatus {
    /// Reads the status; with `job`, of this job alone.
    async fn read(connection: &Connection, job: Option<i64>) -> Result<DatabaseStatus> {
        let client = &connection.client;
        let jobs = ledger::list_jobs(client, job).await?;
        if job.is_some() {
            return Ok(DatabaseStatus { jobs, ..DatabaseStatus::default() });
        }
        Ok(DatabaseStatus {
            jobs,
            streams: ledger::list_streams(client).await?,
            fleets: ledger::list_fleets(client).await?,
            settings: tune::outstanding(connection).await?,
            prepared: list_prepared(client).await?,
        })
    }

    fn is_empty(&self) -> bool {
        self.jobs.is_empty()
            && self.streams.is_empty()
            && self.fleets.is_empty()
            && self.settings.is_empty()
            && self.prepared.transactions.is_empty()
    }

    /// Returns the entries of `status --json`.
    fn into_entries(self) -> Vec<StatusEntry> {
        let DatabaseStatus { jobs, streams, fleets, settings, prepared } = self;
        let prepared = prepared.transactions;
        let jobs = jobs.into_iter().map(StatusEntry::Job);
        let mut all: Vec<_> = jobs.chain(streams.into_iter().map(StatusEntry::Stream)).collect();
        all.extend(fleets.into_iter().map(StatusEntry::Fleet));
        all.extend((!prepared.is_empty()).then_some(StatusEntry::Prepared { prepared }));
        all.extend((!settings.is_empty()).then_some(StatusEntry::Tuned { settings }));
        all
    }

    /// Prints the status for people. Of the jobs that need no attention, prints only the newest.
    fn print(&self) -> Result<()> {
        let is_settled =
            |job: &&JobStatus| job.finished.is_some() && !job.emptied && job.changes.is_empty();
        let mut older =
            self.jobs.iter().filter(is_settled).count().saturating_sub(FINISHED_JOBS_MAX);
        if older > 0 {
            let jobs = plural(older as u64, "older finished job");
            write_stdout_lines(&format!("{jobs}: see `pgspate status --json`\n"), 2)?;
        }
        for job in &self.jobs {
            if older > 0 && is_settled(&job) {
                older -= 1;
                continue;
            }
            write_stdout_lines(&render(job), 2)?;
        }
        for stream in &self.streams {
            write_stdout_lines(&render_stream(stream), 2)?;
        }
        for fleet in &self.fleets {
            write_stdout_lines(&render_progress(fleet), 2)?;
        }
        for transaction in &self.prepared.transactions {
            write_stdout_lines(&render_prepared(transaction), 2)?;
        }
        if !self.settings.is_empty() {
            let names = self.settings.join(", ");
            let text = format!(
                "settings of the server\n  not put back: {names}; run `pgspate tune --revert`\n"
            );
            write_stdout_lines(&text, 2)?;
        }
        Ok(())
    }
}

/// An entry of `status --json`; each kind has its own keys.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum StatusEntry {
    Job(JobStatus),
    Stream(StreamStatus),
    Fleet(FleetReport),
    /// Transactions that loads have left prepared on the nodes of Citus.
    Prepared {
        prepared: Vec<LeftPrepared>,
    },
    /// Settings of `pgspate tune` that are not put back yet.
    Tuned {
        settings: Vec<String>,
    },
}

/// The output of `status JOB --forget --json`.
#[derive(serde::Serialize)]
struct ForgottenJob {
    job: i64,
    forgotten: bool,
}

/// Puts back what interrupted loads have changed on tables. `ended` is the number of prepared
/// transactions that were ended before.
fn restore(args: &StatusArgs, ended: u64, dsn: &Dsn, runtime: &Runtime) -> Result<CommandAnswer> {
    let watch = Arc::new(LoadWatch::default());
    let stopping = Arc::clone(&watch);
    let running = Arc::new(AtomicBool::new(true));
    let interrupt = InterruptActions {
        first_message: "rolling back",
        stop: move || stopping.copy.cancel(),
        last_message: || "run the same command again to put back the rest".to_owned(),
    };
    stop_on_interrupt(interrupt, &running, runtime.handle());
    let (restored, warnings) = care::restore(dsn, args.job, runtime.handle(), &watch.copy)?;
    if args.json {
        print_json(&restored)?;
    }
    if args.quiet {
        return Ok(CommandAnswer::Yes);
    }
    for warning in &warnings {
        write_stderr_line(format!("warning: {warning}"));
    }
    if args.json {
        return Ok(CommandAnswer::Yes);
    }
    if ended > 0 {
        let transactions = plural(ended, "prepared transaction");
        write_stderr_line(format!("{transactions} ended on the nodes, as the ledger says"));
    }
    if restored.is_empty() && warnings.is_empty() && ended == 0 {
        write_stderr_line("there is nothing to put back");
    }
    for change in &restored {
        write_stderr_line(format!("{} of job {} is back", change.name(), change.job));
    }
    Ok(CommandAnswer::Yes)
}

const EMPTIED: &str = "the server has crashed, and the table or a part of it is unlogged";

/// Formats a job in a few lines.
fn render(job: &JobStatus) -> String {
    let count = |number: i64| thousands(number.unsigned_abs());
    let state = match (&job.finished, &job.worker) {
        (Some(finished), _) if job.emptied => {
            format!("finished {finished}, and emptied since: {EMPTIED}")
        }
        (None, None) if job.emptied => format!("unfinished, and emptied since: {EMPTIED}"),
        (Some(finished), _) => format!("finished {finished}"),
        (None, Some(worker)) => format!("running in {worker}"),
        (None, None) if job.command == "fleet" => "unfinished; run its driver again".to_owned(),
        (None, None) => {
            "unfinished; run the same command again, without `--restart`, to continue".to_owned()
        }
    };
    let age = job.age_seconds.map_or_else(String::new, |age| format!(", {} ago", long(age)));
    let from = match job.sources.as_slice() {
        [] if job.command == "fleet" => {
            job.name.as_ref().map_or_else(String::new, |name| format!(" \"{name}\""))
        }
        [] => " nothing".to_owned(),
        [only] => format!(" {only}"),
        [first, rest @ ..] => format!(" {first} and {} more", rest.len()),
    };
    let written = written(job);
    let rejected = match job.rows_rejected {
        None | Some(0) => String::new(),
        Some(rows) => format!(", {} set aside", count(rows)),
    };
    let shadow = match &job.shadow {
        Some(schema) => format!(", so far in the shadow table in schema {schema}"),
        None => String::new(),
    };
    let changes = match job.changes.as_slice() {
        [] => String::new(),
        names => format!(
            "  not put back: {}; run `pgspate status --restore {}`\n",
            names.join(", "),
            job.job
        ),
    };
    format!(
        "job {}  {}{from} into {}\n  began {}{age}; {state}\n  {written}{rejected}{shadow}\n\
         {changes}",
        job.job, job.command, job.table, job.started,
    )
}

/// Describes how much of a job is written.
fn written(job: &JobStatus) -> String {
    let (Some(chunks), Some(rows)) = (job.chunks, job.rows_written) else {
        return format!("only role \"{}\" and its members see how much is written", job.role);
    };
    let rows = plural(rows.unsigned_abs(), "row");
    match job.parts.map(|parts| plural(parts.unsigned_abs(), "part")) {
        Some(parts) if job.finished.is_none() => format!("{parts} written"),
        Some(parts) => format!("{rows} in {parts}"),
        None => format!("{rows} in {}", plural(chunks.unsigned_abs(), "chunk")),
    }
}

/// Formats a prepared transaction in two lines.
fn render_prepared(transaction: &LeftPrepared) -> String {
    let LeftPrepared { host, port, job, name, age_seconds, decision } = transaction;
    let state = match *decision {
        "pending" => "its load is still committing",
        "unknown" => "the ledger has forgotten its job: compare the table with the load's input",
        _ => "its rows are invisible and its locks stay until `pgspate status --restore`",
    };
    let age = long(i64::try_from(*age_seconds).unwrap_or(i64::MAX));
    format!(
        "prepared transaction {name}\n  of job {job} on node {host}:{port}, {age} ago, to \
         {decision}; {state}\n"
    )
}

/// Formats an age in its two largest units: `3 d 2 h`, `5 min`.
fn long(seconds: i64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{} s", seconds.max(0)),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Formats a stream in two lines.
fn render_stream(stream: &StreamStatus) -> String {
    let count = |number: i64| thousands(number.unsigned_abs());
    let part = match stream.partition.as_str() {
        "" => String::new(),
        part => format!(", part {part}"),
    };
    let letters = match stream.dead_letters {
        0 => String::new(),
        number => format!(", {} of them set aside in pgspate.dead_letter", count(number)),
    };
    let emptied = match stream.emptied {
        false => "",
        true => "  emptied since: the server has crashed, and some of its tables are unlogged\n",
    };
    let at = match stream.position.as_str() {
        "" => String::new(),
        position => format!(", up to {position}"),
    };
    format!(
        "stream {}{part}  {} applied{at}{letters}\n  last advanced at {}\n{emptied}",
        stream.stream,
        plural(stream.events.unsigned_abs(), "event"),
        stream.updated,
    )
}

#[cfg(test)]
mod tests {
    use super::long;

    #[test]
    fn ages_have_two_units() {
        assert_eq!(long(59), "59 s");
        assert_eq!(long(7 * 60 + 5), "7 min");
        assert_eq!(long(3 * 3600 + 4 * 60), "3 h 4 min");
        assert_eq!(long(50 * 3600), "2 d 2 h");
    }
}
