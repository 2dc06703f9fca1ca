//! Reads a slot's stream for the thread that makes batches, and reconnects after lost connections.
//!
//! After a reconnect, the server sends everything after the last transaction that was received
//! whole. The server sends the events of a transaction in the same order each time. So the events
//! that were received of a partly received transaction are counted, and then skipped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;

use super::{ConfirmedPosition, Slot, SlotPosition, is_active};
use crate::postgres::{ReceivedEvents, SlotStream};
use crate::{Error, ErrorKind, EventSender, EventSource, LagMeter, Result, SourcePoint};
use pgspate_events::Lsn;
use pgspate_target::session::{POLL_INTERVAL, ReconnectBackoff, WaitLimits};

/// How often the server is asked for the end of its log, and the pause after a failure.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How long the answer may take before the task reconnects.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// The source that reads a slot.
pub struct SlotSource {
    slot: Slot,
    /// The stream, while there is a connection.
    stream: Option<SlotStream>,
    /// The position after which this run begins to read.
    from: Lsn,
    confirmed: Arc<ConfirmedPosition>,
    limits: WaitLimits,
    lag: Arc<LagMeter>,
    runtime: Handle,
    /// The task that asks the server for the end of its log.
    lag_task: JoinHandle<()>,
}

/// Counts the events that have been sent to the receiver.
#[derive(Debug, Default)]
struct DeliveredEvents {
    /// The end of the last transaction that was sent whole.
    whole: Lsn,
    /// The number of events of the next transaction that were sent.
    begun: usize,
    /// The number of events of the next transaction that came in this session.
    seen: usize,
    /// The commit LSN of the next transaction, from its events.
    commit: Box<str>,
}

impl EventSource for SlotSource {
    type Position = SlotPosition;
    type Piece = ReceivedEvents;

    /// Reads the slot. The stream stays open until the last commit is confirmed.
    fn read(&mut self, pieces: &EventSender<ReceivedEvents>) {
        let mut delivered = DeliveredEvents { whole: self.from, ..DeliveredEvents::default() };
        let mut backoff = ReconnectBackoff::new(self.limits.retry_for);
        let mut connected_at = Instant::now();
        if let Some(stream) = &self.stream {
            self.note_stream(stream);
        }
        while pieces.are_wanted() {
            let received = match &mut self.stream {
                None => match self.connect(delivered.whole) {
                    Ok(new) => {
                        delivered.seen = 0;
                        connected_at = Instant::now();
                        self.stream = Some(new);
                        continue;
                    }
                    Err(error) => Err(error),
                },
                Some(open) => {
                    let next = async { timeout(POLL_INTERVAL, open.next()).await };
                    match self.runtime.block_on(next) {
                        Err(_) => continue,
                        Ok(received) => received,
                    }
                }
            };
            match received {
                Ok(received) => {
                    let received = delivered.take_new(received);
                    if received.as_ref().is_ok_and(is_progress) {
                        backoff.reset();
                    }
                    let is_lost = received.is_err();
                    if pieces.send(received).is_err() || is_lost {
                        return;
                    }
                }
                Err(error) => {
                    let was_connected = self.stream.take().is_some();
                    // An idle source makes no progress, but may still be sound.
                    if was_connected && connected_at.elapsed() >= self.limits.retry_for {
                        backoff.reset();
                    }
                    self.lag.note_loss(was_connected);
                    let may_pass = error.is_retryable() || is_active(&error);
                    if !may_pass || !backoff.wait(|| !pieces.are_wanted()) {
                        // If no more pieces are wanted, a lost connection does not matter.
                        if pieces.are_wanted() || !may_pass {
                            let _ = pieces.send(Err(error));
                        }
                        return;
                    }
                }
            }
        }
    }

    fn close(mut self) {
        if let Some(stream) = self.stream.take() {
            self.runtime.block_on(stream.close());
        }
    }
}

impl Drop for SlotSource {
    fn drop(&mut self) {
        self.lag_task.abort();
    }
}

impl SlotSource {
    /// Returns a source that reads `slot` after `from`. `begun` is the stream, if it is open
    /// already.
    pub fn new(
        slot: Slot,
        from: Lsn,
        begun: Option<SlotStream>,
        confirmed: &Arc<ConfirmedPosition>,
        limits: WaitLimits,
        lag: &Arc<LagMeter>,
        runtime: &Handle,
    ) -> SlotSource {
        confirmed.note(from);
        lag.note_applied(SourcePoint::Log(from));
        SlotSource {
            lag_task: spawn_lag_task(slot.clone(), Arc::clone(lag), runtime),
            slot,
            stream: begun,
            from,
            confirmed: Arc::clone(confirmed),
            limits,
            lag: Arc::clone(lag),
            runtime: runtime.clone(),
        }
    }

    fn connect(&self, from: Lsn) -> Result<SlotStream> {
        let start = self.slot.start(from, || self.confirmed.confirmed_lsn());
        let stream = self.runtime.block_on(start)?;
        self.note_stream(&stream);
        Ok(stream)
    }

    fn note_stream(&self, stream: &SlotStream) {
        self.confirmed.set_confirmer(stream.confirmer());
        self.lag.note_connection();
    }
}

impl Slot {
    /// Starts to read the slot after `from`, the position up to which all events were received.
    /// `upto` returns the applied position. The slot is inspected first, because the slot or the
    /// server may have been replaced.
    ///
    /// # Errors
    /// When events after `from` are lost, another session reads the slot, or the server cannot be
    /// reached.
    pub async fn start(&self, from: Lsn, upto: impl Fn() -> Lsn) -> Result<SlotStream> {
        let Slot { dsn, name, publication, .. } = self;
        let now = self.inspect_again().await?;
        now.check_identity(&self.identity)?;
        // The received transactions must be in the history of the current server.
        now.timeline.check(self.read_from.get(), from, name)?;
        if let Some(reader) = now.found.as_ref().and_then(|found| found.reader) {
            return Err(slot_in_use_error(name, reader));
        }
        // Ask for the applied position only now: it is at least the confirmed position found above.
        let upto = upto();
        now.check(from, upto)?;
        self.read_from.set(now.read_from.get());
        SlotStream::start(dsn, name, publication, from, upto).await
    }
}

/// Returns the error for a slot that another session reads, in the server's words. pgspate reports
/// this error without trying to start the stream.
fn slot_in_use_error(name: &str, reader: i32) -> Error {
    let message =
        format!("replication slot \"{name}\" is active for PID {reader} (SQLSTATE 55006)");
    let cause = Error::new(ErrorKind::Server, message).with_sqlstate(SqlState::OBJECT_IN_USE);
    Error::new(ErrorKind::Server, format!("could not read replication slot \"{name}\""))
        .hint("Another session reads this slot. End that session first.")
        .because(cause)
}

/// Returns whether a piece has new events or a new position, after [`DeliveredEvents::take_new`].
/// A server that sends neither, and then ends the connection each time, is not retried for ever.
fn is_progress(received: &ReceivedEvents) -> bool {
    !received.events.is_empty() || received.end.is_some()
}

impl DeliveredEvents {
    /// Removes from a piece the events that were sent to the receiver before, and counts the rest.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if a transaction was sent in part and another transaction comes now.
    fn take_new(&mut self, mut received: ReceivedEvents) -> Result<ReceivedEvents> {
        // A new session begins at the confirmed position, which may be before the last received
        // position.
        received.end = received.end.filter(|end| *end > self.whole);
        let count = received.events.len();
        let is_owed = self.begun > self.seen;
        if is_owed {
            let first = received.events.first().map(|event| &event.origin.source);
            let is_passed = || {
                let commit = self.commit.parse::<Lsn>();
                received.end.is_some_and(|end| commit.is_ok_and(|commit| end > commit))
            };
            if first.map_or_else(is_passed, |commit| *commit != self.commit) {
                return Err(other_transaction_error(&self.commit));
            }
        }
        let whole = received.events.iter().rposition(|event| event.ends_transaction);
        let known = self.begun.saturating_sub(self.seen).min(count);
        match whole {
            Some(last) => {
                self.seen = count - last - 1;
                self.begun = self.seen;
            }
            None => {
                self.seen += count;
                self.begun = self.begun.max(self.seen);
            }
        }
        if let Some(last) = received.events.last() {
            self.commit.clone_from(&last.origin.source);
        }
        received.events.drain(..known);
        self.whole = received.end.unwrap_or(self.whole);
        Ok(received)
    }
}

fn other_transaction_error(commit: &str) -> Error {
    let message = format!(
        "the source did not send the rest of the transaction at {commit}, after a reconnect"
    );
    Error::new(ErrorKind::Ledger, message).hint(
        "The source was restored to an older state, or its slot was created again. Run the same \
         command again: it says what can still be read.",
    )
}

/// Starts the task that asks the server for the end of its log.
fn spawn_lag_task(slot: Slot, lag: Arc<LagMeter>, runtime: &Handle) -> JoinHandle<()> {
    lag.note_end(SourcePoint::Log(slot.log_end));
    runtime.spawn(async move {
        loop {
            // The stream reports a lost connection, so errors are ignored here.
            if let Ok(Ok(connection)) = timeout(ANSWER_TIMEOUT, slot.connect()).await {
                let ask =
                    async || connection.client.query_one(super::SLOT_QUERY, &[&slot.name]).await;
                while let Ok(Ok(row)) = timeout(ANSWER_TIMEOUT, ask()).await {
                    let end = row.get::<_, Option<&str>>(0).and_then(|end| end.parse().ok());
                    let end: Lsn = end.unwrap_or_default();
                    lag.note_end(SourcePoint::Log(end));
                    tokio::time::sleep(ASK_INTERVAL).await;
                }
            }
            tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgspate_events::{ChangeEvent, ChangeKind, EventOrigin, SourceTable};

    fn event(nth: u64, ends: bool) -> ChangeEvent {
        ChangeEvent {
            table: Arc::new(SourceTable { schema: None, table: "t".to_owned() }),
            op: ChangeKind::Truncate,
            new: None,
            old: None,
            key: None,
            origin: EventOrigin { ordinal: nth, source: commit(nth), ..EventOrigin::default() },
            ends_transaction: ends,
        }
    }

    const ENDS: [u64; 3] = [2, 3, 7];

    /// Returns the commit LSN of an event.
    fn commit(nth: u64) -> Box<str> {
        Lsn(ENDS.into_iter().find(|end| nth <= *end).unwrap_or(100)).to_string().into()
    }

    /// Returns a piece of these events.
    fn piece(events: &[ChangeEvent]) -> ReceivedEvents {
        let whole = events.iter().rposition(|event| event.ends_transaction);
        let end = whole.map(|at| Lsn(events[at].origin.ordinal + 1));
        ReceivedEvents { events: events.to_vec(), end, ..ReceivedEvents::default() }
    }

    /// Events of another transaction do not complete a transaction that was sent in part.
    #[test]
    fn two_transactions_are_not_joined() {
        let begun = || {
            let mut delivered = DeliveredEvents::default();
            delivered.take_new(piece(&[event(4, false), event(5, false)])).unwrap();
            delivered.seen = 0;
            delivered
        };
        assert!(begun().take_new(piece(&[event(8, false)])).is_err());
        let silence = |end| ReceivedEvents { end: Some(Lsn(end)), ..ReceivedEvents::default() };
        assert!(begun().take_new(silence(8)).is_err());
        assert!(begun().take_new(silence(7)).is_ok());
        let rest = begun().take_new(piece(&[event(4, false), event(5, false), event(6, false)]));
        assert_eq!(rest.unwrap().events.len(), 1);
    }

    /// A server that repeats what it sent before makes no progress.
    #[test]
    fn repeated_events_and_positions_are_no_progress() {
        let silence = |end| ReceivedEvents { end: Some(Lsn(end)), ..ReceivedEvents::default() };
        let mut delivered = DeliveredEvents::default();
        let mut take = |received| is_progress(&delivered.take_new(received).unwrap());
        assert!(take(piece(&[event(0, false), event(1, false), event(2, true)])));
        assert!(take(piece(&[event(3, true), event(4, false)])));
        assert!(!take(silence(1)) && !take(silence(4)));
        assert!(take(piece(&[event(5, false)])));
        delivered.seen = 0;
        let mut take = |received| is_progress(&delivered.take_new(received).unwrap());
        assert!(!take(silence(4)) && !take(piece(&[event(4, false), event(5, false)])));
        assert!(take(piece(&[event(6, false)])));
    }

    /// After a reconnect the server first sends the confirmed position, which is before the last
    /// received position. The stream's position must not go back.
    #[test]
    fn the_position_does_not_go_back_in_a_new_session() {
        let silence = |end| ReceivedEvents { end: Some(Lsn(end)), ..ReceivedEvents::default() };
        let mut delivered = DeliveredEvents::default();
        delivered.take_new(piece(&[event(0, false), event(1, false), event(2, true)])).unwrap();
        assert_eq!(delivered.whole, Lsn(3));
        delivered.seen = 0;
        assert_eq!(delivered.take_new(silence(1)).unwrap().end, None);
        assert_eq!(delivered.whole, Lsn(3));
        assert_eq!(delivered.take_new(silence(5)).unwrap().end, Some(Lsn(5)));
        assert_eq!(delivered.whole, Lsn(5));
    }

    /// Connections are lost after every event, with pieces of every size.
    #[test]
    fn no_event_is_sent_twice() {
        let all: Vec<_> = (0..10).map(|nth| event(nth, ENDS.contains(&nth))).collect();
        for lost in 0..=10 {
            for size in 1..=4 {
                let (mut delivered, mut found) = (DeliveredEvents::default(), Vec::new());
                for (from, upto) in [(0, lost), (usize::MAX, 10)] {
                    // The server continues after the last whole transaction.
                    let from = if from == 0 { 0 } else { delivered.whole.0 as usize };
                    delivered.seen = 0;
                    for events in all[from..upto.max(from)].chunks(size) {
                        found.extend(delivered.take_new(piece(events)).unwrap().events);
                    }
                }
                let found: Vec<_> = found.iter().map(|event| event.origin.ordinal).collect();
                assert_eq!(found, (0..10).collect::<Vec<_>>(), "lost at {lost}, pieces of {size}");
            }
        }
    }
}
