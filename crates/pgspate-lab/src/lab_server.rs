//! The lab's own server: prepared once, stopped, and copied for each trial.
//!
//! The server is as durable as in production: `fsync` is on, and settings that are not factors have
//! PostgreSQL's defaults. The server and its copies end with the run, even if the run is killed.
//! Only a tablespace's folder may stay, and the next run removes it. The user's embedded server is
//! not touched.

use pgspate::target::connect::{Dsn, Environment};
use pgspate::{Error, ErrorKind, Result};
use pgspate_embedded::{Installation, ServerStep, ThrowawayServer};

use crate::facts;

/// Settings that a throwaway server relaxes, set back to PostgreSQL's defaults.
const DEFAULT_SETTINGS: &str = "\
fsync = on
shared_buffers = 128MB
max_connections = 100
";

/// A server whose copies the trials run on.
pub(crate) struct LabServer {
    installation: Installation,
    base: ThrowawayServer,
}

impl LabServer {
    /// Starts the server for the preparation.
    pub(crate) fn start(
        installation: &Installation,
        say: &dyn Fn(&ServerStep),
    ) -> Result<LabServer> {
        let builder =
            ThrowawayServer::builder().installation(installation.clone()).conf(DEFAULT_SETTINGS);
        let base = builder.start(&say).map_err(to_connect_error)?;
        Ok(LabServer { installation: installation.clone(), base })
    }

    /// Returns the server for the preparation.
    pub(crate) fn base(&self) -> &ThrowawayServer {
        &self.base
    }

    /// Returns a warning if the server's data is in memory.
    pub(crate) fn in_memory(&self) -> Option<&'static str> {
        facts::in_memory_warning(&facts::storage(&self.base.data_folder()))
    }

    /// Stops the server; from now on it is only copied.
    pub(crate) fn finish(&self) -> Result<()> {
        self.base.stop().map_err(to_connect_error)
    }

    /// Starts a copy with these settings.
    pub(crate) fn copy(&self, settings: &[(String, String)]) -> Result<ThrowawayServer> {
        let mut conf = DEFAULT_SETTINGS.to_owned();
        for (name, value) in settings {
            conf += &format!("{name} = '{}'\n", value.replace('\'', "''"));
        }
        let builder =
            ThrowawayServer::builder().installation(self.installation.clone()).conf(&conf);
        let started = builder.data_from(&self.base.data_folder()).start(&|_: &ServerStep| {});
        // Otherwise the system would write the copied files during the trial.
        rustix::fs::sync();
        started.map_err(to_connect_error)
    }
}

/// Returns the server's DSN, without settings of the environment.
pub(crate) fn dsn(server: &ThrowawayServer) -> Result<Dsn> {
    let dsn = Dsn::resolve(Some(&server.dsn()), &Environment::default())?;
    dsn.ok_or_else(|| Error::new(ErrorKind::Bug, "the server's address names no server"))
}

/// Converts an error of the embedded server to a connect error.
pub(crate) fn to_connect_error(error: Error) -> Error {
    let wrapped = Error::new(ErrorKind::Connect, error.chain());
    wrapped.hint_if(error.hint_text())
}
