//! A slot's stream to the thread that makes batches, over as many connections as it takes.
//!
//! After a lost connection the server sends again what comes after the last transaction that was
//! received whole. What of the next one had been handed on already is passed over: it is sent in
//! the same order each time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;

use super::{Confirmed, Slot, SlotPosition, is_active};
use crate::postgres::{Received, Replication};
use crate::{Error, ErrorKind, EventSource, LagMeter, Pieces, Result, SourcePoint};
use pgspate_events::Lsn;
use pgspate_target::session::{LOOK, Limits, Patience};

/// How often the server is asked where its log ends, and how long it is left alone after a failure.
const ASK: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(5);
/// A server that does not answer for so long is asked anew.
const SILENCE: Duration = Duration::from_mins(1);

/// Reads a slot.
pub struct SlotSource {
    slot: Slot,
    /// The stream, while there is a connection.
    stream: Option<Replication>,
    from: Lsn,
    confirmed: Arc<Confirmed>,
    limits: Limits,
    lag: Arc<LagMeter>,
    runtime: Handle,
    /// Asks the source where its log ends.
    look: JoinHandle<()>,
}

/// How much of the stream has been handed on.
#[derive(Debug, Default)]
struct Delivered {
    /// All transactions that end here or before.
    whole: Lsn,
    /// Events of the next one.
    begun: usize,
    /// Events of it that this session has sent.
    seen: usize,
    /// Where it commits, as its events say it.
    commit: Box<str>,
}

impl EventSource for SlotSource {
    type EventOrigin = SlotPosition;
    type Piece = Received;

    /// Leaves the stream open, to be closed when all is confirmed.
    fn read(&mut self, pieces: &Pieces<Received>) {
        let mut delivered = Delivered { whole: self.from, ..Delivered::default() };
        let mut patience = Patience::new(self.limits.retry_for);
        if let Some(stream) = &self.stream {
            self.note_stream(stream);
        }
        while pieces.are_wanted() {
            let received = match &mut self.stream {
                None => match self.connect(delivered.whole) {
                    Ok(new) => {
                        delivered.seen = 0;
                        patience = Patience::new(self.limits.retry_for);
                        self.stream = Some(new);
                        continue;
                    }
                    Err(error) => Err(error),
                },
                Some(open) => {
                    let next = async { timeout(LOOK, open.next()).await };
                    match self.runtime.block_on(next) {
                        Err(_) => continue,
                        Ok(received) => received,
                    }
                }
            };
            match received {
                Ok(received) => {
                    patience.renew();
                    let received = delivered.take_new(received);
                    let is_lost = received.is_err();
                    if pieces.send(received).is_err() || is_lost {
                        return;
                    }
                }
                Err(error) => {
                    self.lag.note_loss(self.stream.take().is_some());
                    let may_pass = error.is_retryable() || is_active(&error);
                    if !may_pass || !patience.wait(|| !pieces.are_wanted()) {
                        // To stop, the source is not needed.
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
        self.look.abort();
    }
}

impl SlotSource {
    /// Reads `slot` after `from`; by `begun`, where that has been done already.
    pub fn new(
        slot: Slot,
        from: Lsn,
        begun: Option<Replication>,
        confirmed: &Arc<Confirmed>,
        limits: Limits,
        lag: &Arc<LagMeter>,
        runtime: &Handle,
    ) -> SlotSource {
        confirmed.note(from);
        lag.note_applied(SourcePoint::Log(from));
        SlotSource {
            look: spawn_look(slot.clone(), Arc::clone(lag), runtime),
            slot,
            stream: begun,
            from,
            confirmed: Arc::clone(confirmed),
            limits,
            lag: Arc::clone(lag),
            runtime: runtime.clone(),
        }
    }

    fn connect(&self, from: Lsn) -> Result<Replication> {
        let start = self.slot.start(from, || self.confirmed.upto());
        let stream = self.runtime.block_on(start)?;
        self.note_stream(&stream);
        Ok(stream)
    }

    fn note_stream(&self, stream: &Replication) {
        self.confirmed.tell(stream.confirmer());
        self.lag.note_connection();
    }
}

impl Slot {
    /// Starts to read it after `from`, up to where all was received; `upto` says what is applied.
    /// It may have been made anew, and the server have become another, since it was last read.
    pub async fn start(&self, from: Lsn, upto: impl Fn() -> Lsn) -> Result<Replication> {
        let Slot { dsn, name, publication, .. } = self;
        let now = self.again().await?;
        now.check_identity(&self.identity)?;
        // What has been received is in the history of the server that is there now.
        now.timeline.check(self.read_from.load(Relaxed), from, name)?;
        if let Some(reader) = now.found.as_ref().and_then(|found| found.reader) {
            return Err(is_read_by(name, reader));
        }
        // After the look: what is applied by now is at least what was confirmed then.
        let upto = upto();
        now.check(from, upto)?;
        self.read_from.store(now.read_from.load(Relaxed), Relaxed);
        Replication::start(dsn, name, publication, from, upto).await
    }
}

/// As the server says it, which would have it tried first.
fn is_read_by(name: &str, reader: i32) -> Error {
    let message =
        format!("replication slot \"{name}\" is active for PID {reader} (SQLSTATE 55006)");
    let cause = Error::new(ErrorKind::Server, message).with_sqlstate(SqlState::OBJECT_IN_USE);
    Error::new(ErrorKind::Server, format!("could not read replication slot \"{name}\""))
        .hint("Another session reads this slot; end it first.")
        .because(cause)
}

impl Delivered {
    /// Returns what of a piece has not been handed on, and counts it.
    ///
    /// # Errors
    /// Of [`ErrorKind::Ledger`] when what comes is not the transaction of which a part was handed
    /// on.
    fn take_new(&mut self, mut received: Received) -> Result<Received> {
        // A new session begins to count at what is confirmed, which may be less.
        received.end = received.end.filter(|end| *end > self.whole);
        let count = received.events.len();
        let is_owed = self.begun > self.seen;
        if is_owed {
            let first = received.events.first().map(|event| &event.position.source);
            let is_passed = || {
                let commit = self.commit.parse::<Lsn>();
                received.end.is_some_and(|end| commit.is_ok_and(|commit| end > commit))
            };
            if first.map_or_else(is_passed, |commit| *commit != self.commit) {
                return Err(is_another(&self.commit));
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
            self.commit.clone_from(&last.position.source);
        }
        received.events.drain(..known);
        self.whole = received.end.unwrap_or(self.whole);
        Ok(received)
    }
}

fn is_another(commit: &str) -> Error {
    let message = format!(
        "the source does not send the transaction at {commit} again, of which a part had come"
    );
    Error::new(ErrorKind::Ledger, message).hint(
        "The source was put back to an older state, or its slot was made anew. Run the same \
         command again: it says what can still be read.",
    )
}

/// Asks the source where its log ends, for as long as the task lives.
fn spawn_look(slot: Slot, lag: Arc<LagMeter>, runtime: &Handle) -> JoinHandle<()> {
    lag.note_end(SourcePoint::Log(slot.log_end));
    runtime.spawn(async move {
        loop {
            // The stream itself complains when the source is away.
            if let Ok(Ok(beside)) = timeout(SILENCE, slot.connect()).await {
                let ask = async || beside.client.query_one(super::LOOK, &[&slot.name]).await;
                while let Ok(Ok(row)) = timeout(SILENCE, ask()).await {
                    let end = row.get::<_, Option<&str>>(0).and_then(|end| end.parse().ok());
                    let end: Lsn = end.unwrap_or_default();
                    lag.note_end(SourcePoint::Log(end));
                    tokio::time::sleep(ASK).await;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgspate_events::{ChangeEvent, SourceTable, ChangeKind, EventOrigin};

    fn event(nth: u64, ends: bool) -> ChangeEvent {
        ChangeEvent {
            table: Arc::new(SourceTable { schema: None, table: "t".to_owned() }),
            op: ChangeKind::Truncate,
            new: None,
            old: None,
            key: None,
            position: EventOrigin { ordinal: nth, source: commit(nth), ..EventOrigin::default() },
            ends_transaction: ends,
        }
    }

    const ENDS: [u64; 3] = [2, 3, 7];

    /// The last events of transactions commit there.
    fn commit(nth: u64) -> Box<str> {
        Lsn(ENDS.into_iter().find(|end| nth <= *end).unwrap_or(100)).to_string().into()
    }

    /// A piece that ends a transaction if its last event does.
    fn piece(events: &[ChangeEvent]) -> Received {
        let whole = events.iter().rposition(|event| event.ends_transaction);
        let end = whole.map(|at| Lsn(events[at].position.ordinal + 1));
        Received { events: events.to_vec(), end, ..Received::default() }
    }

    /// What comes instead of the rest of a transaction is no rest of it.
    #[test]
    fn two_transactions_are_not_made_one() {
        let begun = || {
            let mut delivered = Delivered::default();
            delivered.take_new(piece(&[event(4, false), event(5, false)])).unwrap();
            delivered.seen = 0;
            delivered
        };
        assert!(begun().take_new(piece(&[event(8, false)])).is_err());
        let silence = |end| Received { end: Some(Lsn(end)), ..Received::default() };
        assert!(begun().take_new(silence(8)).is_err());
        assert!(begun().take_new(silence(7)).is_ok());
        let rest = begun().take_new(piece(&[event(4, false), event(5, false), event(6, false)]));
        assert_eq!(rest.unwrap().events.len(), 1);
    }

    /// A server that is connected to again says first how far it knows that we are, which is
    /// before what has been received: that is not sent again, and not where the stream is.
    #[test]
    fn a_new_session_does_not_go_back() {
        let silence = |end| Received { end: Some(Lsn(end)), ..Received::default() };
        let mut delivered = Delivered::default();
        delivered.take_new(piece(&[event(0, false), event(1, false), event(2, true)])).unwrap();
        assert_eq!(delivered.whole, Lsn(3));
        delivered.seen = 0;
        assert_eq!(delivered.take_new(silence(1)).unwrap().end, None);
        assert_eq!(delivered.whole, Lsn(3));
        assert_eq!(delivered.take_new(silence(5)).unwrap().end, Some(Lsn(5)));
        assert_eq!(delivered.whole, Lsn(5));
    }

    /// Ends of transactions, cuts of pieces and lost connections at every place.
    #[test]
    fn what_was_handed_on_is_not_handed_on_again() {
        let all: Vec<_> = (0..10).map(|nth| event(nth, ENDS.contains(&nth))).collect();
        for lost in 0..=10 {
            for size in 1..=4 {
                let (mut delivered, mut found) = (Delivered::default(), Vec::new());
                for (from, upto) in [(0, lost), (usize::MAX, 10)] {
                    // The server goes on after the last whole transaction.
                    let from = if from == 0 { 0 } else { delivered.whole.0 as usize };
                    delivered.seen = 0;
                    for events in all[from..upto.max(from)].chunks(size) {
                        found.extend(delivered.take_new(piece(events)).unwrap().events);
                    }
                }
                let found: Vec<_> = found.iter().map(|event| event.position.ordinal).collect();
                assert_eq!(found, (0..10).collect::<Vec<_>>(), "lost at {lost}, pieces of {size}");
            }
        }
    }
}
