//! SessionRegistry that are ready to copy: connected, set up, and with their statements.
//!
//! What a session needs is asked for in the round trip in which it is connected. No transaction is
//! open yet, so that one which nobody comes to use costs the server nothing.

use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Statement};

use super::{CopyJob, Limits};
use crate::stage::StageTable;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::{Connection, Dsn, Question};
use pgspate_target::ledger::share_sql;
use pgspate_target::{server_error, use_users_path};

/// Opens connections to the target.
#[derive(Debug, Clone)]
pub struct SessionOpener {
    dsn: Arc<Dsn>,
    application_name: Arc<str>,
    stage: Option<Arc<StageTable>>,
}

impl SessionOpener {
    /// To this target, with sessions of this name.
    pub fn new(dsn: &Dsn, application_name: String) -> SessionOpener {
        let dsn = Arc::new(dsn.clone());
        SessionOpener { dsn, application_name: application_name.into(), stage: None }
    }

    /// The same, with a stage in each session.
    pub(crate) fn with_stage(self, stage: &StageTable) -> SessionOpener {
        SessionOpener { stage: Some(Arc::new(stage.clone())), ..self }
    }

    /// Opens one more connection.
    ///
    /// # Errors
    /// Those of connecting, and of making the stage.
    pub async fn open(&self) -> Result<Connection> {
        let connection = self.dsn.connect(&self.application_name).await?;
        self.make_stage(&connection).await?;
        Ok(connection)
    }

    async fn make_stage(&self, connection: &Connection) -> Result<()> {
        match &self.stage {
            Some(stage) => stage.make(&connection.client).await,
            None => Ok(()),
        }
    }
}

/// What sessions copy with.
#[derive(Debug, Clone)]
pub(crate) struct CopySetup {
    pub(crate) text_sql: String,
    pub(crate) binary_sql: String,
    pub(crate) limits: Limits,
    /// The lock of the job that the lanes are of, if there is one.
    pub(crate) lock_key: Option<i64>,
}

impl Question for CopySetup {
    type Answer = Result<(Statement, Statement)>;

    async fn ask(&self, client: &Client) -> Self::Answer {
        let failed = || server_error("could not prepare to copy".to_owned());
        let mut setting = limits(&self.limits);
        if let Some(key) = self.lock_key {
            setting = format!("{setting}; {}", share_sql(key));
        }
        let (set, text, binary) = tokio::join!(
            biased;
            client.batch_execute(&setting),
            client.prepare(&self.text_sql),
            client.prepare(&self.binary_sql)
        );
        set.map_err(failed())?;
        Ok((text.map_err(failed())?, binary.map_err(failed())?))
    }
}

/// A session that is ready to copy.
pub(crate) struct ReadySession {
    pub(crate) connection: Connection,
    pub(crate) text: Statement,
    pub(crate) binary: Statement,
}

impl ReadySession {
    /// Opens one.
    ///
    /// # Errors
    /// Those of connecting; what the server refuses.
    pub(crate) async fn open(connect: &SessionOpener, copying: &CopySetup) -> Result<ReadySession> {
        let SessionOpener { dsn, application_name, .. } = connect;
        let (connection, statements) = dsn.connect_asking(application_name, copying).await?;
        connect.make_stage(&connection).await?;
        let (text, binary) = statements?;
        Ok(ReadySession { connection, text, binary })
    }
}

/// Commits but for the last need not reach the disk. What a row makes the server run is run under
/// the user's search path.
pub(super) fn limits(limits: &Limits) -> String {
    let timeouts = limits.session_sql();
    format!("set synchronous_commit = off; {timeouts}; {}", use_users_path(false))
}

/// A session that is being opened before a lane asks for it. Nobody's when it is dropped.
#[derive(Default)]
pub(crate) struct EarlySession(Mutex<JoinSet<Result<ReadySession>>>);

impl EarlySession {
    /// Begins to open one.
    pub(crate) fn start(connect: SessionOpener, copying: CopySetup, runtime: &Handle) -> EarlySession {
        EarlySession::spawn(async move { ReadySession::open(&connect, &copying).await }, runtime)
    }

    /// One that is open.
    pub(crate) fn of(ready: ReadySession, runtime: &Handle) -> EarlySession {
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

    /// The session, for the first who asks for it.
    pub(crate) async fn take(&self) -> Option<Result<ReadySession>> {
        let mut task = std::mem::take(&mut *self.0.lock().expect("no panic while held"));
        Some(task.join_next().await?.unwrap_or_else(|ended| {
            Err(Error::new(ErrorKind::Bug, "opening a session panicked").because(ended))
        }))
    }
}

impl CopyJob {
    /// A session for a lane: the one that is being opened already, or another. `share`: which rows
    /// it keeps, if not all.
    pub(super) async fn ready(&self, share: &str) -> Result<ReadySession> {
        if let ("", Some(ready)) = (share, self.early.take().await) {
            match ready {
                // It was opened before other things were done: it may be gone by now.
                Ok(ready) if ready.connection.is_closed() => {}
                Err(error) if error.is_retryable() => {}
                ready => return ready,
            }
        }
        let of_share = |sql: &str| match share {
            "" => sql.to_owned(),
            share => format!("{sql} where {share}"),
        };
        let CopySetup { text_sql, binary_sql, .. } = &self.copying;
        let (text_sql, binary_sql) = (of_share(text_sql), of_share(binary_sql));
        let copying = CopySetup { text_sql, binary_sql, ..self.copying.clone() };
        ReadySession::open(&self.connect, &copying).await
    }
}
