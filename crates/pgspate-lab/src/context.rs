//! The context of a trial: server, scratch folder, scale, seed and data.
//!
//! Every wait ends when the run is stopped. All tables are in one schema, which is first in the
//! search path of every session.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use pgspate::load::{self, LoadReport, LoadWatch};
use pgspate::target::connect::{Connection, Dsn};
use pgspate::{Error, ErrorKind, Result};
use pgspate_embedded::ThrowawayServer;
use tokio::runtime::Handle;
use tokio_postgres::error::SqlState;

use crate::dataset::{Dataset, TableToLoad};
use crate::probe::{self, Probe};
use crate::stop::RunStop;
use crate::throttle::{ActiveThrottle, Throttle};

/// The schema of all the lab's objects.
pub const SCHEMA: &str = "pgspate_lab";
/// The application name of the lab's sessions.
pub(crate) const SESSION: &str = "pgspate lab";
/// The prefix of the lab's streams in the ledger.
pub(crate) const STREAM: &str = "pgspate lab";

/// What all trials of an experiment share.
#[derive(Debug)]
pub(crate) struct SharedByTrials {
    pub(crate) scale: f64,
    pub(crate) seed: u64,
    pub(crate) scratch: PathBuf,
    pub(crate) program: Option<PathBuf>,
    pub(crate) runtime: Handle,
    pub(crate) stop: RunStop,
    /// The settings that `pgspate tune` proposes.
    pub(crate) tuned: Mutex<Vec<(String, String)>>,
    pub(crate) agreed: Mutex<BTreeMap<String, String>>,
    pub(crate) data: Arc<Dataset>,
    /// The tables to load, once they are known.
    pub(crate) tables: OnceLock<Vec<TableToLoad>>,
}

/// A server that is ready for a trial, with the trial's data and folders.
pub struct TrialContext {
    shared: Arc<SharedByTrials>,
    dsn: Dsn,
    own: Option<OwnServerFolders>,
    postmaster: Option<i32>,
    version: u32,
    values_of_this_trial: Mutex<BTreeMap<String, String>>,
}

/// The folders of the lab's own server.
#[derive(Debug, Clone)]
struct OwnServerFolders {
    folder: PathBuf,
    data: PathBuf,
    /// A connection string with the path of a password file, for programs of the lab.
    passfile_dsn: String,
}

impl TrialContext {
    /// Creates a context on the lab's own server.
    pub(crate) fn on_lab_server(
        shared: &Arc<SharedByTrials>,
        server: &ThrowawayServer,
    ) -> Result<TrialContext> {
        let mut context = TrialContext::stopped(shared, server)?;
        context.postmaster = server.pid();
        context.version = context.connect()?.server_version();
        Ok(context)
    }

    /// Creates a context on a stopped server, which cannot be queried.
    pub(crate) fn stopped(
        shared: &Arc<SharedByTrials>,
        server: &ThrowawayServer,
    ) -> Result<TrialContext> {
        let own = OwnServerFolders {
            folder: server.folder().to_owned(),
            data: server.data_folder(),
            passfile_dsn: server.passfile_dsn(),
        };
        Ok(TrialContext {
            shared: Arc::clone(shared),
            dsn: crate::lab_server::dsn(server)?,
            own: Some(own),
            postmaster: None,
            version: server.installation().major * 10_000,
            values_of_this_trial: Mutex::default(),
        })
    }

    /// Creates a context on the user's server. Its processes are visible if it runs on this
    /// machine.
    ///
    /// # Errors
    /// When the server cannot be queried.
    pub(crate) fn on_user_server(
        shared: &Arc<SharedByTrials>,
        keeper: &Connection,
        dsn: &Dsn,
    ) -> Result<TrialContext> {
        let postmaster = match keeper.is_local() {
            true => shared.runtime.block_on(probe::postmaster_of(keeper))?,
            false => None,
        };
        Ok(TrialContext {
            shared: Arc::clone(shared),
            dsn: dsn.clone(),
            own: None,
            postmaster,
            version: keeper.server_version(),
            values_of_this_trial: Mutex::default(),
        })
    }

    /// Returns the scale; 1 is the published size.
    pub fn scale(&self) -> f64 {
        self.shared.scale
    }

    /// Returns the seed of generated data.
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// Returns the folder for the experiment's files, which is removed after the last trial.
    pub fn scratch(&self) -> &Path {
        &self.shared.scratch
    }

    /// Returns the program `pgspate`, if it is known.
    pub(crate) fn program(&self) -> Option<&Path> {
        self.shared.program.as_deref()
    }

    /// Returns a connection string of the lab's server for other programs. It has no password.
    pub(crate) fn passfile_dsn(&self) -> Option<&str> {
        self.own.as_ref().map(|own| own.passfile_dsn.as_str())
    }

    /// Returns the data of `--data`.
    pub(crate) fn data(&self) -> &Dataset {
        &self.shared.data
    }

    /// Returns the tables to load, the largest first. The first call generates the files, or loads
    /// the user's files once; it needs an empty schema, and leaves the schema empty.
    ///
    /// # Errors
    /// When files cannot be generated, or the user's files fit no table.
    pub(crate) fn tables(&self) -> Result<&[TableToLoad]> {
        if let Some(known) = self.shared.tables.get() {
            return Ok(known);
        }
        let made = self.shared.data.tables(self)?;
        Ok(self.shared.tables.get_or_init(|| made))
    }

    /// Returns the runtime of the connections.
    pub fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    /// Returns the server's DSN.
    pub fn dsn(&self) -> &Dsn {
        &self.dsn
    }

    /// Returns `server_version_num`.
    pub fn server_version(&self) -> u32 {
        self.version
    }

    /// Returns whether the server is the lab's own.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Returns whether the server certainly runs on this machine: its processes are visible. The
    /// address alone proves nothing, as it may be a tunnel's.
    pub(crate) fn is_local(&self) -> bool {
        self.is_own() || self.postmaster.is_some()
    }

    /// Returns a new name for a stream of changes.
    pub(crate) fn stream(&self) -> String {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let nth = COUNTER.fetch_add(1, Ordering::Relaxed);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("{STREAM} {}-{nth}-{}", std::process::id(), since.as_nanos())
    }

    /// Returns a folder outside the data folder that the lab's server may write to, as for
    /// tablespaces.
    pub fn server_folder(&self) -> Option<&Path> {
        self.own.as_ref().map(|own| own.folder.as_path())
    }

    /// Returns the data folder of the lab's server.
    pub fn data_folder(&self) -> Option<&Path> {
        self.own.as_ref().map(|own| own.data.as_path())
    }

    /// Writes the system's dirty pages to disk (`sync`), so that these writes do not slow the next
    /// measurement. Does nothing on the user's server.
    pub fn settle_disk(&self) {
        if self.is_own() {
            rustix::fs::sync();
        }
    }

    /// Returns the settings that `pgspate tune` proposes for a bulk load on this server.
    pub fn tuned(&self) -> Vec<(String, String)> {
        self.shared.tuned.lock().expect("no panic while held").clone()
    }

    /// Returns the table's name with the lab's schema. It is needed where the search path is
    /// another one, or where a catalog table has this name. `name` must be quoted where SQL needs
    /// that.
    pub fn table(&self, name: &str) -> String {
        format!("{SCHEMA}.{name}")
    }

    /// Fails if the run is to stop.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] when a stop was requested.
    pub fn check(&self) -> Result<()> {
        if self.shared.stop.is_requested() { Err(stopped()) } else { Ok(()) }
    }

    /// Runs a future until it ends or the run is stopped.
    ///
    /// # Errors
    /// Those of the future; kind `Cancelled` when the run is stopped.
    pub fn block_on<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.shared.runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.shared.stop.requested() => Err(stopped()),
                result = future => result,
            }
        })
    }

    /// Opens a session whose search path begins with the lab's schema.
    ///
    /// # Errors
    /// As [`Dsn::connect`].
    pub async fn open(&self) -> Result<Connection> {
        let connection = self.dsn.connect(SESSION).await?;
        // No statement timeout, as in pgspate's own sessions. The second setting is the search path
        // by which the engine finds a table.
        let sql = format!(
            "set search_path = {SCHEMA}, public; \
             set pgspate.search_path = '{SCHEMA}, public'; set statement_timeout = 0"
        );
        match connection.client.batch_execute(&sql).await {
            Ok(()) => Ok(connection),
            Err(error) => Err(connection.explain("could not set up the session", error)),
        }
    }

    /// Opens a session as [`TrialContext::open`] does, and blocks.
    ///
    /// # Errors
    /// As [`Dsn::connect`]; kind `Cancelled` when the run is stopped.
    pub fn connect(&self) -> Result<Connection> {
        self.block_on(self.open())
    }

    /// Runs statements in a session of their own. `what` completes "could not".
    ///
    /// # Errors
    /// When a statement fails, or the server cannot be reached.
    pub fn sql(&self, what: &str, sql: &str) -> Result<()> {
        self.block_on(async {
            let connection = self.open().await?;
            let done = connection.client.batch_execute(sql).await;
            done.map_err(|error| connection.explain(format!("could not {what}"), error))?;
            connection.close().await;
            Ok(())
        })
    }

    /// Runs CHECKPOINT. Returns false if the role on the user's server may not.
    pub(crate) fn checkpoint(&self) -> Result<bool> {
        let is_forbidden =
            |error: &Error| error.sqlstate() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
        match self.sql("make a checkpoint", "checkpoint") {
            Err(error) if !self.is_own() && is_forbidden(&error) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Loads with pgspate. The table of `options` should be named by [`TrialContext::table`].
    ///
    /// # Errors
    /// As [`load::prepare`] and [`load::Load::run`].
    pub fn load(&self, options: load::LoadOptions) -> Result<LoadReport> {
        let watch = Arc::new(LoadWatch::default());
        let stopping = Arc::clone(&watch);
        self.stoppable(
            move || stopping.copy.cancel(),
            || load::prepare(options, self.dsn.clone(), self.runtime())?.run(&watch),
        )
    }

    /// Runs blocking work, and calls `cancel` when the run is stopped meanwhile.
    pub(crate) fn stoppable<T>(
        &self,
        cancel: impl FnOnce() + Send + 'static,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let stop = self.shared.stop.clone();
        let stopping = self.runtime().spawn(async move {
            stop.requested().await;
            cancel();
        });
        let done = work();
        stopping.abort();
        done
    }

    /// Stores a value under a key, or compares it with the stored one. All contenders must leave
    /// the same values, such as checksums.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`], if it is another.
    pub fn expect_same(&self, key: &str, value: &str) -> Result<()> {
        self.expect_same_in_run(key, value)?;
        let mut here = self.values_of_this_trial.lock().expect("no panic while held");
        here.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    /// Compares as [`TrialContext::expect_same`] does, but only within a run: the value is not
    /// written to the results.
    pub(crate) fn expect_same_in_run(&self, key: &str, value: &str) -> Result<()> {
        let mut agreed = self.shared.agreed.lock().expect("no panic while held");
        let known = agreed.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        if known == value {
            return Ok(());
        }
        let message = format!("{key} is {value} after this trial, and was {known} after another");
        Err(Error::new(ErrorKind::Bug, message).hint(
            "If an earlier run measured the other trial with a fault that is now fixed, start \
             over with `--fresh`.",
        ))
    }

    /// Returns the values that this trial has compared.
    pub(crate) fn values_of_this_trial(&self) -> BTreeMap<String, String> {
        self.values_of_this_trial.lock().expect("no panic while held").clone()
    }

    /// Limits the server's reads and writes until the result is dropped.
    ///
    /// # Errors
    /// The reason why this machine cannot limit them.
    pub fn throttle(&self, throttle: &Throttle) -> Result<ActiveThrottle, String> {
        match (self.data_folder(), self.postmaster) {
            (Some(data), Some(postmaster)) => throttle.apply(postmaster, data),
            _ => Err("the server is not the lab's own".to_owned()),
        }
    }

    /// Returns the stop request, for generators of data.
    pub(crate) fn stop(&self) -> &RunStop {
        &self.shared.stop
    }

    /// Returns the probe of the server's processes and disk.
    pub(crate) fn probe(&self) -> Probe {
        Probe::new(self.postmaster, self.data_folder())
    }
}

pub(crate) fn stopped() -> Error {
    Error::new(ErrorKind::Cancelled, "stopped")
}
