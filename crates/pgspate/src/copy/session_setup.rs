//! Opens the lanes' sessions: connects, sets parameters and prepares the COPY statements.
//!
//! Settings and statements are sent in the same round trip as the login. No transaction is open
//! yet, so that an unused session holds no snapshot.

use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Statement};

use super::{CopyJob, WaitLimits};
use crate::stage::StageTable;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::{Connection, Dsn, SessionQuery};
use pgspate_target::ledger::share_lanes_lock_sql;
use pgspate_target::{server_error, users_path_sql};

/// Opens connections to the target.
#[derive(Debug, Clone)]
pub struct SessionOpener {
    dsn: Arc<Dsn>,
    application_name: Arc<str>,
    /// The stage table to create in each session, and how long to wait for the lock for this.
    stage: Option<(Arc<StageTable>, WaitLimits)>,
}

impl SessionOpener {
    /// Creates an opener of sessions on `dsn` with this application name.
    pub fn new(dsn: &Dsn, application_name: String) -> SessionOpener {
        let dsn = Arc::new(dsn.clone());
        SessionOpener { dsn, application_name: application_name.into(), stage: None }
    }

    /// Returns an opener whose sessions get a stage table.
    pub(crate) fn with_stage(self, stage: &StageTable, limits: WaitLimits) -> SessionOpener {
        SessionOpener { stage: Some((Arc::new(stage.clone()), limits)), ..self }
    }

    /// Opens one more connection.
    ///
    /// # Errors
    /// If connecting or creating the stage table fails.
    pub async fn open(&self) -> Result<Connection> {
        let connection = self.dsn.connect(&self.application_name).await?;
        self.create_stage(&connection).await?;
        Ok(connection)
    }

    async fn create_stage(&self, connection: &Connection) -> Result<()> {
        match &self.stage {
            Some((stage, limits)) => stage.create_in(&connection.client, limits).await,
            None => Ok(()),
        }
    }
}

/// Settings and COPY statements of a lane's session.
#[derive(Debug, Clone)]
pub(crate) struct CopySetup {
    pub(crate) text_sql: String,
    pub(crate) binary_sql: String,
    pub(crate) limits: WaitLimits,
    /// SQL that sets what the meaning of a value's text depends on, as it was when the load was
    /// planned. The server's defaults may change meanwhile.
    pub(crate) value_settings: String,
    /// Key of the job's advisory lock, which all lanes hold in share mode; `None` without a ledger.
    pub(crate) lock_key: Option<i64>,
    /// Whether a transaction may commit on several servers. Then each commit waits for the disk.
    pub(crate) commits_across_nodes: bool,
    /// Whether the session has other work, too. Then the user's search path and commits that do not
    /// wait for the disk hold for the transaction of the copy alone.
    pub(crate) has_other_work: bool,
}

impl SessionQuery for CopySetup {
    type Answer = Result<(Statement, Statement)>;

    async fn run(&self, client: &Client) -> Self::Answer {
        let failed = || server_error("could not prepare a session to copy".to_owned());
        let mut settings = self.session_settings_sql();
        if let Some(key) = self.lock_key {
            settings = format!("{settings}; {}", share_lanes_lock_sql(key));
        }
        let (set, text, binary) = tokio::join!(
            biased;
            client.batch_execute(&settings),
            client.prepare(&self.text_sql),
            client.prepare(&self.binary_sql)
        );
        set.map_err(failed())?;
        Ok((text.map_err(failed())?, binary.map_err(failed())?))
    }
}

/// A session with its settings and prepared COPY statements.
pub(crate) struct ReadySession {
    pub(crate) connection: Arc<Connection>,
    pub(crate) text: Statement,
    pub(crate) binary: Statement,
}

impl ReadySession {
    /// Opens a session.
    ///
    /// # Errors
    /// If connecting fails, or if the server refuses a setting or a statement.
    pub(crate) async fn open(opener: &SessionOpener, setup: &CopySetup) -> Result<ReadySession> {
        let SessionOpener { dsn, application_name, .. } = opener;
        let (connection, statements) = dsn.connect_and_query(application_name, setup).await?;
        opener.create_stage(&connection).await?;
        let (text, binary) = statements?;
        Ok(ReadySession { connection: Arc::new(connection), text, binary })
    }

    /// Prepares an open connection.
    ///
    /// # Errors
    /// If the server refuses a setting or a statement.
    pub(crate) async fn of_connection(
        connection: Arc<Connection>,
        setup: &CopySetup,
    ) -> Result<ReadySession> {
        let (text, binary) = setup.run(&connection.client).await?;
        Ok(ReadySession { connection, text, binary })
    }
}

impl CopySetup {
    /// Returns the SQL for a session's settings. Triggers and other user code run under the user's
    /// search path.
    ///
    /// Commits do not wait for the disk, except for the last commit of a load: a crash loses the
    /// ledger's row together with the rows of the chunk. Where a commit spans servers, the crash of
    /// one server would lose the ledger's row alone, and the rows would be loaded twice. There each
    /// commit waits, even if the role's default is `off`.
    pub(super) fn session_settings_sql(&self) -> String {
        let settings = format!("{}; {}", self.limits.session_sql(), self.value_settings);
        if self.has_other_work {
            return settings;
        }
        let commits = match self.commits_across_nodes {
            true => {
                "select set_config('synchronous_commit', 'on', false) \
                 where current_setting('synchronous_commit') = 'off'"
            }
            false => "set synchronous_commit = off",
        };
        format!("{commits}; {settings}; {}", users_path_sql(false))
    }

    /// Returns `begin`, followed by the settings that hold for this transaction alone.
    pub(super) fn begin_sql(&self, begin: &str) -> String {
        match self.has_other_work {
            true => {
                format!("{begin}; set local synchronous_commit = off; {}", users_path_sql(true))
            }
            false => begin.to_owned(),
        }
    }
}

/// A session that is opened in the background, before a lane needs the session. Dropping this value
/// ends the session.
#[derive(Default)]
pub(crate) struct EarlySession(Mutex<JoinSet<Result<ReadySession>>>);

impl EarlySession {
    /// Starts to open a session in the background.
    pub(crate) fn start(opener: SessionOpener, setup: CopySetup, runtime: &Handle) -> EarlySession {
        EarlySession::spawn(async move { ReadySession::open(&opener, &setup).await }, runtime)
    }

    /// Wraps a session that is already open.
    pub(crate) fn from_open(ready: ReadySession, runtime: &Handle) -> EarlySession {
        EarlySession::spawn(async move { Ok(ready) }, runtime)
    }

    fn spawn(
        opening: impl Future<Output = Result<ReadySession>> + Send + 'static,
        runtime: &Handle,
    ) -> EarlySession {
        let mut task = JoinSet::new();
        task.spawn_on(opening, runtime);
        EarlySession(Mutex::new(task))
    }

    /// Waits until the session is open, and returns it. Returns `None` if there is no early session
    /// or an earlier call has returned it.
    pub(crate) async fn take(&self) -> Option<Result<ReadySession>> {
        let mut task = std::mem::take(&mut *self.0.lock().expect("no panic while held"));
        Some(task.join_next().await?.unwrap_or_else(|ended| {
            Err(Error::new(ErrorKind::Bug, "opening a session panicked").because(ended))
        }))
    }
}

impl CopyJob {
    /// Returns a session for a lane: the early session if it is usable, or a new one.
    /// `where_condition` is a condition for COPY WHERE; it is empty if the session keeps all rows.
    pub(super) async fn open_lane_session(&self, where_condition: &str) -> Result<ReadySession> {
        if let ("", Some(ready)) = (where_condition, self.early_session.take().await) {
            match ready {
                // The server or the network may have closed the early session in the meantime.
                Ok(ready) if ready.connection.is_closed() => {}
                Err(error) if error.is_retryable() => {}
                ready => return ready,
            }
        }
        let add_condition = |sql: &str| match where_condition {
            "" => sql.to_owned(),
            where_condition => format!("{sql} where {where_condition}"),
        };
        let CopySetup { text_sql, binary_sql, .. } = &self.setup;
        let (text_sql, binary_sql) = (add_condition(text_sql), add_condition(binary_sql));
        let setup = CopySetup { text_sql, binary_sql, ..self.setup.clone() };
        ReadySession::open(&self.session_opener, &setup).await
    }
}
