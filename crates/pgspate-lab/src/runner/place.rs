//! The server that trials run on, and the conditions of a run.
//!
//! Results of different conditions are never compared, so they are never in one folder.

use std::fs;
use std::path::{Path, PathBuf};

use pgspate::{Error, ErrorKind, Result};
use pgspate_embedded::{Installation, ServerStep, ThrowawayServer, locate};
use tokio::runtime::Handle;

use super::{LabEvent, LabOptions};
use crate::context::stopped;
use crate::dataset::DataFacts;
use crate::facts::{self, Machine};
use crate::lab_server;
use crate::random::SeededRandom;
use crate::results::{RunConditions, file_error};
use crate::stop::RunStop;
use crate::user_server::UserServer;

/// The commit that this program was built from. Known only if the build's environment had
/// `PGSPATE_COMMIT=$(git rev-parse --short HEAD)`.
const BUILD: Option<&str> = option_env!("PGSPATE_COMMIT");

/// The server that trials run on.
pub(super) enum TrialPlace {
    LabServer(Installation),
    UserServer(Box<UserServer>),
}

impl TrialPlace {
    pub(super) fn open(
        options: &LabOptions,
        runtime: &Handle,
        stop: &RunStop,
        show: &dyn Fn(&LabEvent<'_>),
    ) -> Result<TrialPlace> {
        if let Some(dsn) = &options.to {
            let opened = runtime.block_on(async {
                tokio::select! {
                    () = stop.requested() => Err(stopped()),
                    opened = UserServer::open(dsn) => opened,
                }
            })?;
            return Ok(TrialPlace::UserServer(Box::new(opened)));
        }
        Ok(TrialPlace::LabServer(match &options.installation {
            Some(found) => found.clone(),
            None => locate(&|step: &ServerStep| show(&LabEvent::Server(step)))
                .map_err(lab_server::to_connect_error)?,
        }))
    }

    pub(super) fn is_own(&self) -> bool {
        matches!(self, TrialPlace::LabServer(_))
    }

    /// Returns a hash of the machine, and of the settings of the user's server.
    ///
    /// # Errors
    /// When the server cannot be queried.
    pub(super) fn fingerprint(&self, runtime: &Handle) -> Result<String> {
        let machine = Machine::here(None);
        // Round, as the kernel's reserved share differs between kernel versions.
        let memory = (machine.memory_bytes as f64 / (1u64 << 30) as f64).round();
        let mut all = format!("{} {} {memory}", machine.cpu, machine.cores);
        if let TrialPlace::UserServer(user_server) = self {
            let settings = runtime.block_on(facts::settings(user_server.connection()))?;
            all.extend(settings.iter().map(|(name, value)| format!("\n{name} = {value}")));
        }
        Ok(format!("{:016x}", SeededRandom::new(0, &all).next()))
    }

    /// Returns file system and device of the lab's own servers.
    ///
    /// # Errors
    /// When there is no temporary folder.
    pub(super) fn storage(&self) -> Result<String> {
        match self {
            TrialPlace::LabServer(_) => {
                let folder =
                    ThrowawayServer::temporary_folder().map_err(lab_server::to_connect_error)?;
                Ok(facts::storage(&folder))
            }
            TrialPlace::UserServer(_) => Ok(String::new()),
        }
    }

    /// Returns the conditions that all trials share; `place` is the fingerprint.
    ///
    /// # Errors
    /// When [`TrialPlace::storage`] fails.
    pub(super) fn conditions(
        &self,
        scale: f64,
        seed: u64,
        data: DataFacts,
        place: &str,
    ) -> Result<RunConditions> {
        let (target, postgres) = match self {
            TrialPlace::LabServer(found) => ("own".to_owned(), found.version.clone()),
            TrialPlace::UserServer(user_server) => {
                let version =
                    user_server.connection().parameter("server_version").unwrap_or_default();
                (user_server.connection().place().to_owned(), version.to_owned())
            }
        };
        let pgspate = env!("CARGO_PKG_VERSION").to_owned();
        let build = BUILD.unwrap_or_default().to_owned();
        let (place, storage) = (place.to_owned(), self.storage()?);
        Ok(RunConditions { scale, seed, target, postgres, pgspate, build, place, storage, data })
    }

    /// Restores the server; returns a warning if something had to be left there.
    pub(super) fn close(self, runtime: &Handle) -> Result<Option<&'static str>> {
        match self {
            TrialPlace::LabServer(_) => Ok(None),
            TrialPlace::UserServer(user_server) => runtime.block_on(user_server.close()),
        }
    }
}

/// Reports that the folder has results of other conditions.
pub(super) fn other_conditions_error(
    known: &RunConditions,
    now: &RunConditions,
    folder: &Path,
    name: &str,
) -> Error {
    let (what, then, now) = if known.data != now.data {
        ("set of data", known.data.label(), now.data.label())
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
    } else if !RunConditions::is_same(&known.build, &now.build) {
        ("build of pgspate", known.build.clone(), now.build.clone())
    } else if !RunConditions::is_same(&known.storage, &now.storage) {
        ("file system or disk", known.storage.clone(), now.storage.clone())
    } else {
        ("machine, or a server with other settings", known.place.clone(), now.place.clone())
    };
    let folder = folder.display();
    let message =
        format!("results of {name} in \"{folder}\" are of another {what}: {then}, not {now}");
    Error::new(ErrorKind::Usage, message).hint(
        "Give another folder with `--results`, or discard the earlier results with `--fresh`.",
    )
}

/// The folder of an experiment's files. Creating it removes what a killed run has left.
pub(super) struct ScratchFolder(pub(super) PathBuf);

impl ScratchFolder {
    pub(super) fn make(results: &Path, name: &str) -> Result<ScratchFolder> {
        let folder = std::path::absolute(results.join(format!("scratch-{name}")))
            .map_err(|error| file_error("find", results, error))?;
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| file_error("create", &folder, error))?;
        Ok(ScratchFolder(folder))
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // If this fails, the next run removes the folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::DataKind;

    #[test]
    fn conditions_that_differ_are_named() {
        let known = RunConditions {
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
        let now = RunConditions { scale: 0.2, ..known.clone() };
        let error = other_conditions_error(&known, &now, Path::new("lab"), "bulk");
        let expected = "results of bulk in \"lab\" are of another scale: 0.1, not 0.2";
        assert_eq!(error.to_string(), expected);
        let data = DataFacts { kind: DataKind::Tpch, ..DataFacts::default() };
        let error = other_conditions_error(
            &known,
            &RunConditions { data, ..now.clone() },
            Path::new("lab"),
            "bulk",
        );
        let expected = "results of bulk in \"lab\" are of another set of data: imdb, not tpch";
        assert_eq!(error.to_string(), expected);
        let other = RunConditions { place: "b".to_owned(), ..known.clone() };
        let error = other_conditions_error(&known, &other, Path::new("lab"), "bulk").to_string();
        assert!(error.ends_with("another machine, or a server with other settings: a, not b"));
        let other = RunConditions { storage: "ext4 on vda".to_owned(), ..known.clone() };
        let error = other_conditions_error(&known, &other, Path::new("lab"), "bulk").to_string();
        assert!(error.ends_with("of another file system or disk: tmpfs, not ext4 on vda"));
    }
}
