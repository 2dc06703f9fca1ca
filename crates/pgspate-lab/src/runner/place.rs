//! Where trials are made, and under which conditions.
//!
//! Results of two conditions are never compared, so they are never in one folder.

use std::fs;
use std::path::{Path, PathBuf};

use pgspate::{Error, Kind, Result};
use pgspate_embedded::{Installation, Step, Throwaway, locate};
use tokio::runtime::Handle;

use super::{Event, Options};
use crate::dataset::DataFacts;
use crate::facts::{self, Machine};
use crate::foreign::Foreign;
use crate::ground::stopped;
use crate::own;
use crate::random::Random;
use crate::results::{Conditions, file_error};
use crate::stop::Stop;

/// The commit that this program was built from: `PGSPATE_COMMIT=$(git rev-parse --short HEAD)` in
/// the environment of the build, and nothing otherwise.
const BUILD: Option<&str> = option_env!("PGSPATE_COMMIT");

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

    /// Of the machine, and of another server's settings; it does not tell what they are.
    ///
    /// # Errors
    /// The server cannot be asked.
    pub(super) fn fingerprint(&self, runtime: &Handle) -> Result<String> {
        let machine = Machine::here(None);
        // A little of the memory is the kernel's own, and more with the next one.
        let memory = (machine.memory_bytes as f64 / (1u64 << 30) as f64).round();
        let mut all = format!("{} {} {memory}", machine.cpu, machine.cores);
        if let Place::Foreign(foreign) = self {
            let settings = runtime.block_on(facts::settings(foreign.connection()))?;
            all.extend(settings.iter().map(|(name, value)| format!("\n{name} = {value}")));
        }
        Ok(format!("{:016x}", Random::new(0, &all).next()))
    }

    /// File system and device that data of the lab's own servers will be on.
    ///
    /// # Errors
    /// There is no folder for them.
    pub(super) fn storage(&self) -> Result<String> {
        match self {
            Place::Own(_) => {
                let folder = Throwaway::temporary_folder().map_err(own::embedded)?;
                Ok(facts::storage(&folder))
            }
            Place::Foreign(_) => Ok(String::new()),
        }
    }

    /// What all trials of an experiment have in common; `place` is a fingerprint.
    ///
    /// # Errors
    /// As [`Place::storage`].
    pub(super) fn conditions(
        &self,
        scale: f64,
        seed: u64,
        data: DataFacts,
        place: &str,
    ) -> Result<Conditions> {
        let (target, postgres) = match self {
            Place::Own(found) => ("own".to_owned(), found.version.clone()),
            Place::Foreign(foreign) => {
                let version = foreign.connection().parameter("server_version").unwrap_or_default();
                (foreign.connection().place().to_owned(), version.to_owned())
            }
        };
        let pgspate = env!("CARGO_PKG_VERSION").to_owned();
        let build = BUILD.unwrap_or_default().to_owned();
        let (place, storage) = (place.to_owned(), self.storage()?);
        Ok(Conditions { scale, seed, target, postgres, pgspate, build, place, storage, data })
    }

    /// Leaves it as it was; tells what had to be left there, if something had.
    pub(super) fn close(self, runtime: &Handle) -> Result<Option<&'static str>> {
        match self {
            Place::Own(_) => Ok(None),
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
    } else if known.pgspate != now.pgspate {
        ("version of pgspate", known.pgspate.clone(), now.pgspate.clone())
    } else if !Conditions::is_same(&known.build, &now.build) {
        ("build of pgspate", known.build.clone(), now.build.clone())
    } else if !Conditions::is_same(&known.storage, &now.storage) {
        ("file system or disk", known.storage.clone(), now.storage.clone())
    } else {
        ("machine, or a server with other settings", known.place.clone(), now.place.clone())
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
            build: String::new(),
            place: "a".to_owned(),
            storage: "tmpfs".to_owned(),
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
        let other = Conditions { place: "b".to_owned(), ..known.clone() };
        let error = differ(&known, &other, Path::new("lab"), "bulk").to_string();
        assert!(error.ends_with("another machine, or a server with other settings: a, not b"));
        let other = Conditions { storage: "ext4 on vda".to_owned(), ..known.clone() };
        let error = differ(&known, &other, Path::new("lab"), "bulk").to_string();
        assert!(error.ends_with("of another file system or disk: tmpfs, not ext4 on vda"));
    }
}
