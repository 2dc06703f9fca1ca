//! `bulk`: seven compressed files into empty tables; or TPC-H's eight files, or the user's files.
//!
//! All strategies load the same rows. A checksum over all rows compares the loaded tables. Every
//! strategy runs with several settings. Autovacuum, synchronous_commit and indexes are changed one
//! at a time from PostgreSQL's defaults.

mod figures;
pub(crate) mod strategies;

use pgspate::Result;
use pgspate::target::quote_ident;

use crate::comparison::Comparison;
use crate::context::TrialContext;
use crate::dataset::DataKind;
use crate::experiment::{
    Experiment, Factor, LabRunSetup, LabTrial, Publication, PublishedResults, TrialOutcome, Unit,
};
use crate::report::figure::Figure;
use crate::results::Results;
pub(crate) use figures::left_out;
use strategies::{EACH, ONE, PGSPATE};

/// The experiment that loads files by three strategies.
pub(super) struct BulkExperiment;

/// The publication whose loads this experiment and `storage` repeat.
pub(crate) const PUBLISHED: Publication = Publication {
    title: "AWS Database Blog, Optimized bulk loading in Amazon RDS for PostgreSQL",
    url: "https://aws.amazon.com/blogs/database/optimized-bulk-loading-in-amazon-rds-for-postgresql/",
};

const DEFAULT_SETTINGS: &str = "as they come";
const TUNED: &str = "tuned";

impl Experiment for BulkExperiment {
    fn name(&self) -> &'static str {
        "bulk"
    }

    fn title(&self) -> &'static str {
        "Loading seven compressed files"
    }

    fn question(&self) -> &'static str {
        "How fast do seven compressed files load: by one session, by a session for each file, or \
         by pgspate with several lanes for each file? What do settings, autovacuum, \
         synchronous_commit and indexes change?"
    }

    fn published(&self) -> Option<PublishedResults> {
        Some(PublishedResults {
            source: PUBLISHED,
            setting: "IMDb's seven files on Amazon RDS, before and after tuning. The lab's files \
                      have the same layout and sizes.",
            figures: vec![
                ("the largest file", "from 5 min 45 s to 44 s"),
                ("all seven files", "from 2 min 9 s to 57 s"),
            ],
        })
    }

    fn takes_data(&self) -> bool {
        true
    }

    fn title_with(&self, data: DataKind) -> &'static str {
        match data {
            DataKind::Imdb => self.title(),
            DataKind::Tpch => "Loading TPC-H's eight tables from compressed files",
            DataKind::Files => "Loading your own files",
        }
    }

    fn question_with(&self, data: DataKind) -> &'static str {
        match data {
            DataKind::Imdb => self.question(),
            DataKind::Tpch => {
                "How fast do TPC-H's eight tables load from compressed files: by one session, by \
                 a session for each file, or by pgspate with several lanes for each table? What \
                 do settings, autovacuum, synchronous_commit and keys with their indexes change?"
            }
            DataKind::Files => {
                "How fast do these files load: by one session, by a session for each file, or by \
                 pgspate with several lanes for each table? What do settings, autovacuum and \
                 synchronous_commit change?"
            }
        }
    }

    fn factors(&self, setup: &LabRunSetup) -> Vec<Factor> {
        // The user's files have no information about keys.
        let indexes: &[&str] = match setup.data {
            DataKind::Files => &["none"],
            DataKind::Imdb | DataKind::Tpch => &["none", "present"],
        };
        vec![
            Factor::new("strategy", &[ONE, EACH, PGSPATE]),
            Factor::new("settings", &[DEFAULT_SETTINGS, TUNED]),
            Factor::new("autovacuum", &["on", "off"]),
            Factor::new("synchronous_commit", &["on", "off"]),
            Factor::new("indexes", indexes),
        ]
    }

    fn makes_sense(&self, trial: &LabTrial) -> bool {
        let setup = LabRunSetup { scale: 1.0, is_own: true, data: DataKind::Imdb };
        // At most one factor besides the strategy differs from its baseline.
        let factors = self.factors(&setup);
        trial.changed(&factors[1..]) <= 1
    }

    fn scale_default(&self) -> f64 {
        0.01
    }

    fn trial_seconds(&self, scale: f64) -> f64 {
        4.0 + 160.0 * scale
    }

    fn columns(&self) -> Vec<&'static str> {
        vec![
            "seconds",
            "largest file",
            "largest table",
            "server CPU",
            "client CPU",
            "WAL",
            "checkpoints",
            "disk queue",
            "disk writes",
        ]
    }

    fn settings(&self, trial: &LabTrial, context: &TrialContext) -> Vec<(String, String)> {
        let mut settings = match trial.level("settings") {
            TUNED => context.tuned(),
            _ => Vec::new(),
        };
        for name in ["autovacuum", "synchronous_commit"] {
            if trial.is(name, "off") {
                settings.push((name.to_owned(), "off".to_owned()));
            }
        }
        settings
    }

    fn refusal(&self, trial: &LabTrial, context: &TrialContext) -> Option<String> {
        strategies::refusal(trial.level("strategy"), context)
    }

    fn prepare(&self, context: &TrialContext) -> Result<()> {
        prepare(context)
    }

    fn run(&self, trial: &LabTrial, context: &TrialContext) -> Result<TrialOutcome> {
        if trial.is("indexes", "present") {
            let all = context.tables()?.iter().flat_map(|table| table.indexes.iter().copied());
            context.sql("make the indexes", &all.collect::<Vec<_>>().join(";\n"))?;
        }
        let mut outcome = TrialOutcome::default();
        let (rows, largest) = strategies::load(trial.level("strategy"), context, &mut outcome)?;
        outcome.number("rows", rows as f64, Unit::Count);
        outcome.number("rows a second", rows as f64 / outcome.seconds(), Unit::PerSecond);
        let name = figures::largest_number(context.data().kind());
        outcome.number(name, largest, Unit::Seconds);
        Ok(outcome)
    }

    fn verify(
        &self,
        _trial: &LabTrial,
        context: &TrialContext,
        _outcome: &mut TrialOutcome,
    ) -> Result<()> {
        verify(context)
    }

    fn figures(&self, results: &Results) -> Vec<Figure> {
        figures::all(results)
    }

    fn comparisons(&self, results: &Results) -> Vec<Comparison> {
        figures::comparisons(results)
    }

    fn answer(&self, results: &Results) -> String {
        figures::answer(results)
    }
}

/// Creates the tables. Their columns must be known before.
pub(crate) fn prepare(context: &TrialContext) -> Result<()> {
    let tables = context.tables()?.iter().map(|table| table.create.as_str());
    context.sql("make the tables", &tables.collect::<Vec<_>>().join(";\n"))
}

/// Compares the number of rows and a checksum of all values with those of earlier trials.
pub(crate) fn verify(context: &TrialContext) -> Result<()> {
    let connection = context.connect()?;
    for table in context.tables()? {
        let name = &table.name;
        // `t.*` is the whole row, even if a column is named t.
        let sql = format!(
            "select count(*)::text || ' rows, ' || sum(hashtextextended((t.*)::text, 0))::text \
             from {} t",
            context.table(&quote_ident(name))
        );
        let found = context.block_on(async {
            let row = connection.client.query_one(&sql, &[]).await;
            let row = row
                .map_err(|error| connection.explain(format!("could not look at {name}"), error))?;
            Ok(row.get::<_, Option<String>>(0).unwrap_or_default())
        })?;
        // The sum over no rows is null.
        let counted = if found.is_empty() { "0" } else { found.split(' ').next().unwrap_or("0") };
        context.expect_same(&format!("the number of rows in {name}"), &table.rows.to_string())?;
        context.expect_same(&format!("the number of rows in {name}"), counted)?;
        let content = format!("the content of {name}");
        match context.data().kind() {
            // A checksum in the results would confirm a correct guess of the user's rows.
            DataKind::Files => context.expect_same_in_run(&content, &found)?,
            DataKind::Imdb | DataKind::Tpch => context.expect_same(&content, &found)?,
        }
    }
    Ok(())
}
