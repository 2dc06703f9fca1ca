//! A slot's stream to the thread that makes batches, over as many connections as it takes.
//!
//! After a lost connection the server sends again what comes after the last transaction that was
//! received whole. What of the next one had been handed on already is passed over: it is sent in
//! the same order each time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Confirmed, Slot, is_active};
use crate::Result;
use crate::apply::feed::Piece;
use crate::apply::replication::{Lsn, Received, Replication};
use crate::apply::watch::Watch;
use crate::copy::Patience;

/// How often it looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);
/// How long the server may take to notice that the session which read the slot before is gone.
const LINGER: Duration = Duration::from_secs(5);
/// How often the server is asked where its log ends, and how long it is left alone after a failure.
const ASK: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(5);

/// Reads a slot.
pub(crate) struct Pump {
    pub(crate) slot: Slot,
    pub(crate) from: Lsn,
    pub(crate) confirmed: Arc<Confirmed>,
    pub(crate) retry_for: Duration,
    pub(crate) watch: Arc<Watch>,
    pub(crate) runtime: Handle,
}

/// How far the stream has been handed on.
#[derive(Debug, Default)]
struct Reach {
    /// All transactions that end here or before.
    whole: Lsn,
    /// Events of the next one.
    begun: usize,
    /// Events of it that this session has sent.
    seen: usize,
}

impl Pump {
    /// Reads until nobody wants more; gives back the open stream, to be closed when all is
    /// confirmed.
    pub(crate) fn run(self, pieces: &SyncSender<Result<Piece>>) -> Option<Replication> {
        let mut reach = Reach { whole: self.from, ..Reach::default() };
        let mut patience = Patience::new(LINGER.min(self.retry_for));
        let mut stream = None;
        loop {
            if self.is_over() {
                return stream;
            }
            let received = match &mut stream {
                None => match self.connect(reach.whole) {
                    Ok(new) => {
                        reach.seen = 0;
                        patience = Patience::new(self.retry_for);
                        stream = Some(new);
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
                    let received = reach.pass_over(received);
                    if pieces.send(Ok(Piece::Received(received))).is_err() {
                        return stream;
                    }
                }
                Err(error) => {
                    self.note_loss(stream.take().is_some());
                    let may_pass = error.is_retryable() || is_active(&error);
                    if !may_pass || !patience.wait(|| self.is_over()) {
                        let _ = pieces.send(Err(error));
                        return None;
                    }
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.watch.is_cancelled() || self.watch.gone.load(Relaxed)
    }

    fn connect(&self, from: Lsn) -> Result<Replication> {
        let Slot { dsn, name, publication, .. } = &self.slot;
        let upto = self.confirmed.upto();
        let start = Replication::start_after(dsn, name, publication, from, upto);
        let stream = self.runtime.block_on(start)?;
        self.confirmed.tell(stream.confirmer());
        self.watch.is_connected.store(true, Relaxed);
        Ok(stream)
    }

    fn note_loss(&self, was_open: bool) {
        self.watch.is_connected.store(false, Relaxed);
        self.watch.reconnects.fetch_add(u64::from(was_open), Relaxed);
    }
}

impl Reach {
    /// What of it is new.
    fn pass_over(&mut self, mut received: Received) -> Received {
        let count = received.events.len();
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
        received.events.drain(..known);
        self.whole = received.end.unwrap_or(self.whole);
        received
    }
}

/// Asks the source where its log ends, for as long as the task lives.
pub(crate) fn spawn_look(slot: Slot, watch: Arc<Watch>, runtime: &Handle) -> JoinHandle<()> {
    watch.see_end(slot.log_end);
    runtime.spawn(async move {
        loop {
            // The stream itself complains when the source is away.
            if let Ok(beside) = slot.connect().await {
                while let Ok(row) = beside.client.query_one(super::LOOK, &[&slot.name]).await {
                    let end = row.get::<_, Option<&str>>(0).and_then(|end| end.parse().ok());
                    let end: Lsn = end.unwrap_or_default();
                    watch.see_end(end);
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
    use crate::apply::{Event, Name, Op, Position};

    fn event(nth: u64, ends: bool) -> Event {
        Event {
            table: Arc::new(Name { schema: None, table: "t".to_owned() }),
            op: Op::Truncate,
            new: None,
            old: None,
            key: None,
            position: Position { ordinal: nth, ..Position::default() },
            ends_transaction: ends,
        }
    }

    /// Ends of transactions, cuts of pieces and lost connections at every place.
    #[test]
    fn what_was_handed_on_is_not_handed_on_again() {
        let ends = [2, 3, 7];
        let all: Vec<_> = (0..10).map(|nth| event(nth, ends.contains(&nth))).collect();
        for lost in 0..=10 {
            for size in 1..=4 {
                let (mut reach, mut found) = (Reach::default(), Vec::new());
                for (from, upto) in [(0, lost), (usize::MAX, 10)] {
                    // The server goes on after the last whole transaction.
                    let from = if from == 0 { 0 } else { reach.whole.0 as usize };
                    reach.seen = 0;
                    for piece in all[from..upto.max(from)].chunks(size) {
                        let whole = piece.iter().rposition(|event| event.ends_transaction);
                        let end = whole.map(|at| Lsn(piece[at].position.ordinal + 1));
                        let received =
                            Received { events: piece.to_vec(), end, ..Received::default() };
                        found.extend(reach.pass_over(received).events);
                    }
                }
                let found: Vec<_> = found.iter().map(|event| event.position.ordinal).collect();
                assert_eq!(found, (0..10).collect::<Vec<_>>(), "lost at {lost}, pieces of {size}");
            }
        }
    }
}
