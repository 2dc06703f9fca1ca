//! Where trials are made, and under which conditions.
//!
//! Results of two conditions are never compared, so they are never in one folder.

use std::fs;
use std::path::{Path, PathBuf};

use pgspate::{Error, Kind, Result};
use pgspate_embedded::{Installation, Step, locate};
use tokio::runtime::Handle;

use super::{Event, Options};
use crate::dataset::DataFacts;
use crate::foreign::Foreign;
use crate::ground::stopped;
use crate::own;
use crate::results::{Conditions, file_error};
use crate::stop::Stop;

/// Where trials are made.
pub(super) enum Place {
    Own(Installation),
    Foreign(Box<Foreign>),
}

impl Place {
    pub(super) fn open(
        options: &Options,
        runtime: &Handle,
        stop: &Stop,
        show: &dyn Fn(&Event<'_>),
    ) -> Result<Place> {
        if let Some(dsn) = &options.to {
            let opened = runtime.block_on(async {
                tokio::select! {
                    () = stop.asked() => Err(stopped()),
                    opened = Foreign::open(dsn) => opened,
                }
            })?;
            return Ok(Place::Foreign(Box::new(opened)));
        }
        Ok(Place::Own(match &options.installation {
            Some(found) => found.clone(),
            None => locate(&|step: &Step| show(&Event::Server(step))).map_err(own::embedded)?,
        }))
    }

    pub(super) fn is_own(&self) -> bool {
        matches!(self, Place::Own(_))
    }

    pub(super) fn conditions(&self, scale: f64, seed: u64, data: DataFacts) -> Conditions {
        let (target, postgres) = match self {
            Place::Own(found) => ("own".to_owned(), found.version.clone()),
            Place::Foreign(foreign) => {
                let version = foreign.connection().parameter("server_version").unwrap_or_default();
                (foreign.connection().place().to_owned(), version.to_owned())
            }
        };
        let pgspate = env!("CARGO_PKG_VERSION").to_owned();
        Conditions { scale, seed, target, postgres, pgspate, data }
    }

    pub(super) fn close(self, runtime: &Handle) -> Result<()> {
        match self {
            Place::Own(_) => Ok(()),
            Place::Foreign(foreign) => runtime.block_on(foreign.close()),
        }
    }
}

/// That results are there which cannot stand beside those that are asked for.
pub(super) fn differ(known: &Conditions, now: &Conditions, folder: &Path, name: &str) -> Error {
    let (what, then, now) = if known.data != now.data {
        ("set of data", known.data.said(), now.data.said())
    } else if known.scale != now.scale {
        ("scale", known.scale.to_string(), now.scale.to_string())
    } else if known.seed != now.seed {
        ("seed", known.seed.to_string(), now.seed.to_string())
    } else if known.target != now.target {
        ("server", known.target.clone(), now.target.clone())
    } else if known.postgres != now.postgres {
        ("version of PostgreSQL", known.postgres.clone(), now.postgres.clone())
    } else {
        ("version of pgspate", known.pgspate.clone(), now.pgspate.clone())
    };
    let folder = folder.display();
    let message =
        format!("results of {name} in \"{folder}\" are of another {what}: {then}, not {now}");
    Error::new(Kind::Usage, message)
        .hint("Give another folder with `--results`, or drop what is measured with `--fresh`.")
}

/// The folder of an experiment's files. What a run that was killed has left is removed first.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn make(results: &Path, name: &str) -> Result<Scratch> {
        let folder = std::path::absolute(results.join(format!("scratch-{name}")))
            .map_err(|error| file_error("find", results, error))?;
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| file_error("create", &folder, error))?;
        Ok(Scratch(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next run.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Data;

    #[test]
    fn conditions_that_differ_are_named() {
        let known = Conditions {
            scale: 0.1,
            seed: 1,
            target: "own".to_owned(),
            postgres: "15.1".to_owned(),
            pgspate: "0.1.0".to_owned(),
            data: DataFacts::default(),
        };
        let now = Conditions { scale: 0.2, ..known.clone() };
        let error = differ(&known, &now, Path::new("lab"), "bulk");
        let expected = "results of bulk in \"lab\" are of another scale: 0.1, not 0.2";
        assert_eq!(error.to_string(), expected);
        let data = DataFacts { kind: Data::Tpch, ..DataFacts::default() };
        let error = differ(&known, &Conditions { data, ..now.clone() }, Path::new("lab"), "bulk");
        let expected = "results of bulk in \"lab\" are of another set of data: imdb, not tpch";
        assert_eq!(error.to_string(), expected);
    }
}
