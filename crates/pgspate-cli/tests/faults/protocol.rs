//! Messages of PostgreSQL's protocol, version 3, as far as a proxy must distinguish them.
//!
//! The head of a message is read first. Then a short body is read whole, and a long body is copied
//! through.

use std::io;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The largest body that is read whole. Shorter bodies may have a statement, a command tag or a
/// transaction state.
const HELD_BYTES_MAX: usize = 64 << 10;

/// The largest startup packet. Real startup packets have a few names and are far smaller.
const STARTUP_BYTES_MAX: usize = 64 << 10;

const SSL_REQUEST: u32 = 80_877_103;
const GSSENC_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;

/// Who sent a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageSide {
    Client,
    Server,
}

/// A packet before the session begins, which has no type byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpeningPacket {
    /// A request for encryption, which the server answers with one byte.
    Encryption,
    Cancel,
    Startup,
}

/// A message whose first bytes were read. The rest of a long body is still unread.
#[derive(Debug)]
pub(crate) struct WireMessage {
    /// The type byte; `!` for a packet that has none.
    pub(crate) kind: u8,
    /// The bytes that were read: the head, and the body of a short message.
    bytes: Vec<u8>,
    head: usize,
    /// Bytes of the body that are still to be read.
    rest: u64,
}

impl WireMessage {
    /// Reads the next message. Returns `None` at the end of the stream.
    pub(crate) async fn read<R: AsyncRead + Unpin>(
        from: &mut R,
    ) -> io::Result<Option<WireMessage>> {
        let mut kind = [0];
        if from.read(&mut kind).await? == 0 {
            return Ok(None);
        }
        let mut bytes = vec![kind[0], 0, 0, 0, 0];
        from.read_exact(&mut bytes[1..]).await?;
        let body = body_bytes(&bytes[1..])?;
        let mut message = WireMessage { kind: kind[0], bytes, head: 5, rest: body };
        if body <= HELD_BYTES_MAX as u64 {
            message.read_body(from, body as usize).await?;
        }
        Ok(Some(message))
    }

    /// Reads the next packet without a type byte. Returns the packet and its purpose.
    pub(crate) async fn read_opening<R: AsyncRead + Unpin>(
        from: &mut R,
    ) -> io::Result<Option<(WireMessage, OpeningPacket)>> {
        let mut bytes = vec![0; 4];
        if from.read(&mut bytes[..1]).await? == 0 {
            return Ok(None);
        }
        from.read_exact(&mut bytes[1..]).await?;
        let body = body_bytes(&bytes)? as usize;
        if !(4..=STARTUP_BYTES_MAX).contains(&body) {
            return Err(io::Error::other(format!("a startup packet of {body} bytes")));
        }
        let mut message = WireMessage { kind: b'!', bytes, head: 4, rest: body as u64 };
        message.read_body(from, body).await?;
        let opening = match u32::from_be_bytes(message.bytes[4..8].try_into().unwrap()) {
            SSL_REQUEST | GSSENC_REQUEST => OpeningPacket::Encryption,
            CANCEL_REQUEST => OpeningPacket::Cancel,
            _ => OpeningPacket::Startup,
        };
        Ok(Some((message, opening)))
    }

    /// Returns the reply to a request for encryption, which is one byte.
    pub(crate) fn encryption_reply(byte: u8) -> WireMessage {
        WireMessage { kind: b'!', bytes: vec![byte], head: 0, rest: 0 }
    }

    /// Reads a body of this length.
    async fn read_body<R: AsyncRead + Unpin>(
        &mut self,
        from: &mut R,
        body: usize,
    ) -> io::Result<()> {
        let at = self.bytes.len();
        self.bytes.resize(at + body, 0);
        self.rest = 0;
        from.read_exact(&mut self.bytes[at..]).await.map(drop)
    }

    /// Returns the length of the body in bytes.
    pub(crate) fn len(&self) -> u64 {
        (self.bytes.len() - self.head) as u64 + self.rest
    }

    /// Returns the body if it was read, else an empty slice.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[self.head..]
    }

    /// Replaces a statement that `rules` refuse by text that is no SQL. So the server aborts the
    /// transaction, and its syntax error quotes the reason.
    pub(crate) fn refuse_statement(&mut self, rules: impl Fn(&str) -> Option<&'static str>) {
        let body = self.body();
        let end_of_name = match self.kind {
            b'Q' => 0,
            b'P' => body.iter().position(|&byte| byte == 0).map_or(body.len(), |at| at + 1),
            _ => return,
        };
        let (name, rest) = body.split_at(end_of_name);
        let Some(end) = rest.iter().position(|&byte| byte == 0) else { return };
        let Some(reason) = std::str::from_utf8(&rest[..end]).ok().and_then(rules) else { return };
        let replaced = [name, b"\"", reason.as_bytes(), b"\"", &rest[end..]].concat();
        let mut bytes = vec![self.kind];
        bytes.extend_from_slice(&(replaced.len() as u32 + 4).to_be_bytes());
        bytes.extend_from_slice(&replaced);
        self.bytes = bytes;
    }

    /// Writes the first `bytes` of head and body to `to`. Unread bytes are read from `from`.
    pub(crate) async fn pass<R, W>(&self, bytes: u64, from: &mut R, to: &mut W) -> io::Result<()>
    where
        R: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let here = self.bytes.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
        to.write_all(&self.bytes[..here]).await?;
        let rest = self.rest.min(bytes - here as u64);
        if tokio::io::copy_buf(&mut from.take(rest), to).await? < rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.flush().await
    }

    /// Returns the length of head and body in bytes.
    pub(crate) fn total_len(&self) -> u64 {
        self.bytes.len() as u64 + self.rest
    }

    /// Reads and discards the rest of the message.
    pub(crate) async fn skip<R: AsyncRead + Unpin>(&self, from: &mut R) -> io::Result<()> {
        tokio::io::copy(&mut from.take(self.rest), &mut tokio::io::sink()).await.map(drop)
    }
}

/// Returns the length of a body. The stated length includes its own four bytes.
fn body_bytes(length: &[u8]) -> io::Result<u64> {
    let length = u32::from_be_bytes(length.try_into().unwrap());
    let body = length.checked_sub(4).filter(|_| length <= i32::MAX as u32);
    body.map(u64::from).ok_or_else(|| io::Error::other(format!("a message of {length} bytes")))
}

/// Recognizes the messages of one client that commit.
#[derive(Debug, Default)]
pub(crate) struct CommitDetector {
    /// Names of prepared statements that commit.
    prepared: Vec<Vec<u8>>,
}

impl CommitDetector {
    /// Returns whether the server commits when it receives the message. Such a message is a simple
    /// query with the word `commit`, or binds a prepared statement with this word. A statement that
    /// writes a batch of `apply` commits, too, as it is a transaction of its own.
    pub(crate) fn is_commit(&mut self, message: &WireMessage) -> bool {
        let body = message.body();
        let name_end = |bytes: &[u8]| bytes.iter().position(|&byte| byte == 0);
        match message.kind {
            b'Q' => contains_commit(body),
            b'P' => {
                let Some(end) = name_end(body) else { return false };
                self.prepared.retain(|name| name != &body[..end]);
                if contains_commit(&body[end..]) || is_whole_batch(&body[end + 1..]) {
                    self.prepared.push(body[..end].to_vec());
                }
                false
            }
            b'B' => {
                // The statement's name follows the portal's name.
                let Some(rest) = name_end(body).map(|end| &body[end + 1..]) else { return false };
                let Some(end) = name_end(rest) else { return false };
                self.prepared.iter().any(|name| name == &rest[..end])
            }
            _ => false,
        }
    }
}

/// Returns whether the SQL contains the word `commit`. The setting `synchronous_commit` and the
/// clause `on commit` of a temporary table do not count.
fn contains_commit(sql: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
    sql.split(|&byte| byte == b';').any(|statement| {
        let mut before: &[u8] = b"";
        statement.split(|byte| !is_part(byte)).filter(|word| !word.is_empty()).any(|word| {
            let follows_on = std::mem::replace(&mut before, word).eq_ignore_ascii_case(b"on");
            word.eq_ignore_ascii_case(b"commit") && !follows_on
        })
    })
}

/// Returns whether the SQL is the statement that writes a batch of `apply`.
fn is_whole_batch(sql: &[u8]) -> bool {
    sql.starts_with(b"with begun as ")
}

/// Returns whether the server reports the end of a commit: committed, rolled back, or refused.
/// `of_any_statement`: the statement is a transaction of its own.
pub(crate) fn ends_commit(message: &WireMessage, of_any_statement: bool) -> bool {
    let tag = message.body();
    let is_end = of_any_statement || tag.starts_with(b"COMMIT") || tag.starts_with(b"ROLLBACK");
    message.kind == b'E' || (message.kind == b'C' && is_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    #[test]
    fn commits_are_recognized_by_the_word_and_not_by_names_that_contain_it() {
        let is_commit = |kind, body: &[u8]| {
            let bytes = message(kind, body);
            let read = run(WireMessage::read(&mut bytes.as_slice())).unwrap().unwrap();
            CommitDetector::default().is_commit(&read)
        };
        assert!(is_commit(b'Q', b"set local synchronous_commit to off; COMMIT\0"));
        assert!(is_commit(b'Q', b"set local synchronous_commit to on; commit\0"));
        assert!(is_commit(b'Q', b"commit and chain\0"));
        assert!(!is_commit(b'Q', b"create temporary table t () on commit drop\0"));
        assert!(!is_commit(b'Q', b"set synchronous_commit = off\0"));
        assert!(!is_commit(b'd', b"commit"));
        let mut commits = CommitDetector::default();
        let mut is_commit = |kind, body: &[u8]| {
            let bytes = message(kind, body);
            commits.is_commit(&run(WireMessage::read(&mut bytes.as_slice())).unwrap().unwrap())
        };
        assert!(!is_commit(b'P', b"s1\0commit\0\0\0"));
        assert!(!is_commit(b'P', b"s2\0select 1\0\0\0"));
        assert!(is_commit(b'B', b"\0s1\0\0\0\0\0\0\0"));
        assert!(!is_commit(b'B', b"s1\0s2\0\0\0\0\0\0\0"));
        assert!(!is_commit(b'P', b"s1\0select 2\0\0\0"));
        assert!(!is_commit(b'B', b"\0s1\0\0\0\0\0\0\0"));
    }

    #[test]
    fn short_messages_are_read_whole_and_long_ones_are_copied_through() {
        let long = vec![7; HELD_BYTES_MAX + 1];
        let bytes = [message(b'C', b"COMMIT\0"), message(b'd', &long)].concat();
        let mut from = bytes.as_slice();
        let mut to = Vec::new();
        let work = async {
            let first = WireMessage::read(&mut from).await.unwrap().unwrap();
            assert!(ends_commit(&first, false));
            first.pass(first.total_len(), &mut from, &mut to).await.unwrap();
            let second = WireMessage::read(&mut from).await.unwrap().unwrap();
            assert_eq!((second.kind, second.len()), (b'd', long.len() as u64));
            assert_eq!(second.body(), b"");
            second.pass(second.total_len(), &mut from, &mut to).await.unwrap();
            assert!(WireMessage::read(&mut from).await.unwrap().is_none());
        };
        run(work);
        assert_eq!(to, bytes);
    }

    #[test]
    fn impossible_message_lengths_are_refused() {
        for bytes in [&[b'Q', 0, 0, 0, 3][..], &[b'Q', 0xff, 0, 0, 0], &[b'Q', 0]] {
            assert!(run(WireMessage::read(&mut { bytes })).is_err());
        }
        for bytes in [&[0, 0, 0, 7, 0, 0, 0][..], &[0, 1, 0x40, 0, 0]] {
            assert!(run(WireMessage::read_opening(&mut { bytes })).is_err());
        }
    }
}
