//! Tracks the messages of one connection: who owes an answer, and since when no byte has moved.
//!
//! A tap sits where messages are readable: on the socket, or above TLS. The tap changes nothing
//! until the connection is abandoned. From then on nothing is sent. The tap answers every query
//! with an error that states the reason.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::ReadBuf;

use super::framing::{
    HeaderParser, MESSAGE_BYTES_MAX, MessageHeader, OversizedMessage, ProtocolDialog,
};

/// The state of one connection, shared by its tap and its guard.
#[derive(Debug, Default, Clone)]
pub(super) struct ConnectionTraffic(Arc<Mutex<TrafficState>>);

#[derive(Debug)]
struct TrafficState {
    dialog: ProtocolDialog,
    /// Whether the client has read everything and waits for more.
    awaits_read: bool,
    /// Whether the client waits because the network accepts no more bytes.
    awaits_write: bool,
    /// How many times bytes moved, in either direction.
    move_count: u64,
    last_move: Instant,
    process_id: i32,
    /// Whether no more bytes are read, since the connection is about to be abandoned.
    is_reading_stopped: bool,
    /// Why the connection was abandoned.
    abandon_reason: Option<String>,
    /// Wakes the task that reads.
    reader: Option<Waker>,
    is_closed: bool,
}

impl Default for TrafficState {
    fn default() -> TrafficState {
        TrafficState {
            dialog: ProtocolDialog::default(),
            awaits_read: false,
            awaits_write: false,
            move_count: 0,
            last_move: Instant::now(),
            process_id: 0,
            is_reading_stopped: false,
            abandon_reason: None,
            reader: None,
            is_closed: false,
        }
    }
}

/// A period in which the client waits and no byte moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Silence {
    /// Identifies this silence among all silences of the connection.
    pub(super) number: u64,
    pub(super) since: Instant,
}

impl ConnectionTraffic {
    fn state(&self) -> MutexGuard<'_, TrafficState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the process id in the protocol's key data: the backend's, or one that a pooler
    /// invented. 0 if there was none.
    pub(super) fn process_id(&self) -> i32 {
        self.state().process_id
    }

    /// Returns whether the connection is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Returns since when the client has waited without any byte moving. The client waits if the
    /// network accepts no more bytes, or if the client has read everything and the server owes an
    /// answer. `None` if the client does not wait.
    pub(super) fn silence(&self) -> Option<Silence> {
        let state = self.state();
        let waits = state.awaits_write || (state.awaits_read && state.dialog.owes_answer());
        waits.then_some(Silence { number: state.move_count, since: state.last_move })
    }

    /// Stops reading, if the connection is still in this silence. Returns whether the silence
    /// lasts.
    pub(super) fn stop_reading(&self, silence: Silence) -> bool {
        let is_silent = self.silence() == Some(silence);
        self.state().is_reading_stopped |= is_silent;
        is_silent
    }

    /// Abandons the connection. Waiting statements get `reason` as their error.
    pub(super) fn abandon(&self, reason: String) {
        let mut state = self.state();
        state.abandon_reason = Some(reason);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    /// Returns why the connection was abandoned; `None` if it was not.
    pub(super) fn abandon_reason(&self) -> Option<String> {
        self.state().abandon_reason.clone()
    }

    /// Notes that bytes have moved, encrypted or not.
    pub(super) fn note_move(&self) {
        self.state().note_move();
    }
}

impl TrafficState {
    fn note_move(&mut self) {
        self.move_count += 1;
        self.last_move = Instant::now();
    }
}

/// Follows the bytes that a client reads and writes.
#[derive(Debug)]
pub(super) struct Tap {
    traffic: ConnectionTraffic,
    sent: HeaderParser,
    received: HeaderParser,
    /// Whether the server's next byte is the reply to a TLS request, not the start of a message.
    awaits_tls_reply: bool,
    /// The rest of the error message that the client reads after the connection was abandoned.
    final_error: BytesMut,
    /// Whether the client reads the end of the stream after `final_error`.
    is_ended: bool,
}

impl Tap {
    pub(super) fn new(traffic: ConnectionTraffic) -> Tap {
        let (sent, received) = (HeaderParser::of_client(), HeaderParser::of_server());
        let final_error = BytesMut::new();
        Tap { traffic, sent, received, awaits_tls_reply: false, final_error, is_ended: false }
    }

    pub(super) fn traffic(&self) -> &ConnectionTraffic {
        &self.traffic
    }

    /// Reads bytes with `read`, and parses the headers among them.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        read: impl FnOnce(&mut Context<'_>, &mut ReadBuf<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        if self.is_abandoned() {
            return self.poll_final_error(cx, buf);
        }
        if self.is_reading_stopped(cx) {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let polled = read(cx, buf);
        let mut state = self.traffic.state();
        if polled.is_pending() {
            if state.abandon_reason.is_some() {
                cx.waker().wake_by_ref();
            }
            // The silence begins when the client has read everything, not when the bytes came.
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
        if std::mem::take(&mut self.awaits_tls_reply) {
            (bytes, start) = (&bytes[1..], start + 1);
        }
        self.received.parse(bytes, |header| match header {
            MessageHeader::Message(kind) => state.dialog.note_received(kind),
            MessageHeader::ProcessId(id) => state.process_id = id,
            MessageHeader::TlsRequest | MessageHeader::Startup => {}
        });
        drop(state);
        match self.received.oversized() {
            Some(oversized) => self.refuse_oversized(oversized, cx, buf, (before, start)),
            None => polled,
        }
    }

    /// Abandons the connection before a message that is too long, since the client would buffer the
    /// whole message. `before` is the length of the client's buffer before the read. `start` is the
    /// offset in the buffer at which the new messages begin.
    fn refuse_oversized(
        &mut self,
        oversized: OversizedMessage,
        cx: &Context<'_>,
        buf: &mut ReadBuf<'_>,
        (before, start): (usize, usize),
    ) -> Poll<io::Result<()>> {
        let reason = oversized.to_string();
        let Some(at) = oversized.at.filter(|_| oversized.len_max == MESSAGE_BYTES_MAX) else {
            // During a login, or if the client already has a part of the header.
            buf.set_filled(before);
            return Poll::Ready(Err(io::Error::other(reason)));
        };
        self.traffic.state().abandon_reason = Some(reason);
        self.received.skip_oversized();
        buf.set_filled(start + at);
        if start + at > before {
            return Poll::Ready(Ok(()));
        }
        self.poll_final_error(cx, buf)
    }

    /// Returns whether the connection was abandoned, so that nothing more is sent.
    pub(super) fn is_abandoned(&self) -> bool {
        self.traffic.state().abandon_reason.is_some()
    }

    fn is_reading_stopped(&self, cx: &Context<'_>) -> bool {
        let mut state = self.traffic.state();
        if state.is_reading_stopped {
            state.reader = Some(cx.waker().clone());
        }
        state.is_reading_stopped
    }

    /// Answers queries with an error that states why the connection was abandoned. If the server's
    /// last message is incomplete, ends the stream at once. During a COPY, ends the stream after
    /// the error.
    fn poll_final_error(
        &mut self,
        cx: &Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.traffic.state();
        if self.final_error.is_empty() && self.received.is_between_messages() && !self.is_ended {
            self.is_ended = state.dialog.is_copying();
            if !self.is_ended && !state.dialog.owes_answer() {
                state.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let reason = state.abandon_reason.clone().unwrap_or_default();
            self.final_error = fatal_error_message(&reason);
            state.dialog.note_received(b'Z');
        }
        let len = self.final_error.len().min(buf.remaining());
        buf.put_slice(&self.final_error[..len]);
        self.final_error.advance(len);
        Poll::Ready(Ok(()))
    }

    /// Notes the result of writing `bufs`.
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
            self.sent.parse(bytes, |header| match header {
                MessageHeader::Message(kind) => state.dialog.note_sent(kind),
                MessageHeader::TlsRequest => self.awaits_tls_reply = true,
                MessageHeader::ProcessId(_) | MessageHeader::Startup => {}
            });
        }
        if state.abandon_reason.is_some()
            && let Some(reader) = state.reader.take()
        {
            reader.wake();
        }
    }

    /// Notes whether the network blocks, and accepts no more bytes.
    pub(super) fn note_blocked(&mut self, is_blocked: bool) {
        let mut state = self.traffic.state();
        if std::mem::replace(&mut state.awaits_write, is_blocked) != is_blocked {
            state.note_move();
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.traffic.state().is_closed = true;
    }
}

/// Returns the bytes of an error message and of ReadyForQuery, as if the server reported a failed
/// connection.
fn fatal_error_message(reason: &str) -> BytesMut {
    let fields = format!("SFATAL\0VFATAL\0C08006\0M{reason}\0\0");
    let mut message = BytesMut::new();
    message.put_u8(b'E');
    message.put_u32(4 + fields.len() as u32);
    message.put_slice(fields.as_bytes());
    message.put_slice(b"Z\0\0\0\x05I");
    message
}
