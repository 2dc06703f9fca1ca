//! `bulk`: seven compressed files into empty tables; or TPC-H's eight, or files of the user's own.
//!
//! All strategies load the same rows; what they leave is compared, row by row, by a checksum.
//! Settings are looked at for every strategy; autovacuum, synchronous_commit and indexes are
//! changed one at a time from the settings that PostgreSQL comes with.

mod figures;
pub(crate) mod strategies;

use pgspate::Result;
use pgspate::target::quote_ident;

use crate::dataset::Data;
use crate::experiment::{Experiment, Factor, Outcome, Published, Setup, Trial, Unit};
use crate::ground::Ground;
use crate::report::figure::Figure;
use crate::results::Results;
pub(crate) use figures::left_out;
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

    fn takes_data(&self) -> bool {
        true
    }

    fn title_with(&self, data: Data) -> &'static str {
        match data {
            Data::Imdb => self.title(),
            Data::Tpch => "Loading TPC-H's eight tables from compressed files",
            Data::Files => "Loading files of one's own",
        }
    }

    fn question_with(&self, data: Data) -> &'static str {
        match data {
            Data::Imdb => self.question(),
            Data::Tpch => {
                "How fast do TPC-H's eight tables get from compressed files into PostgreSQL: by \
                 one session, by a session for each file, or by pgspate with all its lanes within \
                 each table; and what do settings, autovacuum, synchronous_commit and keys with \
                 their indexes change?"
            }
            Data::Files => {
                "How fast do these files get into PostgreSQL: by one session, by a session for \
                 each file, or by pgspate with all its lanes within each table; and what do \
                 settings, autovacuum and synchronous_commit change?"
            }
        }
    }

    fn factors(&self, setup: &Setup) -> Vec<Factor> {
        // Files of one's own do not tell of keys.
        let indexes: &[&str] = match setup.data {
            Data::Files => &["none"],
            Data::Imdb | Data::Tpch => &["none", "present"],
        };
        vec![
            Factor::new("strategy", &[ONE, EACH, PGSPATE]),
            Factor::new("settings", &[AS_IT_COMES, TUNED]),
            Factor::new("autovacuum", &["on", "off"]),
            Factor::new("synchronous_commit", &["on", "off"]),
            Factor::new("indexes", indexes),
        ]
    }

    fn makes_sense(&self, trial: &Trial) -> bool {
        let setup = Setup { scale: 1.0, is_own: true, data: Data::Imdb };
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
            "largest table",
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

    fn refusal(&self, trial: &Trial, ground: &Ground) -> Option<String> {
        strategies::refusal(trial.level("strategy"), ground)
    }

    fn prepare(&self, ground: &Ground) -> Result<()> {
        prepare(ground)
    }

    fn run(&self, trial: &Trial, ground: &Ground) -> Result<Outcome> {
        if trial.is("indexes", "present") {
            let all = ground.tables()?.iter().flat_map(|table| table.indexes.iter().copied());
            ground.sql("make the indexes", &all.collect::<Vec<_>>().join(";\n"))?;
        }
        let mut outcome = Outcome::default();
        let (rows, largest) = strategies::load(trial.level("strategy"), ground, &mut outcome)?;
        outcome.number("rows", rows as f64, Unit::Count);
        outcome.number("rows a second", rows as f64 / outcome.seconds(), Unit::PerSecond);
        let name = figures::largest_number(ground.data().kind());
        outcome.number(name, largest, Unit::Seconds);
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

/// Makes the tables, which takes knowing them.
pub(crate) fn prepare(ground: &Ground) -> Result<()> {
    let tables = ground.tables()?.iter().map(|table| table.create.as_str());
    ground.sql("make the tables", &tables.collect::<Vec<_>>().join(";\n"))
}

/// Compares rows and a checksum of all values with what the trials before left.
pub(crate) fn verify(ground: &Ground) -> Result<()> {
    let connection = ground.connect()?;
    for table in ground.tables()? {
        let name = &table.name;
        // A column may be named t, too.
        let sql = format!(
            "select count(*)::text || ' rows, ' || sum(hashtextextended((t.*)::text, 0))::text \
             from {} t",
            ground.table(&quote_ident(name))
        );
        let found = ground.block_on(async {
            let row = connection.client.query_one(&sql, &[]).await;
            let row = row
                .map_err(|error| connection.explain(format!("could not look at {name}"), error))?;
            Ok(row.get::<_, Option<String>>(0).unwrap_or_default())
        })?;
        // Of no rows there is no sum.
        let counted = if found.is_empty() { "0" } else { found.split(' ').next().unwrap_or("0") };
        ground.agree(&format!("the number of rows in {name}"), &table.rows.to_string())?;
        ground.agree(&format!("the number of rows in {name}"), counted)?;
        let content = format!("the content of {name}");
        match ground.data().kind() {
            // Of a table whose rows can be guessed the sum would tell whether a guess is right.
            Data::Files => ground.agree_unkept(&content, &found)?,
            Data::Imdb | Data::Tpch => ground.agree(&content, &found)?,
        }
    }
    Ok(())
}
