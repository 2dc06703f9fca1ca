//! The lab's own server: prepared once, stopped, and copied for each trial.
//!
//! It is as durable as one that matters: `fsync` is on, and everything that is not a factor is as
//! PostgreSQL comes. Neither it nor its copies outlive the run, however that ends, but for a
//! tablespace's folder elsewhere, which the next run removes. The user's embedded server is not
//! touched.

use pgspate::target::connect::{Dsn, Environment};
use pgspate::{Error, Kind, Result};
use pgspate_embedded::{Installation, Step, Throwaway};

use crate::facts;

/// What a throwaway relaxes, put back as it comes.
const AS_IT_COMES: &str = "\
fsync = on
shared_buffers = 128MB
max_connections = 100
";

/// A server that trials begin with copies of.
pub(crate) struct Own {
    installation: Installation,
    base: Throwaway,
}

impl Own {
    /// Starts the server that is to be prepared.
    pub(crate) fn start(installation: &Installation, say: &dyn Fn(&Step)) -> Result<Own> {
        let builder = Throwaway::builder().installation(installation.clone()).conf(AS_IT_COMES);
        let base = builder.start(&say).map_err(embedded)?;
        Ok(Own { installation: installation.clone(), base })
    }

    /// The server that is to be prepared.
    pub(crate) fn base(&self) -> &Throwaway {
        &self.base
    }

    /// What is wrong with where its data are, if something is.
    pub(crate) fn in_memory(&self) -> Option<&'static str> {
        facts::in_memory(&facts::storage(&self.base.data_folder()))
    }

    /// Stops it: from here on it is copied.
    pub(crate) fn finish(&self) -> Result<()> {
        self.base.stop().map_err(embedded)
    }

    /// Starts a copy with these settings.
    pub(crate) fn copy(&self, settings: &[(String, String)]) -> Result<Throwaway> {
        let mut conf = AS_IT_COMES.to_owned();
        for (name, value) in settings {
            conf += &format!("{name} = '{}'\n", value.replace('\'', "''"));
        }
        let builder = Throwaway::builder().installation(self.installation.clone()).conf(&conf);
        let started = builder.data_from(&self.base.data_folder()).start(&|_: &Step| {});
        // What the copying has left to be written would slow the trial down.
        rustix::fs::sync();
        started.map_err(embedded)
    }
}

/// How to reach it, whatever the environment says of other servers.
pub(crate) fn dsn(server: &Throwaway) -> Result<Dsn> {
    let dsn = Dsn::resolve(Some(&server.dsn()), &Environment::default())?;
    dsn.ok_or_else(|| Error::new(Kind::Bug, "the server's address names no server"))
}

/// An error of the embedded server as one of ours.
pub(crate) fn embedded(error: Error) -> Error {
    let wrapped = Error::new(Kind::Connect, error.chain());
    wrapped.hint_if(error.hint_text())
}
