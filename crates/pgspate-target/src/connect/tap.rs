//! What passes over a connection: who owes whom, and since when nothing has moved.
//!
//! A tap sits where messages are readable: on the socket, or above TLS. It changes nothing, until
//! the connection is given up: from then on nothing is sent, and the tap answers every question
//! with an error that says why.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::ReadBuf;

use super::framing::{Dialog, Header, Headers, MESSAGE_BYTES_MAX, Oversized};

/// The state of one connection, shared by its tap and its guard.
#[derive(Debug, Default, Clone)]
pub(super) struct Traffic(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    dialog: Dialog,
    /// The client has read all that has come, and waits for more.
    awaits_read: bool,
    /// The network takes nothing of what the client has to send.
    awaits_write: bool,
    /// Counts whatever moves in either direction.
    moves: u64,
    moved: Instant,
    process_id: i32,
    /// What still comes is not read, as the connection is about to be given up.
    is_held: bool,
    /// Why the connection is given up.
    verdict: Option<String>,
    reader: Option<Waker>,
    is_over: bool,
}

impl Default for State {
    fn default() -> State {
        State {
            dialog: Dialog::default(),
            awaits_read: false,
            awaits_write: false,
            moves: 0,
            moved: Instant::now(),
            process_id: 0,
            is_held: false,
            verdict: None,
            reader: None,
            is_over: false,
        }
    }
}

/// A connection on which the client waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Silence {
    /// Differs from that of any other silence of the connection.
    pub(super) number: u64,
    pub(super) since: Instant,
}

impl Traffic {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process id in the protocol's key data: the backend's, or of a pooler's own making. 0
    /// where there was none.
    pub(super) fn process_id(&self) -> i32 {
        self.state().process_id
    }

    /// Whether the connection is closed.
    pub(super) fn is_over(&self) -> bool {
        self.state().is_over
    }

    /// Since when the client has waited for the server without any byte moving. `None` where the
    /// server owes nothing, or where the client has not read what came.
    pub(super) fn silence(&self) -> Option<Silence> {
        let state = self.state();
        let waits = state.awaits_write || (state.awaits_read && state.dialog.owes_answer());
        waits.then_some(Silence { number: state.moves, since: state.moved })
    }

    /// Reads nothing more of a connection that is still in this silence; false if it is not.
    pub(super) fn hold(&self, silence: Silence) -> bool {
        let is_silent = self.silence() == Some(silence);
        self.state().is_held |= is_silent;
        is_silent
    }

    /// Ends the connection: what waits for the server gets `reason` as its error.
    pub(super) fn give_up(&self, reason: String) {
        let mut state = self.state();
        state.verdict = Some(reason);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    /// Why the connection was given up.
    pub(super) fn verdict(&self) -> Option<String> {
        self.state().verdict.clone()
    }

    /// Notes that bytes have passed, readable or not.
    pub(super) fn note_move(&self) {
        self.state().note_move();
    }
}

impl State {
    fn note_move(&mut self) {
        self.moves += 1;
        self.moved = Instant::now();
    }
}

/// Follows what a client reads and writes.
#[derive(Debug)]
pub(super) struct Tap {
    traffic: Traffic,
    sent: Headers,
    received: Headers,
    /// The server's next byte is no message.
    awaits_byte: bool,
    /// What the client still has to read instead of answers.
    last_words: BytesMut,
    is_ended: bool,
}

impl Tap {
    pub(super) fn new(traffic: Traffic) -> Tap {
        let (sent, received) = (Headers::of_client(), Headers::of_server());
        let last_words = BytesMut::new();
        Tap { traffic, sent, received, awaits_byte: false, last_words, is_ended: false }
    }

    pub(super) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Reads by `read`.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        read: impl FnOnce(&mut Context<'_>, &mut ReadBuf<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        if self.is_given_up() {
            return self.poll_last_words(cx, buf);
        }
        if self.is_held(cx) {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let polled = read(cx, buf);
        let mut state = self.traffic.state();
        if polled.is_pending() {
            if state.verdict.is_some() {
                cx.waker().wake_by_ref();
            }
            // Since it has read all, not since that came.
            if !std::mem::replace(&mut state.awaits_read, true) {
                state.note_move();
            }
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.awaits_read = false;
        let mut bytes = &buf.filled()[before..];
        if bytes.is_empty() {
            return polled;
        }
        state.note_move();
        let mut start = before;
        if std::mem::take(&mut self.awaits_byte) {
            (bytes, start) = (&bytes[1..], start + 1);
        }
        self.received.follow(bytes, |header| match header {
            Header::Message(kind) => state.dialog.received(kind),
            Header::ProcessId(id) => state.process_id = id,
            Header::TlsRequest | Header::Startup => {}
        });
        drop(state);
        match self.received.oversized() {
            Some(oversized) => self.refuse(oversized, cx, buf, (before, start)),
            None => polled,
        }
    }

    /// Gives the connection up before a message that is too long: the client would keep what comes
    /// until it has come whole. `before` is where the client's buffer was filled to, and `start`
    /// where messages begin in what came.
    fn refuse(
        &mut self,
        oversized: Oversized,
        cx: &Context<'_>,
        buf: &mut ReadBuf<'_>,
        (before, start): (usize, usize),
    ) -> Poll<io::Result<()>> {
        let reason = oversized.to_string();
        let Some(at) = oversized.at.filter(|_| oversized.len_max == MESSAGE_BYTES_MAX) else {
            // Within a login, or a header that the client has a part of already.
            buf.set_filled(before);
            return Poll::Ready(Err(io::Error::other(reason)));
        };
        self.traffic.state().verdict = Some(reason);
        self.received.leave_out();
        buf.set_filled(start + at);
        if start + at > before {
            return Poll::Ready(Ok(()));
        }
        self.poll_last_words(cx, buf)
    }

    /// Whether nothing more is to be sent.
    pub(super) fn is_given_up(&self) -> bool {
        self.traffic.state().verdict.is_some()
    }

    fn is_held(&self, cx: &Context<'_>) -> bool {
        let mut state = self.traffic.state();
        if state.is_held {
            state.reader = Some(cx.waker().clone());
        }
        state.is_held
    }

    /// Answers what is asked with why the connection is given up. It ends at once inside a message,
    /// and after the first answer where COPY data would be sent to nobody.
    fn poll_last_words(&mut self, cx: &Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.traffic.state();
        if self.last_words.is_empty() && self.received.is_at_edge() && !self.is_ended {
            self.is_ended = state.dialog.is_copying();
            if !self.is_ended && !state.dialog.owes_answer() {
                state.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let reason = state.verdict.clone().unwrap_or_default();
            self.last_words = error_message(&reason);
            state.dialog.received(b'Z');
        }
        let len = self.last_words.len().min(buf.remaining());
        buf.put_slice(&self.last_words[..len]);
        self.last_words.advance(len);
        Poll::Ready(Ok(()))
    }

    /// Notes what a write of `bufs` has come to.
    pub(super) fn note_write<'a>(
        &mut self,
        written: &Poll<io::Result<usize>>,
        bufs: impl IntoIterator<Item = &'a [u8]>,
    ) {
        let mut left = match written {
            Poll::Ready(Ok(len)) => *len,
            Poll::Ready(Err(_)) => return,
            Poll::Pending => return self.note_blocked(true),
        };
        let mut state = self.traffic.state();
        state.awaits_write = false;
        state.note_move();
        for bytes in bufs {
            let bytes = &bytes[..left.min(bytes.len())];
            left -= bytes.len();
            self.sent.follow(bytes, |header| match header {
                Header::Message(kind) => state.dialog.sent(kind),
                Header::TlsRequest => self.awaits_byte = true,
                Header::ProcessId(_) | Header::Startup => {}
            });
        }
        if state.verdict.is_some()
            && let Some(reader) = state.reader.take()
        {
            reader.wake();
        }
    }

    /// Notes whether the network takes nothing more.
    pub(super) fn note_blocked(&mut self, is_blocked: bool) {
        let mut state = self.traffic.state();
        if std::mem::replace(&mut state.awaits_write, is_blocked) != is_blocked {
            state.note_move();
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.traffic.state().is_over = true;
    }
}

/// An answer as a server gives it: the connection has failed.
fn error_message(reason: &str) -> BytesMut {
    let fields = format!("SFATAL\0VFATAL\0C08006\0M{reason}\0\0");
    let mut message = BytesMut::new();
    message.put_u8(b'E');
    message.put_u32(4 + fields.len() as u32);
    message.put_slice(fields.as_bytes());
    message.put_slice(b"Z\0\0\0\x05I");
    message
}
