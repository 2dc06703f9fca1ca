//! A unit: the records of one call, which are written together or not at all, and its answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::rows::{EncodedRows, RequestKey};
use super::shape::InsertShape;
use crate::{Error, ErrorKind, Result};

/// What a call has written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InsertOutcome {
    /// The number of rows written, or updated on conflict. Ignored records do not count.
    pub rows: u64,
    /// The returned columns of each written row, as a JSON object.
    pub returned: Vec<String>,
    /// Whether an earlier call with the same idempotency key wrote the rows.
    pub is_repeat: bool,
}

/// How many lost connections a unit with an idempotency key survives.
const LOSSES_MAX: u32 = 5;

/// How a unit may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnitWay {
    /// Together with other units, by one statement.
    InSet,
    /// By a statement of its own.
    OwnStatement,
    /// By a statement for each record, in a transaction of its own.
    OwnTransaction,
}

/// The records of one call while they wait or are written.
#[derive(Debug)]
pub(super) struct WriteUnit {
    pub(super) shape: Arc<InsertShape>,
    pub(super) rows: EncodedRows,
    /// The idempotency key of the call, if it has one.
    pub(super) key: Option<RequestKey>,
    /// How often the connection was lost while the unit was written.
    pub(super) losses: u32,
    /// The number of the call that sent the unit. One lane takes all units of a call.
    pub(super) call: u64,
    answer: oneshot::Sender<Result<InsertOutcome>>,
    /// The call's part of the queue's memory.
    _room: Arc<OwnedSemaphorePermit>,
}

impl WriteUnit {
    /// Makes a unit, and the receiver of its answer.
    pub(super) fn new(
        shape: Arc<InsertShape>,
        mut rows: EncodedRows,
        call: u64,
        room: Arc<OwnedSemaphorePermit>,
    ) -> (WriteUnit, oneshot::Receiver<Result<InsertOutcome>>) {
        let (answer, receiver) = oneshot::channel();
        let key = rows.take_key(&shape.request);
        (WriteUnit { shape, rows, key, losses: 0, call, answer, _room: room }, receiver)
    }

    /// Returns how the unit may be written.
    pub(super) fn way(&self) -> UnitWay {
        let is_outdated = self.shape.is_outdated.load(Ordering::Relaxed);
        let fits_rows = self.shape.takes_rows() && self.rows.is_binary() && !is_outdated;
        let may_share = self.shape.alone_reason.is_none() && self.key.is_none();
        match (fits_rows, self.rows.len()) {
            (true, _) if may_share => UnitWay::InSet,
            (_, 1) | (true, _) => UnitWay::OwnStatement,
            (false, _) => UnitWay::OwnTransaction,
        }
    }

    /// Takes notice that the connection was lost while the unit was written. Returns whether the
    /// unit may be sent again: with an idempotency key it is written once all the same.
    pub(super) fn may_send_again(&mut self) -> bool {
        self.losses += 1;
        self.key.is_some() && self.losses <= LOSSES_MAX
    }

    /// Answers the call. A caller that no longer waits gets no answer.
    pub(super) fn answer(self, outcome: Result<InsertOutcome>) {
        let _ = self.answer.send(outcome);
    }

    /// Answers a call whose statement was sent, and whose result was lost with the connection.
    pub(super) fn answer_unknown(self, lost: &Error) {
        self.answer(Err(unknown_outcome(lost)));
    }
}

/// Returns the error of a call that may or may not have written its records.
fn unknown_outcome(lost: &Error) -> Error {
    let message = "the connection was lost before the server answered";
    Error::new(ErrorKind::OutcomeUnknown, message)
        .because(Error::new(ErrorKind::Connect, lost.messages().join(": ")))
        .hint(
            "The records were written or not. Look for them by their key. Records with an \
             idempotency key may be sent again.",
        )
}
