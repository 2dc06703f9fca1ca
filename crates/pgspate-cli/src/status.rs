//! `pgspate status`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pgspate::ledger::{self, JobStatus, StreamStatus};
use pgspate::load::Watch;
use pgspate::numbers::thousands;
use pgspate::target::connect::Dsn;
use pgspate::{Result, care};
use pgspate_doctor::tune;
use tokio::runtime::Runtime;

use crate::Answer;
use crate::args::StatusArgs;
use crate::errors::Style;
use crate::load::{Interrupt, print_json, runtime, stop_on_interrupt};
use crate::output::{data, say_line};
use crate::target;

pub(crate) fn run(args: &StatusArgs, style: Style) -> Result<Answer> {
    let target = target::resolve(args.to.as_deref(), true, style)?;
    let runtime = runtime()?;
    let dsn = target.dsn.with_stall_timeout(args.stall.0.0);
    let connection = runtime.block_on(dsn.connect("pgspate status"))?;
    if let (true, Some(job)) = (args.forget, args.job) {
        runtime.block_on(ledger::forget(&connection.client, job))?;
        say_line(format!("job {job} is forgotten; its rows stay in the table"));
        return Ok(Answer::Yes);
    }
    if args.restore {
        return restore(args, &dsn, &runtime);
    }
    let jobs = runtime.block_on(ledger::list(&connection.client, args.job))?;
    let streams = match args.job {
        None => runtime.block_on(ledger::streams(&connection.client))?,
        Some(_) => Vec::new(),
    };
    let settings = match args.job {
        None => runtime.block_on(tune::outstanding(&connection))?,
        Some(_) => Vec::new(),
    };
    if args.json {
        let jobs = jobs.into_iter().map(Known::Job);
        let mut all: Vec<_> = jobs.chain(streams.into_iter().map(Known::Stream)).collect();
        all.extend((!settings.is_empty()).then_some(Known::Tuned { settings }));
        print_json(&all)?;
        return Ok(Answer::Yes);
    }
    if jobs.is_empty() && streams.is_empty() && settings.is_empty() {
        say_line("the ledger of this database knows of no job");
    }
    for job in &jobs {
        data(render(job))?;
    }
    for stream in &streams {
        data(render_stream(stream))?;
    }
    if !settings.is_empty() {
        let names = settings.join(", ");
        data(format!(
            "settings of the server\n  not back yet: {names}; `pgspate tune --revert`\n"
        ))?;
    }
    Ok(Answer::Yes)
}

/// What the ledger knows of, each with its own keys.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum Known {
    Job(JobStatus),
    Stream(StreamStatus),
    /// Settings that are not back yet.
    Tuned {
        settings: Vec<String>,
    },
}

/// Puts back what is not.
fn restore(args: &StatusArgs, dsn: &Dsn, runtime: &Runtime) -> Result<Answer> {
    let watch = Arc::new(Watch::default());
    let stopping = Arc::clone(&watch);
    let running = Arc::new(AtomicBool::new(true));
    let interrupt = Interrupt {
        said: "rolling back",
        stop: move || stopping.copy.cancel(),
        last_words: || "the same command, run again, puts back the rest".to_owned(),
    };
    stop_on_interrupt(interrupt, &running, runtime.handle());
    let restored = care::restore(dsn, args.job, runtime.handle(), &watch.copy)?;
    if args.json {
        print_json(&restored)?;
        return Ok(Answer::Yes);
    }
    if restored.is_empty() {
        say_line("there is nothing to put back");
    }
    for change in &restored {
        say_line(format!("{} of job {} is back", change.name(), change.job));
    }
    Ok(Answer::Yes)
}

const EMPTIED: &str = "the server has crashed, and the table or a part of it is unlogged";

/// A job in a few lines.
fn render(job: &JobStatus) -> String {
    let count = |number: i64| thousands(number.unsigned_abs());
    let state = match (&job.finished, &job.worker) {
        (Some(finished), _) if job.emptied => {
            format!("finished {finished}, and emptied since: {EMPTIED}")
        }
        (None, None) if job.emptied => format!("unfinished, and emptied since: {EMPTIED}"),
        (Some(finished), _) => format!("finished {finished}"),
        (None, Some(worker)) => format!("under way in {worker}"),
        (None, None) => "unfinished; run the same command again to go on".to_owned(),
    };
    let from = match job.sources.as_slice() {
        [] => "nothing".to_owned(),
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    };
    let rejected = match job.rows_rejected {
        0 => String::new(),
        rows => format!(", {} set aside", count(rows)),
    };
    let shadow = match &job.shadow {
        Some(schema) => format!(", so far in the shadow table in schema {schema}"),
        None => String::new(),
    };
    let changes = match job.changes.as_slice() {
        [] => String::new(),
        names => format!(
            "  not back yet: {}; `pgspate status --restore {}`\n",
            names.join(", "),
            job.job
        ),
    };
    format!(
        "job {}  {} {from} into {}\n  began {}; {state}\n  {} rows in {} chunks{rejected}{shadow}\n\
         {changes}",
        job.job,
        job.command,
        job.table,
        job.started,
        count(job.rows_written),
        count(job.chunks),
    )
}

/// A stream in two lines.
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
        "stream {}{part}  {} events applied{at}{letters}\n  last moved on {}\n{emptied}",
        stream.stream,
        count(stream.events),
        stream.updated,
    )
}
