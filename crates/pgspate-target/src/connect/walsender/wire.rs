//! Messages of the protocol over a socket, encrypted or not.
//!
//! Receiving may be given up between any two awaits and taken up again: what has come stays in the
//! buffer, and so does what has not been sent yet.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_postgres::error::SqlState;

use super::super::failure::os_words;
use super::super::framing::{MESSAGE_BYTES_MAX, Oversized};
use crate::{Error, ErrorKind, Result, ends_session};

/// Bytes both ways.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> Stream for T {}

/// Room made for what comes.
const READ_BYTES: usize = 64 << 10;

/// A message of the server's.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) tag: u8,
    pub(super) body: Bytes,
}

/// A socket with what has come from it and what is to go.
pub(super) struct Wire {
    stream: Box<dyn Stream>,
    input: BytesMut,
    /// What is to be sent, in whole messages.
    pub(super) output: BytesMut,
}

impl Wire {
    pub(super) fn new(stream: Box<dyn Stream>) -> Wire {
        Wire { stream, input: BytesMut::new(), output: BytesMut::new() }
    }

    /// Sends what is to be sent.
    pub(super) async fn flush(&mut self) -> Result<()> {
        while self.output.has_remaining() {
            match self.stream.write_buf(&mut self.output).await {
                Ok(0) => return Err(lost("the server closed the connection")),
                Ok(_) => {}
                Err(error) => return Err(lost(os_words(&error))),
            }
        }
        self.stream.flush().await.map_err(|error| lost(os_words(&error)))
    }

    /// The next message that is an answer; parameters and notices are passed over.
    pub(super) async fn receive(&mut self) -> Result<Message> {
        loop {
            while let Some(message) = self.take()? {
                if !matches!(message.tag, b'S' | b'N' | b'A') {
                    return Ok(message);
                }
            }
            self.fill().await?;
        }
    }

    /// The next message that has come whole already.
    pub(super) fn take(&mut self) -> Result<Option<Message>> {
        let Some((&[tag, a, b, c, d], _)) = self.input.split_first_chunk() else {
            return Ok(None);
        };
        let stated = u32::from_be_bytes([a, b, c, d]);
        if stated < 4 {
            return Err(lost("the server does not speak PostgreSQL's protocol"));
        }
        if stated > MESSAGE_BYTES_MAX {
            return Err(lost(
                Oversized { stated, len_max: MESSAGE_BYTES_MAX, at: None }.to_string(),
            ));
        }
        let len = stated as usize;
        if self.input.len() < len + 1 {
            return Ok(None);
        }
        let mut body = self.input.split_to(len + 1).freeze();
        body.advance(5);
        Ok(Some(Message { tag, body }))
    }

    async fn fill(&mut self) -> Result<()> {
        self.input.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.input).await {
            Ok(0) => Err(lost("the server closed the connection unexpectedly")),
            Ok(_) => Ok(()),
            Err(error) => Err(lost(os_words(&error))),
        }
    }
}

/// The connection is gone.
pub(super) fn lost(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::Connect, reason)
}

/// A message that could not be made.
pub(super) fn unsendable(error: io::Error) -> Error {
    Error::new(ErrorKind::Usage, "could not send a text with a zero byte").because(error)
}

/// The server's refusal, in its words.
pub(super) fn refusal(body: &[u8]) -> Error {
    let mut fields = body.split(|byte| *byte == 0).filter_map(|field| field.split_first());
    let [mut code, mut message, mut detail, mut hint] = [const { String::new() }; 4];
    for (name, text) in &mut fields {
        let slot = match name {
            b'C' => &mut code,
            b'M' => &mut message,
            b'D' => &mut detail,
            b'H' => &mut hint,
            _ => continue,
        };
        *slot = String::from_utf8_lossy(text).into_owned();
    }
    let state = SqlState::from_code(&code);
    let kind = if ends_session(&state) { ErrorKind::Connect } else { ErrorKind::Server };
    let mut words = format!("{message} (SQLSTATE {code})");
    if !detail.is_empty() {
        words = format!("{words}: {detail}");
    }
    let error = Error::new(kind, words).with_sqlstate(state);
    match remedy(&code, &message).unwrap_or(&hint) {
        "" => error,
        hint => error.hint(hint),
    }
}

/// What to do about refusals that only replication meets.
fn remedy(code: &str, message: &str) -> Option<&'static str> {
    match code {
        "42501" => Some(
            "The role needs the right to replicate: `alter role ... replication`, or on RDS \
             `grant rds_replication to ...`.",
        ),
        "55000" if message.contains("wal_level") => {
            Some("Set `wal_level = logical` in the server's configuration, and restart it.")
        }
        "53400" if message.contains("replication slots") => {
            Some("Drop slots that nobody needs, or raise `max_replication_slots`.")
        }
        "55006" => Some("Another session reads this slot; end it first."),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_are_taken_whole() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut wire = Wire::new(Box::new(ours));
        theirs.write_all(b"S\0\0\0\x06a\0d\0\0\0\x06xy").await.unwrap();
        let message = wire.receive().await.unwrap();
        assert_eq!((message.tag, &message.body[..]), (b'd', &b"xy"[..]));
        theirs.write_all(b"d\0\0\0\x05").await.unwrap();
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(5), wire.receive());
        assert!(waiting.await.is_err());
        theirs.write_all(b"z").await.unwrap();
        assert_eq!(&wire.receive().await.unwrap().body[..], b"z");
        wire.output.extend_from_slice(b"hello");
        wire.flush().await.unwrap();
        let mut sent = [0; 5];
        theirs.read_exact(&mut sent).await.unwrap();
        assert_eq!(&sent, b"hello");
        drop(theirs);
        assert_eq!(wire.receive().await.unwrap_err().kind(), ErrorKind::Connect);
    }

    #[tokio::test]
    async fn what_is_no_message_ends_the_connection() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut wire = Wire::new(Box::new(ours));
        theirs.write_all(b"H\0\0\0\x03").await.unwrap();
        assert!(wire.receive().await.is_err());
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut wire = Wire::new(Box::new(ours));
        theirs.write_all(b"d\x7F\xFF\xFF\xFF").await.unwrap();
        let told = wire.receive().await.unwrap_err().to_string();
        assert!(told.starts_with("the server states a message of 2147483647 bytes"), "{told}");
    }

    #[test]
    fn refusals_keep_the_servers_words() {
        let error = refusal(b"SERROR\0C42501\0Mmust be a replication role\0\0");
        assert_eq!(error.to_string(), "must be a replication role (SQLSTATE 42501)");
        assert!(error.hint_text().unwrap().contains("alter role"));
        let error = refusal(b"C57P01\0Mgone\0Dby hand\0Htry\0\0");
        assert_eq!((error.kind(), error.hint_text()), (ErrorKind::Connect, Some("try")));
        assert_eq!(error.to_string(), "gone (SQLSTATE 57P01): by hand");
    }
}
