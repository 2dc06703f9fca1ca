//! Follows the messages of PostgreSQL's protocol by their headers, in both directions.
//!
//! Bodies are skipped by their length, so that following a COPY costs next to nothing. What comes
//! in any pieces gives the same as what comes at once.

use std::collections::VecDeque;
use std::fmt;

/// The code in place of a version by which a client asks for TLS.
const TLS_REQUEST: [u8; 4] = 80_877_103_u32.to_be_bytes();
/// The server's message that holds the process id of the session.
const KEY_DATA: u8 = b'K';
/// The server's message that ends a login, and then each answer.
const READY: u8 = b'Z';
/// Bytes of a server's message, at most: it makes none of over 1 GiB.
pub(super) const MESSAGE_BYTES_MAX: u32 = (1 << 30) + (1 << 16);
/// The same until the login is done.
pub(super) const LOGIN_BYTES_MAX: u32 = 1 << 20;

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Headers {
    held: [u8; 9],
    len: usize,
    body_left: u64,
    /// What comes next has a length and a code, and no type.
    is_opening: bool,
    is_broken: bool,
    /// How long a message may be, where that is limited.
    len_max: Option<u32>,
    oversized: Option<Oversized>,
}

/// A message that is longer than any should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Oversized {
    pub(super) stated: u32,
    pub(super) len_max: u32,
    /// Where it begins in the bytes that were followed last, if it does.
    pub(super) at: Option<usize>,
}

impl fmt::Display for Oversized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Oversized { stated, len_max, .. } = self;
        write!(f, "the server states a message of {stated} bytes, expected {len_max} at most")
    }
}

/// What a header has told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// The client asks for TLS; the server answers with one byte.
    TlsRequest,
    /// The client says who it is.
    Startup,
    /// The session's process id, as the server or a pooler tells it.
    ProcessId(i32),
    /// Any other message.
    Message(u8),
}

impl Headers {
    /// Of a client, whose first messages have no type.
    pub(super) fn of_client() -> Headers {
        Headers { is_opening: true, ..Headers::default() }
    }

    /// Of a server, whose messages are limited.
    pub(super) fn of_server() -> Headers {
        Headers { len_max: Some(LOGIN_BYTES_MAX), ..Headers::default() }
    }

    /// A message that is too long, behind which nothing is followed.
    pub(super) fn oversized(&self) -> Option<Oversized> {
        self.oversized
    }

    /// Leaves the message that is too long out, as if the one before were the last.
    pub(super) fn leave_out(&mut self) {
        self.is_broken = false;
        self.oversized = None;
    }

    /// Whether the last message has come to its end.
    pub(super) fn is_at_edge(&self) -> bool {
        self.len == 0 && self.body_left == 0 && !self.is_broken
    }

    /// Follows more bytes, and tells each header that is complete.
    pub(super) fn follow(&mut self, mut bytes: &[u8], mut tell: impl FnMut(Header)) {
        let len = bytes.len();
        while !bytes.is_empty() && !self.is_broken {
            let skipped = self.body_left.min(bytes.len() as u64);
            self.body_left -= skipped;
            bytes = &bytes[skipped as usize..];
            while self.len < self.wanted() && !bytes.is_empty() {
                self.held[self.len] = bytes[0];
                (self.len, bytes) = (self.len + 1, &bytes[1..]);
            }
            if self.len == self.wanted() {
                let start = (len - bytes.len()).checked_sub(self.len);
                self.complete(start, &mut tell);
            }
        }
    }

    /// Bytes to hold before the header is understood.
    fn wanted(&self) -> usize {
        match self.held[0] {
            _ if self.is_opening => 8,
            KEY_DATA if self.len > 0 => 9,
            _ => 5,
        }
    }

    fn complete(&mut self, at: Option<usize>, tell: &mut impl FnMut(Header)) {
        let held = std::mem::take(&mut self.len);
        let number = |at: usize| u32::from_be_bytes(self.held[at..at + 4].try_into().unwrap());
        let (len_at, header) = match self.held[0] {
            _ if self.is_opening && self.held[4..8] == TLS_REQUEST => (0, Header::TlsRequest),
            _ if self.is_opening => (0, Header::Startup),
            KEY_DATA => (1, Header::ProcessId(number(5).cast_signed())),
            kind => (1, Header::Message(kind)),
        };
        let stated = number(len_at);
        if let Some(len_max) = self.len_max.filter(|len_max| stated > *len_max) {
            self.oversized = Some(Oversized { stated, len_max, at });
            self.is_broken = true;
            return;
        }
        if header == Header::Message(READY) {
            self.len_max = self.len_max.and(Some(MESSAGE_BYTES_MAX));
        }
        let rest = (u64::from(stated) + len_at as u64).checked_sub(held as u64);
        match rest {
            Some(rest) => self.body_left = rest,
            // Whatever this is, it is not PostgreSQL's protocol.
            None => self.is_broken = true,
        }
        self.is_opening &= header != Header::Startup;
        tell(header);
    }
}

/// What the headers of a server's messages tell, which come in pieces of `piece` bytes; for
/// fuzzing.
pub fn headers_of_server(bytes: &[u8], piece: usize) -> Vec<String> {
    let (mut headers, mut dialog) = (Headers::of_server(), Dialog::default());
    let mut told = Vec::new();
    for bytes in bytes.chunks(piece.max(1)) {
        headers.follow(bytes, |header| {
            if let Header::Message(kind) = header {
                dialog.received(kind);
            }
            told.push(format!("{header:?} {}", dialog.owes_answer()));
        });
    }
    let oversized = headers.oversized().map(|oversized| oversized.to_string());
    told.push(format!("{} {oversized:?}", headers.is_at_edge()));
    told
}

/// What client and server owe each other.
#[derive(Debug, Default)]
pub(super) struct Dialog {
    /// Types of the messages that the server answers with ReadyForQuery.
    unanswered: VecDeque<u8>,
    /// The server waits for COPY data, and the client has not ended them.
    is_copying: bool,
}

impl Dialog {
    pub(super) fn sent(&mut self, kind: u8) {
        match kind {
            b'Q' | b'S' | b'F' => self.unanswered.push_back(kind),
            b'c' | b'f' => self.is_copying = false,
            _ => {}
        }
    }

    pub(super) fn received(&mut self, kind: u8) {
        match kind {
            b'Z' => {
                self.unanswered.pop_front();
                self.is_copying = false;
            }
            b'G' | b'W' => {
                self.is_copying = true;
                // The server ignores the Sync behind the Execute of a COPY.
                if self.unanswered.front() == Some(&b'S') {
                    self.unanswered.pop_front();
                }
            }
            _ => {}
        }
    }

    /// Whether the client is to send COPY data.
    pub(super) fn is_copying(&self) -> bool {
        self.is_copying
    }

    /// Whether it is the server's turn to say something.
    pub(super) fn owes_answer(&self) -> bool {
        !self.unanswered.is_empty() && !self.is_copying
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut all = vec![kind];
        all.extend((4 + body.len() as u32).to_be_bytes());
        all.extend(body);
        all
    }

    fn followed(headers: &mut Headers, bytes: &[u8], piece: usize) -> Vec<Header> {
        let mut told = Vec::new();
        bytes.chunks(piece).for_each(|bytes| headers.follow(bytes, |header| told.push(header)));
        told
    }

    #[test]
    fn headers_are_told_whatever_the_pieces_are() {
        let mut client = [&8_u32.to_be_bytes()[..], &TLS_REQUEST].concat();
        client.extend([&13_u32.to_be_bytes()[..], &[0, 3, 0, 0], b"user\0"].concat());
        client.extend(message(b'Q', b"select 1\0"));
        client.extend(message(b'd', &[b'Q'; 3000]));
        client.extend(message(b'c', b""));
        let mut server = message(b'R', &[0; 4]);
        server.extend(message(KEY_DATA, &[0, 0, 1, 2, 9, 9, 9, 9]));
        server.extend(message(b'Z', b"I"));
        for piece in [1, 2, 3, 4, 5, 7, 64, 5000] {
            let mut headers = Headers::of_client();
            let told = followed(&mut headers, &client, piece);
            let plain = [b'Q', b'd', b'c'].map(Header::Message);
            assert_eq!(told, [&[Header::TlsRequest, Header::Startup], &plain[..]].concat());
            assert!(headers.is_at_edge());
            let mut headers = Headers::default();
            let told = followed(&mut headers, &server, piece);
            let key = Header::ProcessId(258);
            assert_eq!(told, [Header::Message(b'R'), key, Header::Message(b'Z')]);
            headers.follow(b"D\0\0", |_| panic!("no header"));
            assert!(!headers.is_at_edge());
        }
    }

    #[test]
    fn what_is_no_message_is_followed_no_further() {
        let mut headers = Headers::default();
        followed(&mut headers, b"H\0\0\0\x03Z\0\0\0\x05I", 4);
        assert!(!headers.is_at_edge());
    }

    #[test]
    fn a_servers_message_is_limited_more_so_until_the_login_is_done() {
        let long = |len: u32| [&[b'D'][..], &len.to_be_bytes()].concat();
        let mut headers = Headers::of_server();
        followed(&mut headers, &message(b'R', &[0; 4]), 3);
        assert_eq!(headers.oversized(), None);
        followed(&mut headers, &long(LOGIN_BYTES_MAX + 1), 3);
        let told = headers.oversized().unwrap().to_string();
        assert_eq!(told, "the server states a message of 1048577 bytes, expected 1048576 at most");
        let mut headers = Headers::of_server();
        followed(&mut headers, &message(b'Z', b"I"), 2);
        followed(&mut headers, &long(LOGIN_BYTES_MAX + 1), 3);
        assert_eq!(headers.oversized(), None);
        let mut headers = Headers::of_server();
        followed(&mut headers, &message(b'Z', b"I"), 2);
        followed(&mut headers, &long(u32::MAX), 3);
        assert!(headers.oversized().is_some() && !headers.is_at_edge());
        // What the client sends is its own.
        let mut headers = Headers::default();
        followed(&mut headers, &long(u32::MAX), 3);
        assert_eq!(headers.oversized(), None);
    }

    #[test]
    fn an_answer_is_owed_until_the_server_is_ready() {
        let mut dialog = Dialog::default();
        assert!(!dialog.owes_answer());
        "QPBES".bytes().for_each(|kind| dialog.sent(kind));
        "TDC".bytes().for_each(|kind| dialog.received(kind));
        assert!(dialog.owes_answer());
        dialog.received(b'Z');
        assert!(dialog.owes_answer());
        "12DCZ".bytes().for_each(|kind| dialog.received(kind));
        assert!(!dialog.owes_answer());
    }

    #[test]
    fn a_copy_owes_an_answer_before_its_data_and_after_their_end() {
        for (start, end) in [("Q", "c"), ("PBES", "cS"), ("BES", "fS")] {
            let mut dialog = Dialog::default();
            start.bytes().for_each(|kind| dialog.sent(kind));
            assert!(dialog.owes_answer());
            "2G".bytes().for_each(|kind| dialog.received(kind));
            dialog.sent(b'd');
            assert!(!dialog.owes_answer());
            end.bytes().for_each(|kind| dialog.sent(kind));
            assert!(dialog.owes_answer());
            "CZ".bytes().for_each(|kind| dialog.received(kind));
            assert!(!dialog.owes_answer());
        }
    }

    #[test]
    fn a_copy_behind_statements_is_told_from_them() {
        let mut dialog = Dialog::default();
        "BES".bytes().for_each(|kind| dialog.sent(kind));
        "2G".bytes().for_each(|kind| dialog.received(kind));
        "dcSQBES".bytes().for_each(|kind| dialog.sent(kind));
        "CZCZ2".bytes().for_each(|kind| dialog.received(kind));
        assert!(dialog.owes_answer());
        dialog.received(b'G');
        assert!(!dialog.owes_answer());
        // Refused in the midst of its data.
        dialog.received(b'E');
        "fS".bytes().for_each(|kind| dialog.sent(kind));
        assert!(dialog.owes_answer());
        dialog.received(b'Z');
        assert!(!dialog.owes_answer());
    }

    #[test]
    fn a_copy_that_never_began_is_answered_twice() {
        let mut dialog = Dialog::default();
        "BESfS".bytes().for_each(|kind| dialog.sent(kind));
        "EZ".bytes().for_each(|kind| dialog.received(kind));
        assert!(dialog.owes_answer());
        dialog.received(b'Z');
        assert!(!dialog.owes_answer());
    }
}
