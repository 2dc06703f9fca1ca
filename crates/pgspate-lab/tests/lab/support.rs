//! A small experiment, and functions that run experiments.

use std::path::Path;
use std::sync::Mutex;

use pgspate::Result;
use pgspate::target::connect::{Dsn, Environment};
use pgspate_embedded::{silent, testing};
use pgspate_lab::report::figure::{Bar, BarGroup, Bars, Figure, Plot};
use pgspate_lab::{
    Comparison, Experiment, Factor, LabEvent, LabOptions, LabRunSetup, LabSummary, LabTrial,
    Publication, PublishedResults, Results, RunStop, TrialContext, TrialOutcome, Unit,
};
use tokio::runtime::Runtime;

/// The number of rows in the table before each trial.
pub(crate) const ROWS_BEFORE: i64 = 7;
/// HTML in names of the experiment. The report page must show this HTML as text.
pub(crate) const HOSTILE: &str = "</td><script>alert(1)</script>";

/// Inserts rows in two ways, with two levels of a setting.
pub(crate) struct ToyExperiment;

impl Experiment for ToyExperiment {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn title(&self) -> &'static str {
        "A toy"
    }

    fn question(&self) -> &'static str {
        "Does </p><script>alert(2)</script> it work?"
    }

    fn published(&self) -> Option<PublishedResults> {
        Some(PublishedResults {
            source: Publication { title: "a <b>way</b> to \"load\"", url: "#\"><script>" },
            setting: "Elsewhere.",
            figures: vec![("a <b>way</b>", "5 s & more")],
        })
    }

    fn comparisons(&self, results: &Results) -> Vec<Comparison> {
        let Some(seconds) = results.spread(&[], "seconds") else { return Vec::new() };
        let ours = (HOSTILE, seconds.clone());
        vec![Comparison::new(HOSTILE, ours, (HOSTILE, seconds), Unit::Seconds)]
    }

    fn factors(&self, setup: &LabRunSetup) -> Vec<Factor> {
        assert!(setup.scale > 0.0);
        let ways = Factor::new("way", &["one by one", HOSTILE]);
        vec![ways, Factor::new("work_mem", &["as it comes", "8MB"])]
    }

    fn makes_sense(&self, trial: &LabTrial) -> bool {
        trial.is("way", "one by one") || trial.is("work_mem", "as it comes")
    }

    fn scale_default(&self) -> f64 {
        0.5
    }

    fn trial_seconds(&self, _scale: f64) -> f64 {
        0.1
    }

    fn columns(&self) -> Vec<&'static str> {
        vec!["seconds", "rows", "server CPU", "WAL"]
    }

    fn settings(&self, trial: &LabTrial, _ground: &TrialContext) -> Vec<(String, String)> {
        match trial.level("work_mem") {
            "8MB" => vec![("work_mem".to_owned(), "8MB".to_owned())],
            _ => Vec::new(),
        }
    }

    fn prepare(&self, context: &TrialContext) -> Result<()> {
        std::fs::write(context.scratch().join("a file"), "of the trial's own").unwrap();
        let sql = format!(
            "create table toy (id int); insert into toy select generate_series(1, {ROWS_BEFORE})"
        );
        context.sql("make the table", &sql)
    }

    fn run(&self, trial: &LabTrial, context: &TrialContext) -> Result<TrialOutcome> {
        assert!(context.scratch().join("a file").is_file());
        let mut outcome = TrialOutcome::default();
        let connection = context.connect()?;
        outcome.phase("insert", || {
            context.sql("insert", "insert into toy select generate_series(1, 1000)")
        })?;
        let rows = context.block_on(async {
            let row = connection.client.query_one("select count(*) from toy", &[]).await;
            let row = row.map_err(|error| connection.explain("could not count", error))?;
            Ok(row.get::<_, i64>(0))
        })?;
        let shown = |name: &str| {
            context.block_on(async {
                let row = connection.client.query_one(&format!("show {name}"), &[]).await;
                let row = row.map_err(|error| connection.explain("could not ask", error))?;
                Ok(row.get::<_, String>(0))
            })
        };
        assert_eq!(shown("work_mem")? == "8MB", trial.is("work_mem", "8MB"));
        // The user's settings for sessions must not apply here.
        assert_eq!(shown("statement_timeout")?, "0");
        assert_eq!(shown("application_name")?, "pgspate lab");
        outcome.number("rows", rows as f64, Unit::Count);
        context.expect_same("the number of rows", &rows.to_string())?;
        outcome.notes.push(format!("a note {HOSTILE}"));
        Ok(outcome)
    }

    fn figures(&self, results: &Results) -> Vec<Figure> {
        let ways = results.levels("way").into_iter().filter_map(|way| {
            Some(Bar::measured(&way, results.spread(&[("way", &way)], "seconds")?))
        });
        let group = BarGroup { name: HOSTILE.to_owned(), bars: ways.collect() };
        let bars = Bars { unit: Some(Unit::Seconds), groups: vec![group] };
        vec![Figure::new(HOSTILE, HOSTILE, Plot::Bars(bars))]
    }

    fn answer(&self, results: &Results) -> String {
        format!("It does, {HOSTILE}, in {} ways.", results.levels("way").len())
    }
}

pub(crate) static TOY: ToyExperiment = ToyExperiment;

/// Returns the options of a run of three trials, each repeated twice.
pub(crate) fn options(folder: &Path) -> LabOptions {
    LabOptions {
        experiments: vec![&TOY],
        data: Vec::new(),
        scale: Some(0.5),
        repeats: 2,
        seed: 1,
        folder: folder.to_owned(),
        to: None,
        installation: Some(testing::installation(&silent).unwrap()),
        fresh: false,
        program: None,
        only: Vec::new(),
    }
}

/// Runs the experiments. Stops after this number of trials. Returns the result, and the labels of
/// the trials that began.
pub(crate) fn run(
    options: &LabOptions,
    stop_after: Option<usize>,
) -> (Result<LabSummary>, Vec<String>) {
    run_with_events(options, stop_after, &|_, _| {})
}

/// Runs the experiments like [`run`], and calls `on_event` at each event.
pub(crate) fn run_with_events(
    options: &LabOptions,
    stop_after: Option<usize>,
    on_event: &dyn Fn(&LabEvent<'_>, &RunStop),
) -> (Result<LabSummary>, Vec<String>) {
    let runtime = Runtime::new().unwrap();
    let (stop, seen) = (RunStop::default(), Mutex::new(Vec::new()));
    let result = pgspate_lab::run(options, runtime.handle(), &stop, &|event| {
        on_event(event, &stop);
        if let LabEvent::TrialStarted { label, nth, .. } = event {
            seen.lock().unwrap().push(format!("{nth}: {label}"));
        }
        if let LabEvent::Measured { .. } = event
            && Some(seen.lock().unwrap().len()) == stop_after
        {
            stop.request();
        }
    });
    (result, seen.into_inner().unwrap())
}

/// Parses a connection string, with these variables of the environment.
pub(crate) fn dsn_with(address: &str, variables: &[(&str, &str)]) -> Dsn {
    let mut environment = Environment::default();
    for (name, value) in variables {
        environment.variables.insert((*name).to_owned(), (*value).to_owned());
    }
    Dsn::resolve(Some(address), &environment).unwrap().unwrap()
}

/// Parses a connection string.
pub(crate) fn dsn(address: &str) -> Dsn {
    dsn_with(address, &[])
}
