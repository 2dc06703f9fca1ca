//! The writer: takes single records from many callers at once. Each call returns when its records
//! are durable, or with its own error in PostgreSQL's words.
//!
//! PostgreSQL commits many transactions with one flush to the disk. For that each caller needs a
//! connection, and each row a statement. The writer needs neither. A record that finds an idle lane
//! is sent at once and alone. Records that arrive while all lanes are busy are sent together, as
//! one statement and one commit.
//!
//! - [`InsertShape`] has the SQL of records with equal columns.
//! - `UnitQueue` keeps units, the records of one call, until a lane takes them.
//! - `RecordLane` writes units with one session. A refused set is written again in halves.
//! - `WaitingSessions` write units that wait for locks. They are few, so further units are retried.
//! - `LaneGovernor` decides how many lanes write at once.
//!
//! A caller that waits for each answer before it sends the next record gains nothing. Its rate is
//! one record per round trip and flush, with the writer and without it.

mod core;
mod counters;
mod facts;
mod governor;
mod kept_shapes;
mod lane;
mod queue;
mod rows;
mod session;
mod shape;
mod unit;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

pub use counters::{SET_SIZES, WriterReport};
pub use rows::{EncodedRows, KEY_BYTES_MAX};
pub use shape::{ENCODINGS_MAX, InsertRequest, InsertShape, OnConflict, has_outdated_types};
pub use unit::InsertOutcome;

use self::core::WriterCore;
use crate::Result;
use crate::session::WaitLimits;
use pgspate_target::connect::Dsn;

/// How a writer works.
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// The most connections that write at the same time. A quarter of them serves records that wait
    /// for locks. One more connection reads what tables are.
    pub connections: usize,
    /// The most records of one statement.
    pub set_rows: usize,
    /// The most bytes of records of one statement.
    pub set_bytes: usize,
    /// The most bytes of records that wait or are being written. A record counts at least 1 KiB.
    pub queue_bytes: usize,
    /// Whether a call that finds the queue full is refused. Otherwise it waits.
    pub refuses_when_full: bool,
    /// Whether the records of several callers may share a statement, and so a transaction, although
    /// the table has triggers.
    pub shares_triggers: bool,
    /// How long the outcome of a call with an idempotency key is kept.
    pub keep_keys: Duration,
    /// How long to wait for the server and for locks.
    pub limits: WaitLimits,
}

impl Default for WriterOptions {
    fn default() -> WriterOptions {
        WriterOptions {
            connections: 32,
            set_rows: 1000,
            set_bytes: 1 << 20,
            queue_bytes: 64 << 20,
            refuses_when_full: false,
            shares_triggers: false,
            keep_keys: Duration::from_secs(24 * 60 * 60),
            limits: WaitLimits::default(),
        }
    }
}

/// Writes records for many callers. Dropping it writes what is queued in the background;
/// [`Writer::close`] waits for that.
#[derive(Debug)]
pub struct Writer {
    core: Arc<WriterCore>,
}

impl Writer {
    /// Opens a writer on a server. Connects once, so that a wrong address or password is found now.
    /// The lanes run on `runtime`.
    ///
    /// # Errors
    /// The errors of [`Dsn::connect`].
    pub async fn open(dsn: Dsn, options: WriterOptions, runtime: &Handle) -> Result<Writer> {
        let core = WriterCore::open(dsn, options, runtime).await?;
        Ok(Writer { core })
    }

    /// Checks a request against its table. The result is kept until the table changes, so asking
    /// again is cheap.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the table or a column does not exist.
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the server cannot be reached.
    pub async fn shape(&self, request: &InsertRequest) -> Result<Arc<InsertShape>> {
        self.core.shape(request).await
    }

    /// Returns what [`Writer::shape`] returns, if it needs no server for that.
    pub fn kept_shape(&self, request: &InsertRequest) -> Option<Arc<InsertShape>> {
        self.core.kept_shape(request)
    }

    /// Writes the records of one call: all of them or none. Returns when they are durable.
    ///
    /// # Errors
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refused them.
    /// [`ErrorKind::OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) if the connection was lost
    /// before the server answered. [`ErrorKind::QueueFull`](crate::ErrorKind::QueueFull) if the
    /// queue is full and the writer does not wait. If the types of columns have changed since the
    /// records were encoded, [`has_outdated_types`] is true of the error: encode them again.
    pub async fn insert(
        &self,
        shape: &Arc<InsertShape>,
        rows: EncodedRows,
    ) -> Result<InsertOutcome> {
        let mut outcomes = self.core.insert(shape, vec![rows]).await?;
        outcomes.pop().unwrap_or_else(|| Ok(InsertOutcome::default()))
    }

    /// Writes records independently of each other. Returns an outcome for each element of `records`
    /// when all are durable or refused. Records that meet no lock of another session are written in
    /// their order. So are those that do, among themselves.
    ///
    /// # Errors
    /// If the records were not accepted. Then none of them was written.
    pub async fn insert_each(
        &self,
        shape: &Arc<InsertShape>,
        records: Vec<EncodedRows>,
    ) -> Result<Vec<Result<InsertOutcome>>> {
        self.core.insert(shape, records).await
    }

    /// Returns whether the queue has no room left, so that a call waits or is refused.
    pub fn is_full(&self) -> bool {
        self.core.is_full()
    }

    /// Returns what the writer has done so far.
    pub fn report(&self) -> WriterReport {
        self.core.report()
    }

    /// Accepts no further records, writes what is queued, and ends the sessions.
    pub async fn close(&self) -> WriterReport {
        self.core.close().await
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.core.begin_close();
    }
}
