//! `bulk`: seven compressed files into empty tables.
//!
//! All strategies load the same rows; what they leave is compared, row by row, by a checksum.
//! Settings are looked at for every strategy; autovacuum, synchronous_commit and indexes are
//! changed one at a time from the settings that PostgreSQL comes with.

mod figures;
pub(crate) mod strategies;

use pgspate::Result;

use crate::data::imdb::{self, TABLES};
use crate::experiment::{Experiment, Factor, Outcome, Published, Setup, Trial, Unit};
use crate::ground::Ground;
use crate::report::figure::Figure;
use crate::results::Results;
use strategies::{EACH, ONE, PGSPATE};

/// Seven files, by three strategies.
pub(super) struct Bulk;

const AS_IT_COMES: &str = "as they come";
const TUNED: &str = "tuned";

impl Experiment for Bulk {
    fn name(&self) -> &'static str {
        "bulk"
    }

    fn title(&self) -> &'static str {
        "Loading seven compressed files"
    }

    fn question(&self) -> &'static str {
        "How fast do seven compressed files get into PostgreSQL: by one session, by a session for \
         each file, or by pgspate with all its lanes within each file; and what do settings, \
         autovacuum, synchronous_commit and indexes change?"
    }

    fn published(&self) -> Published {
        Published {
            setting: "IMDb's seven files, before and after tuning; the files are those that ours \
                      are shaped like.",
            figures: vec![
                ("the largest file", "from 5 min 45 s to 44 s"),
                ("all seven files", "from 2 min 9 s to 57 s"),
            ],
        }
    }

    fn factors(&self, _setup: &Setup) -> Vec<Factor> {
        vec![
            Factor::new("strategy", &[ONE, EACH, PGSPATE]),
            Factor::new("settings", &[AS_IT_COMES, TUNED]),
            Factor::new("autovacuum", &["on", "off"]),
            Factor::new("synchronous_commit", &["on", "off"]),
            Factor::new("indexes", &["none", "present"]),
        ]
    }

    fn makes_sense(&self, trial: &Trial) -> bool {
        let setup = Setup { scale: 1.0, is_own: true };
        // Whatever the strategy, one other factor at most.
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
            "server CPU",
            "client CPU",
            "WAL",
            "checkpoints",
            "disk queue",
            "disk writes",
        ]
    }

    fn settings(&self, trial: &Trial, ground: &Ground) -> Vec<(String, String)> {
        let mut settings = match trial.level("settings") {
            TUNED => ground.tuned(),
            _ => Vec::new(),
        };
        for name in ["autovacuum", "synchronous_commit"] {
            if trial.is(name, "off") {
                settings.push((name.to_owned(), "off".to_owned()));
            }
        }
        settings
    }

    fn prepare(&self, ground: &Ground) -> Result<()> {
        imdb::write(ground.scratch(), ground.scale(), ground.seed())?;
        ground.sql("make the tables", &TABLES.map(|table| table.create).join(";\n"))
    }

    fn run(&self, trial: &Trial, ground: &Ground) -> Result<Outcome> {
        let files = imdb::write(ground.scratch(), ground.scale(), ground.seed())?;
        if trial.is("indexes", "present") {
            let all: Vec<&str> = TABLES.iter().flat_map(|it| it.indexes.iter().copied()).collect();
            ground.sql("make the indexes", &all.join(";\n"))?;
        }
        let mut outcome = Outcome::default();
        let strategy = trial.level("strategy");
        let (rows, largest) = strategies::load(strategy, &files, ground, &mut outcome)?;
        outcome.number("rows", rows as f64, Unit::Count);
        outcome.number("rows a second", rows as f64 / outcome.seconds(), Unit::PerSecond);
        outcome.number("largest file", largest, Unit::Seconds);
        Ok(outcome)
    }

    fn verify(&self, _trial: &Trial, ground: &Ground, _outcome: &mut Outcome) -> Result<()> {
        verify(ground)
    }

    fn figures(&self, results: &Results) -> Vec<Figure> {
        figures::all(results)
    }

    fn answer(&self, results: &Results) -> String {
        figures::answer(results)
    }
}

/// Compares rows and a checksum of all values with what the trials before left.
pub(crate) fn verify(ground: &Ground) -> Result<()> {
    let connection = ground.connect()?;
    for table in TABLES {
        let name = table.name;
        let sql = format!(
            "select count(*)::text || ' rows, ' || sum(hashtextextended(t::text, 0))::text \
             from {name} t"
        );
        let found = ground.block_on(async {
            let row = connection.client.query_one(&sql, &[]).await;
            let row = row
                .map_err(|error| connection.explain(format!("could not look at {name}"), error))?;
            Ok(row.get::<_, Option<String>>(0).unwrap_or_default())
        })?;
        let rows = table.rows_at(ground.scale());
        ground.agree(&format!("the number of rows in {name}"), &rows.to_string())?;
        let counted = found.split(' ').next().unwrap_or_default();
        ground.agree(&format!("the number of rows in {name}"), counted)?;
        ground.agree(&format!("the content of {name}"), &found)?;
    }
    Ok(())
}
