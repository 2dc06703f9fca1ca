//! Sends and receives protocol messages over a socket, encrypted or not.
//!
//! Receiving may be cancelled at any await and continued later: received and unsent bytes stay in
//! buffers.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_postgres::error::SqlState;

use super::super::failure::os_error_text;
use super::super::framing::{MESSAGE_BYTES_MAX, OversizedMessage};
use crate::{Error, ErrorKind, Result, ends_session};

/// A stream of bytes in both directions.
pub(super) trait WireStream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> WireStream for T {}

/// Buffer space reserved for each read.
const READ_BYTES: usize = 64 << 10;

/// A message from the server.
#[derive(Debug)]
pub(super) struct ServerMessage {
    pub(super) tag: u8,
    pub(super) body: Bytes,
}

/// A socket with its receive and send buffers.
pub(super) struct MessageSocket {
    stream: Box<dyn WireStream>,
    input: BytesMut,
    /// Bytes to send, in whole messages.
    pub(super) output: BytesMut,
}

impl MessageSocket {
    pub(super) fn new(stream: Box<dyn WireStream>) -> MessageSocket {
        MessageSocket { stream, input: BytesMut::new(), output: BytesMut::new() }
    }

    /// Sends all bytes in the send buffer.
    pub(super) async fn flush(&mut self) -> Result<()> {
        while self.output.has_remaining() {
            match self.stream.write_buf(&mut self.output).await {
                Ok(0) => return Err(connect_error("the server closed the connection")),
                Ok(_) => {}
                Err(error) => return Err(connect_error(os_error_text(&error))),
            }
        }
        self.stream.flush().await.map_err(|error| connect_error(os_error_text(&error)))
    }

    /// Waits for the next message. Parameter, notice and notification messages are skipped.
    pub(super) async fn receive(&mut self) -> Result<ServerMessage> {
        loop {
            while let Some(message) = self.take_message()? {
                if !matches!(message.tag, b'S' | b'N' | b'A') {
                    return Ok(message);
                }
            }
            self.read_more().await?;
        }
    }

    /// Returns the next message that has arrived completely.
    pub(super) fn take_message(&mut self) -> Result<Option<ServerMessage>> {
        let Some((&[tag, a, b, c, d], _)) = self.input.split_first_chunk() else {
            return Ok(None);
        };
        let stated_len = u32::from_be_bytes([a, b, c, d]);
        if stated_len < 4 {
            return Err(connect_error("the server does not speak PostgreSQL's protocol"));
        }
        if stated_len > MESSAGE_BYTES_MAX {
            return Err(connect_error(
                OversizedMessage { stated_len, len_max: MESSAGE_BYTES_MAX, at: None }.to_string(),
            ));
        }
        let len = stated_len as usize;
        if self.input.len() < len + 1 {
            return Ok(None);
        }
        let mut body = self.input.split_to(len + 1).freeze();
        body.advance(5);
        Ok(Some(ServerMessage { tag, body }))
    }

    /// Reads bytes into the receive buffer.
    async fn read_more(&mut self) -> Result<()> {
        self.input.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.input).await {
            Ok(0) => Err(connect_error("the server closed the connection unexpectedly")),
            Ok(_) => Ok(()),
            Err(error) => Err(connect_error(os_error_text(&error))),
        }
    }
}

/// Returns the error for a connection that was lost or could not be established.
pub(super) fn connect_error(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::Connect, reason)
}

/// Returns the error for a message that cannot be built.
pub(super) fn zero_byte_error(error: io::Error) -> Error {
    Error::new(ErrorKind::Usage, "could not send text with a zero byte").because(error)
}

/// Converts a server's error message.
pub(super) fn server_refusal(body: &[u8]) -> Error {
    let mut fields = body.split(|byte| *byte == 0).filter_map(|field| field.split_first());
    let [mut code, mut message, mut detail, mut hint] = [const { String::new() }; 4];
    for (name, value) in &mut fields {
        let field = match name {
            b'C' => &mut code,
            b'M' => &mut message,
            b'D' => &mut detail,
            b'H' => &mut hint,
            _ => continue,
        };
        *field = String::from_utf8_lossy(value).into_owned();
    }
    let state = SqlState::from_code(&code);
    let kind = if ends_session(&state) { ErrorKind::Connect } else { ErrorKind::Server };
    let mut text = format!("{message} (SQLSTATE {code})");
    if !detail.is_empty() {
        text = format!("{text}: {detail}");
    }
    let error = Error::new(kind, text).with_sqlstate(state);
    match refusal_hint(&code, &message).unwrap_or(&hint) {
        "" => error,
        hint => error.hint(hint),
    }
}

/// Returns a hint for refusals that occur only with replication.
fn refusal_hint(code: &str, message: &str) -> Option<&'static str> {
    match code {
        "42501" => Some(
            "Allow the role to replicate: `alter role ... replication`, or on RDS `grant \
             rds_replication to ...`.",
        ),
        "55000" if message.contains("wal_level") => {
            Some("Set `wal_level = logical` in the server's configuration, and restart it.")
        }
        "53400" if message.contains("replication slots") => {
            Some("Drop unused slots, or raise `max_replication_slots`.")
        }
        "55006" => Some("Another session reads this slot. End that session first."),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_are_received_completely() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut socket = MessageSocket::new(Box::new(ours));
        theirs.write_all(b"S\0\0\0\x06a\0d\0\0\0\x06xy").await.unwrap();
        let message = socket.receive().await.unwrap();
        assert_eq!((message.tag, &message.body[..]), (b'd', &b"xy"[..]));
        theirs.write_all(b"d\0\0\0\x05").await.unwrap();
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(5), socket.receive());
        assert!(waiting.await.is_err());
        theirs.write_all(b"z").await.unwrap();
        assert_eq!(&socket.receive().await.unwrap().body[..], b"z");
        socket.output.extend_from_slice(b"hello");
        socket.flush().await.unwrap();
        let mut sent = [0; 5];
        theirs.read_exact(&mut sent).await.unwrap();
        assert_eq!(&sent, b"hello");
        drop(theirs);
        assert_eq!(socket.receive().await.unwrap_err().kind(), ErrorKind::Connect);
    }

    #[tokio::test]
    async fn an_invalid_message_ends_the_connection() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut socket = MessageSocket::new(Box::new(ours));
        theirs.write_all(b"H\0\0\0\x03").await.unwrap();
        assert!(socket.receive().await.is_err());
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut socket = MessageSocket::new(Box::new(ours));
        theirs.write_all(b"d\x7F\xFF\xFF\xFF").await.unwrap();
        let message = socket.receive().await.unwrap_err().to_string();
        let expected = "the server announced a message of 2147483647 bytes";
        assert!(message.starts_with(expected), "{message}");
    }

    #[test]
    fn refusals_keep_the_servers_words() {
        let error = server_refusal(b"SERROR\0C42501\0Mmust be a replication role\0\0");
        assert_eq!(error.to_string(), "must be a replication role (SQLSTATE 42501)");
        assert!(error.hint_text().unwrap().contains("alter role"));
        let error = server_refusal(b"C57P01\0Mgone\0Dby hand\0Htry\0\0");
        assert_eq!((error.kind(), error.hint_text()), (ErrorKind::Connect, Some("try")));
        assert_eq!(error.to_string(), "gone (SQLSTATE 57P01): by hand");
    }
}
