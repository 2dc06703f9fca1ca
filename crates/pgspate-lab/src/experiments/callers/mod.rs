//! Many callers that write one record at a time: each in a session, by a batcher, by the writer, by
//! `pgspate serve`.
//!
//! Each caller waits until its record is durable before it sends the next one. At the end, the
//! table must have the records of all calls, and no other.

mod delay;
mod figures;
mod senders;
mod served;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pgspate::target::connect::Dsn;
use pgspate::{Error, ErrorKind, Result};
use tokio::task::JoinSet;

use super::sending::{failed, number, wal_bytes};
use crate::data::accounts::{BankAccounts, BankTable, TABLES};
use crate::data::{self, NumberedRows, scaled};
use crate::report::figure::Figure;
use crate::spread::Spread;
use crate::{
    Comparison, Experiment, Factor, LabRunSetup, LabTrial, Results, TrialContext, TrialOutcome,
    TrialPhase, Unit,
};
use delay::DelayProxy;
use senders::{CallerMethod, RecordSender};

const TABLE: &str = "table";
const SENDING: &str = "sending";
const CALLERS: &str = "callers";
const ROUND_TRIP: &str = "round trip";
const FLUSH: &str = "flush";

/// The numbers of callers. The first is the baseline.
const CALLER_COUNTS: [&str; 5] = ["1", "16", "64", "256", "1000"];
/// The most callers with a session each: a server accepts 100 sessions by default.
const SESSIONS_MAX: usize = 64;
/// The most callers with requests of 100 records. `pgspate serve` refuses requests that its queue
/// has no room for.
const HUNDREDS_MAX: usize = 64;

/// The times by which the lab makes a round trip longer. The first is the baseline.
const ROUND_TRIPS: [(&str, u64); 3] =
    [("1 ms round trip", 1), ("no delay", 0), ("5 ms round trip", 5)];
const FAST: &str = "flush as it is";
const SLOW: &str = "flush after 2 ms";

const RATE: &str = "records a second";
const MEDIAN: &str = "median wait";
const P99: &str = "99 % wait at most";
const WAL: &str = "WAL per record";
const SERVER_CPU: &str = "server CPU per record";
const CLIENT_CPU: &str = "client CPU per record";
const SERVE_CPU: &str = "serve CPU per record";

/// The number of rows of each table before the callers begin, at scale 1.
const ROWS: u64 = 30_000_000;
const SCALE_DEFAULT: f64 = 0.002;
/// How long the callers write before they are measured, and are measured, at the default scale and
/// above. The writer tries numbers of lanes meanwhile.
const WARM_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(3);

/// The experiment with many callers.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallersExperiment;

fn table(trial: &LabTrial) -> BankTable {
    let found = TABLES.into_iter().find(|table| trial.is(TABLE, table.name()));
    found.unwrap_or(BankTable::Account)
}

fn callers(trial: &LabTrial) -> usize {
    trial.level(CALLERS).parse().unwrap_or(1)
}

fn delay(trial: &LabTrial) -> Duration {
    let found = ROUND_TRIPS.iter().find(|(name, _)| trial.is(ROUND_TRIP, name));
    Duration::from_millis(found.map_or(0, |(_, millis)| *millis))
}

impl Experiment for CallersExperiment {
    fn name(&self) -> &'static str {
        "callers"
    }

    fn title(&self) -> &'static str {
        "Many callers, each with single records"
    }

    fn question(&self) -> &'static str {
        "Many callers write one record at a time, and each waits until its record is durable. How \
         many records a second are written if each caller has a session, if a task writes a batch \
         every 5 ms, by pgspate's writer, and over HTTP by `pgspate serve`? How long does a \
         caller wait?"
    }

    fn factors(&self, _setup: &LabRunSetup) -> Vec<Factor> {
        vec![
            Factor::new(TABLE, &[BankTable::Account.name(), BankTable::Transaction.name()]),
            Factor::new(SENDING, &CallerMethod::ALL.map(CallerMethod::name)),
            Factor::new(CALLERS, &CALLER_COUNTS),
            Factor::new(ROUND_TRIP, &ROUND_TRIPS.map(|(name, _)| name)),
            Factor::new(FLUSH, &[FAST, SLOW]),
        ]
    }

    fn makes_sense(&self, trial: &LabTrial) -> bool {
        let method = CallerMethod::named(trial.level(SENDING));
        let is_possible = match method {
            CallerMethod::Sessions => callers(trial) <= SESSIONS_MAX,
            CallerMethod::ServeHundred => callers(trial) <= HUNDREDS_MAX,
            _ => true,
        };
        // The way to the server and its disk are varied for one table, one at a time.
        let is_far = !trial.is(ROUND_TRIP, ROUND_TRIPS[0].0);
        let is_slow = trial.is(FLUSH, SLOW);
        let is_varied = is_far || is_slow;
        let is_plain = table(trial) == BankTable::Account
            && is_far != is_slow
            && matches!(callers(trial), 1 | 64 | 256)
            && matches!(method, CallerMethod::Sessions | CallerMethod::Writer);
        is_possible && (!is_varied || is_plain)
    }

    fn scale_default(&self) -> f64 {
        SCALE_DEFAULT
    }

    fn trial_seconds(&self, scale: f64) -> f64 {
        3.0 + duration(WARM_UP + MEASURED, scale).as_secs_f64() + 200.0 * scale
    }

    fn columns(&self) -> Vec<&'static str> {
        vec![RATE, MEDIAN, P99, SERVER_CPU, CLIENT_CPU, SERVE_CPU, WAL]
    }

    fn settings(&self, trial: &LabTrial, _context: &TrialContext) -> Vec<(String, String)> {
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        match trial.is(FLUSH, SLOW) {
            // The session that flushes sleeps before it.
            true => vec![set("commit_delay", "2000"), set("commit_siblings", "0")],
            false => Vec::new(),
        }
    }

    fn refusal(&self, trial: &LabTrial, context: &TrialContext) -> Option<String> {
        let is_served = CallerMethod::named(trial.level(SENDING)).rows_served().is_some();
        let reason = match (context.is_own(), context.program()) {
            (false, _) if !delay(trial).is_zero() => {
                "the lab delays the answers of its own server only"
            }
            (false, _) if is_served => "the lab serves tables of its own server only",
            (true, None) if is_served => "the program pgspate was not found",
            _ => return None,
        };
        Some(reason.to_owned())
    }

    fn prepare(&self, context: &TrialContext) -> Result<()> {
        let bank = BankAccounts::new(context.seed());
        let rows = scaled(ROWS, context.scale());
        let connection = context.connect()?;
        for table in TABLES {
            let name = table.name();
            let indexes = table.indexes().iter().map(|columns| table.create_index(columns));
            let statements: Vec<_> = [table.create("")].into_iter().chain(indexes).collect();
            context.sql("make the tables", &statements.join(";"))?;
            context.block_on(async {
                let text = |id, out: &mut Vec<u8>| bank.text(table, id, rows, out);
                let mut rows = NumberedRows::new(1..rows + 1, text);
                data::copy(&connection.client, name, &mut rows).await?;
                let vacuum = format!("vacuum (freeze, analyze) {name}");
                let done = connection.client.batch_execute(&vacuum).await;
                done.map_err(failed(&connection, "vacuum the table"))
            })?;
        }
        Ok(())
    }

    fn run(&self, trial: &LabTrial, context: &TrialContext) -> Result<TrialOutcome> {
        let (dsn, proxy) = way_to_server(trial, context)?;
        let method = CallerMethod::named(trial.level(SENDING));
        let (table, callers) = (table(trial), callers(trial));
        let proxy_port = proxy.as_ref().map(DelayProxy::port);
        let opened = RecordSender::open(method, callers, table, (&dsn, proxy_port), context);
        let shared = Arc::new(Calls {
            sender: context.block_on(opened)?,
            bank: BankAccounts::new(context.seed()),
            table,
            rows: scaled(ROWS, context.scale()),
            rows_of_call: method.rows_served().unwrap_or(1),
            calls: AtomicU64::new(0),
        });
        context.settle_disk();
        let mut outcome = TrialOutcome::default();
        let began = Instant::now();
        measure(&shared, callers, context, &mut outcome)?;
        let seconds = began.elapsed().as_secs_f64();
        outcome.phases.push(TrialPhase { name: "calls".to_owned(), seconds });
        outcome.number("calls", shared.calls.load(Ordering::Relaxed) as f64, Unit::Count);
        let Some(shared) = Arc::into_inner(shared) else { return Ok(outcome) };
        if let Some(sets) = context.block_on(shared.sender.close())? {
            outcome.number("records of a set", sets.records_of_set, Unit::Plain);
            outcome.number("lanes", sets.lanes as f64, Unit::Count);
        }
        Ok(outcome)
    }

    fn verify(
        &self,
        trial: &LabTrial,
        context: &TrialContext,
        outcome: &mut TrialOutcome,
    ) -> Result<()> {
        let calls = outcome.numbers.iter().find(|number| number.name == "calls");
        let expected = scaled(ROWS, context.scale()) as i64;
        let rows_of_call = CallerMethod::named(trial.level(SENDING)).rows_served().unwrap_or(1);
        let expected = expected + calls.map_or(0, |calls| calls.value as i64 * rows_of_call as i64);
        let connection = context.connect()?;
        let what = "count the records";
        let sql = format!(
            "select case when count(*) = max(id) and min(id) = 1 then count(*) else -1 end from {}",
            table(trial).name()
        );
        let found = context.block_on(number(&connection, what, &sql))?;
        if found == expected {
            return Ok(());
        }
        let message = format!("the table has other records than the {expected} that were written");
        Err(Error::new(ErrorKind::Bug, message))
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

/// Returns a duration at a scale: shorter below the default scale.
fn duration(at_default: Duration, scale: f64) -> Duration {
    at_default.mul_f64((scale / SCALE_DEFAULT).clamp(0.05, 1.0))
}

/// Returns how the callers reach the server, and the proxy on the way, if there is one.
fn way_to_server(trial: &LabTrial, context: &TrialContext) -> Result<(Dsn, Option<DelayProxy>)> {
    let delay = delay(trial);
    if delay.is_zero() {
        return Ok((context.dsn().clone(), None));
    }
    context.block_on(async {
        let connection = context.open().await?;
        let what = "read the server's port";
        let port = number(&connection, what, "select current_setting('port')::int8").await?;
        let address = SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap_or_default()));
        let started = DelayProxy::start(address, delay, context.runtime()).await;
        let proxy = started.map_err(|error| {
            Error::new(ErrorKind::Connect, format!("could not start a proxy: {error}"))
        })?;
        Ok((context.dsn().with_host("127.0.0.1", proxy.port()), Some(proxy)))
    })
}

/// What all callers of a trial share.
struct Calls {
    sender: RecordSender,
    bank: BankAccounts,
    table: BankTable,
    /// The number of rows before the first call.
    rows: u64,
    rows_of_call: u64,
    calls: AtomicU64,
}

/// Calls until `end`. Returns the waits of the calls that ended after `start`, in milliseconds.
async fn call(
    shared: Arc<Calls>,
    caller: usize,
    (start, end): (Instant, Instant),
) -> Result<Vec<f64>> {
    let mut waits = Vec::new();
    while Instant::now() < end {
        let call = shared.calls.fetch_add(1, Ordering::Relaxed);
        let first = shared.rows + 1 + call * shared.rows_of_call;
        let fields = |id| shared.bank.fields(shared.table, id, shared.rows);
        let records = (first..first + shared.rows_of_call).map(fields).collect();
        let began = Instant::now();
        shared.sender.send(caller, records).await?;
        let ended = Instant::now();
        if (start..end).contains(&ended) {
            waits.push((ended - began).as_secs_f64() * 1000.0);
        }
    }
    Ok(waits)
}

/// Runs the callers, and records rate, waits, CPU and WAL.
fn measure(
    shared: &Arc<Calls>,
    callers: usize,
    context: &TrialContext,
    outcome: &mut TrialOutcome,
) -> Result<()> {
    let start = Instant::now() + duration(WARM_UP, context.scale());
    let measured = duration(MEASURED, context.scale());
    let window = (start, start + measured);
    let connection = context.connect()?;
    let probe = context.probe();
    let mut waits = Vec::new();
    let (mut readings, mut wal, mut serve_cpu) = (Vec::new(), Vec::new(), Vec::new());
    context.block_on(async {
        let mut tasks = JoinSet::new();
        for caller in 0..callers {
            tasks.spawn_on(call(shared.clone(), caller, window), context.runtime());
        }
        for at in [window.0, window.1] {
            tokio::time::sleep_until(at.into()).await;
            readings.push(probe.read());
            serve_cpu.push(shared.sender.serve_cpu_seconds());
            wal.push(wal_bytes(&connection).await?);
        }
        while let Some(ended) = tasks.join_next().await {
            let ended = ended.map_err(|error| Error::new(ErrorKind::Bug, error.to_string()))?;
            waits.append(&mut ended?);
        }
        Ok(())
    })?;
    let records = waits.len() as f64 * shared.rows_of_call as f64;
    let count = records.max(1.0);
    outcome.number(RATE, records / measured.as_secs_f64(), Unit::PerSecond);
    waits.sort_by(f64::total_cmp);
    outcome.number_if(
        MEDIAN,
        Spread::of(waits.iter().copied()).map(|it| it.median),
        Unit::Milliseconds,
    );
    outcome.number_if(P99, waits.get(waits.len() * 99 / 100).copied(), Unit::Milliseconds);
    outcome.number(WAL, (wal[1] - wal[0]) as f64 / count, Unit::Bytes);
    let mut used = TrialOutcome::default();
    readings[1].add_since(&readings[0], measured.as_secs_f64(), &mut used);
    for (name, per_record) in [("server CPU", SERVER_CPU), ("client CPU", CLIENT_CPU)] {
        let seconds = used.numbers.iter().find(|number| number.name == name);
        let millis = seconds.map(|number| number.value * 1000.0 / count);
        outcome.number_if(per_record, millis, Unit::Milliseconds);
    }
    let seconds = serve_cpu[1].zip(serve_cpu[0]).map(|(now, then)| now - then);
    let millis = seconds.map(|seconds| seconds * 1000.0 / count);
    outcome.number_if(SERVE_CPU, millis, Unit::Milliseconds);
    Ok(())
}
