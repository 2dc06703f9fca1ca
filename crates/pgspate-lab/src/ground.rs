//! What an experiment stands on: a server, a folder, and the numbers that data follow from.
//!
//! Every wait on it ends when the run is stopped. All tables are in one schema, which every
//! session of the ground looks in first.

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

use crate::dataset::{Dataset, Loadable};
use crate::probe::{self, Probe};
use crate::stop::Stop;
use crate::throttle::{Throttle, Throttled};

/// The schema that everything is made in.
pub const SCHEMA: &str = "pgspate_lab";
/// What its sessions are called.
pub(crate) const SESSION: &str = "pgspate lab";
/// What the names of the lab's streams begin with, in a ledger that others use as well.
pub(crate) const STREAM: &str = "pgspate lab";

/// What all grounds of an experiment share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) scale: f64,
    pub(crate) seed: u64,
    pub(crate) scratch: PathBuf,
    pub(crate) runtime: Handle,
    pub(crate) stop: Stop,
    /// What tuning for a bulk load would set.
    pub(crate) tuned: Mutex<Vec<(String, String)>>,
    pub(crate) agreed: Mutex<BTreeMap<String, String>>,
    pub(crate) data: Arc<Dataset>,
    /// What of it is to be loaded, once that is known.
    pub(crate) tables: OnceLock<Vec<Loadable>>,
}

/// A server that is ready for a trial, and what belongs to it.
pub struct Ground {
    shared: Arc<Shared>,
    dsn: Dsn,
    own: Option<OwnServer>,
    postmaster: Option<i32>,
    version: u32,
    agreed_here: Mutex<BTreeMap<String, String>>,
}

/// What is known of a server of the lab's own.
#[derive(Debug, Clone)]
struct OwnServer {
    folder: PathBuf,
    data: PathBuf,
}

impl Ground {
    /// On a server of the lab's own.
    pub(crate) fn on_own(shared: &Arc<Shared>, server: &ThrowawayServer) -> Result<Ground> {
        let mut ground = Ground::stopped(shared, server)?;
        ground.postmaster = server.pid();
        ground.version = ground.connect()?.server_version();
        Ok(ground)
    }

    /// Of a server that is stopped: nothing can be asked of it, but what it is.
    pub(crate) fn stopped(shared: &Arc<Shared>, server: &ThrowawayServer) -> Result<Ground> {
        let own = OwnServer { folder: server.folder().to_owned(), data: server.data_folder() };
        Ok(Ground {
            shared: Arc::clone(shared),
            dsn: crate::own::dsn(server)?,
            own: Some(own),
            postmaster: None,
            version: server.installation().major * 10_000,
            agreed_here: Mutex::default(),
        })
    }

    /// On another server, whose processes can be seen if it is on this machine.
    ///
    /// # Errors
    /// The server cannot be asked about the session.
    pub(crate) fn on_foreign(
        shared: &Arc<Shared>,
        keeper: &Connection,
        dsn: &Dsn,
    ) -> Result<Ground> {
        let postmaster = match keeper.is_local() {
            true => shared.runtime.block_on(probe::postmaster_of(keeper))?,
            false => None,
        };
        Ok(Ground {
            shared: Arc::clone(shared),
            dsn: dsn.clone(),
            own: None,
            postmaster,
            version: keeper.server_version(),
            agreed_here: Mutex::default(),
        })
    }

    /// 1 is the published size.
    pub fn scale(&self) -> f64 {
        self.shared.scale
    }

    /// What data follow from.
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// A folder for the experiment's files. It stays for all trials, and is gone after the last.
    pub fn scratch(&self) -> &Path {
        &self.shared.scratch
    }

    /// The data that an experiment loads which takes any.
    pub(crate) fn data(&self) -> &Dataset {
        &self.shared.data
    }

    /// Their tables, the largest first. Asked for the first time, it makes what has to be made, in
    /// an empty schema, which is empty again afterwards.
    ///
    /// # Errors
    /// Files cannot be made, or those that were given do not fit any table.
    pub(crate) fn tables(&self) -> Result<&[Loadable]> {
        if let Some(known) = self.shared.tables.get() {
            return Ok(known);
        }
        let made = self.shared.data.tables(self)?;
        Ok(self.shared.tables.get_or_init(|| made))
    }

    /// What drives connections.
    pub fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    /// How the server is reached.
    pub fn dsn(&self) -> &Dsn {
        &self.dsn
    }

    /// `server_version_num`.
    pub fn server_version(&self) -> u32 {
        self.version
    }

    /// Whether the server is the lab's own and for this trial alone.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Whether the server is on this machine for certain: its processes are seen there. An address
    /// alone may be a tunnel's.
    pub(crate) fn is_local(&self) -> bool {
        self.is_own() || self.postmaster.is_some()
    }

    /// A name for a stream of changes that no other trial has.
    pub(crate) fn stream(&self) -> String {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let nth = COUNTER.fetch_add(1, Ordering::Relaxed);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("{STREAM} {}-{nth}-{}", std::process::id(), since.as_nanos())
    }

    /// A folder that an own server may write to, outside of its data, for example for tablespaces.
    pub fn server_folder(&self) -> Option<&Path> {
        self.own.as_ref().map(|own| own.folder.as_path())
    }

    /// The data folder of an own server.
    pub fn data_folder(&self) -> Option<&Path> {
        self.own.as_ref().map(|own| own.data.as_path())
    }

    /// Has the system write what it has put off, so that it is not in the way of what is measured
    /// next; where the server is the lab's own, and so on this machine.
    pub fn settle_disk(&self) {
        if self.is_own() {
            rustix::fs::sync();
        }
    }

    /// The settings that `pgspate tune` would make for a bulk load on this machine.
    pub fn tuned(&self) -> Vec<(String, String)> {
        self.shared.tuned.lock().expect("no panic while held").clone()
    }

    /// A table's name, quoted where it has to be, for SQL that runs in any session, and for names
    /// that may be those of a catalog's tables, which are found before the lab's.
    pub fn table(&self, name: &str) -> String {
        format!("{SCHEMA}.{name}")
    }

    /// Whether the run is to stop.
    ///
    /// # Errors
    /// ErrorKind `Cancelled`, if it is.
    pub fn check(&self) -> Result<()> {
        if self.shared.stop.is_asked() { Err(stopped()) } else { Ok(()) }
    }

    /// Waits for something, unless the run is stopped.
    ///
    /// # Errors
    /// Those of the future; kind `Cancelled` when the run is stopped.
    pub fn block_on<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.shared.runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.shared.stop.asked() => Err(stopped()),
                result = future => result,
            }
        })
    }

    /// A new session that finds the experiment's tables by their bare names, unless these are names
    /// of the catalog.
    ///
    /// # Errors
    /// As [`Dsn::connect`].
    pub async fn open(&self) -> Result<Connection> {
        let connection = self.dsn.connect(SESSION).await?;
        // No contender is cut short: pgspate's own sessions are not either.
        // The second is the path by which the engine finds a table.
        let sql = format!(
            "set search_path = {SCHEMA}, public; \
             set pgspate.search_path = '{SCHEMA}, public'; set statement_timeout = 0"
        );
        match connection.client.batch_execute(&sql).await {
            Ok(()) => Ok(connection),
            Err(error) => Err(connection.explain("could not set up the session", error)),
        }
    }

    /// The same, waited for.
    ///
    /// # Errors
    /// As [`Dsn::connect`]; kind `Cancelled` when the run is stopped.
    pub fn connect(&self) -> Result<Connection> {
        self.block_on(self.open())
    }

    /// Runs statements in a session of their own. `what` completes "could not".
    ///
    /// # Errors
    /// The server refuses one, or cannot be reached.
    pub fn sql(&self, what: &str, sql: &str) -> Result<()> {
        self.block_on(async {
            let connection = self.open().await?;
            let done = connection.client.batch_execute(sql).await;
            done.map_err(|error| connection.explain(format!("could not {what}"), error))?;
            connection.close().await;
            Ok(())
        })
    }

    /// Has the server write all its pages, and tells whether it did. On a server that is not ours
    /// the role may not be allowed to have that done; they are written later then.
    pub(crate) fn checkpoint(&self) -> Result<bool> {
        let is_forbidden =
            |error: &Error| error.sqlstate() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
        match self.sql("make a checkpoint", "checkpoint") {
            Err(error) if !self.is_own() && is_forbidden(&error) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Loads through pgspate. The table of `options` should be named by [`Ground::table`].
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

    /// Does something that blocks, and calls `cancel` when the run is stopped meanwhile.
    pub(crate) fn stoppable<T>(
        &self,
        cancel: impl FnOnce() + Send + 'static,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let stop = self.shared.stop.clone();
        let stopping = self.runtime().spawn(async move {
            stop.asked().await;
            cancel();
        });
        let done = work();
        stopping.abort();
        done
    }

    /// Remembers a value, or compares it with the one remembered under this key: what contenders
    /// leave behind has to be the same.
    ///
    /// # Errors
    /// ErrorKind `Bug`, if it is another.
    pub fn agree(&self, key: &str, value: &str) -> Result<()> {
        self.agree_unkept(key, value)?;
        let mut here = self.agreed_here.lock().expect("no panic while held");
        here.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    /// The same for what is not to be kept: it is compared within a run alone.
    pub(crate) fn agree_unkept(&self, key: &str, value: &str) -> Result<()> {
        let mut agreed = self.shared.agreed.lock().expect("no panic while held");
        let known = agreed.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        if known == value {
            return Ok(());
        }
        let message = format!("{key} is {value} after this trial, and was {known} after another");
        Err(Error::new(ErrorKind::Bug, message).hint(
            "If the other was measured by an earlier run, and what was wrong with it is mended, \
             begin anew with `--fresh`.",
        ))
    }

    /// What has been agreed on here.
    pub(crate) fn agreed_here(&self) -> BTreeMap<String, String> {
        self.agreed_here.lock().expect("no panic while held").clone()
    }

    /// Holds back what the server reads and writes, until the result is dropped.
    ///
    /// # Errors
    /// In words, why that cannot be done here.
    pub fn throttle(&self, throttle: &Throttle) -> Result<Throttled, String> {
        match (self.data_folder(), self.postmaster) {
            (Some(data), Some(postmaster)) => throttle.apply(postmaster, data),
            _ => Err("the server is not the lab's own".to_owned()),
        }
    }

    /// What whoever makes data looks at in between.
    pub(crate) fn stop(&self) -> &Stop {
        &self.shared.stop
    }

    /// What looks at the server's processes and its disk.
    pub(crate) fn probe(&self) -> Probe {
        Probe::new(self.postmaster, self.data_folder())
    }
}

pub(crate) fn stopped() -> Error {
    Error::new(ErrorKind::Cancelled, "stopped")
}
