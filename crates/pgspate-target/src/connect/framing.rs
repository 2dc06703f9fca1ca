//! Parses the message headers of PostgreSQL's protocol, in both directions.
//!
//! Message bodies are skipped by their length, so following a COPY costs almost nothing. The result
//! does not depend on how the bytes are split into pieces.

use std::collections::VecDeque;
use std::fmt;

/// The code by which a client asks for TLS, in place of a protocol version.
const TLS_REQUEST: [u8; 4] = 80_877_103_u32.to_be_bytes();
/// The server's message with the process id of the session.
const KEY_DATA: u8 = b'K';
/// The server's message that ends a login, and later ends each answer (ReadyForQuery).
const READY: u8 = b'Z';
/// The maximal size of a server's message: servers create none over 1 GiB.
pub(super) const MESSAGE_BYTES_MAX: u32 = (1 << 30) + (1 << 16);
/// The maximal size of a server's message during the login.
pub(super) const LOGIN_BYTES_MAX: u32 = 1 << 20;

/// The parser of one direction of a connection.
#[derive(Debug, Default)]
pub(super) struct HeaderParser {
    header_bytes: [u8; 9],
    len: usize,
    body_left: u64,
    /// Whether the next message has a length and a code, but no type. The client's first messages
    /// do.
    is_opening: bool,
    is_broken: bool,
    /// The maximal size of a message, if limited.
    len_max: Option<u32>,
    oversized: Option<OversizedMessage>,
}

/// A message that is longer than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OversizedMessage {
    pub(super) stated_len: u32,
    pub(super) len_max: u32,
    /// Where the message begins in the latest bytes. `None` if the message began before them.
    pub(super) at: Option<usize>,
}

impl fmt::Display for OversizedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OversizedMessage { stated_len, len_max, .. } = self;
        write!(
            f,
            "the server announced a message of {stated_len} bytes, expected at most {len_max}"
        )
    }
}

/// A parsed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageHeader {
    /// The client asks for TLS; the server answers with one byte.
    TlsRequest,
    /// The client's startup message.
    Startup,
    /// The session's process id, sent by the server or a pooler.
    ProcessId(i32),
    /// Any other message.
    Message(u8),
}

impl HeaderParser {
    /// Returns a parser for a client's bytes. A client's first messages have no type.
    pub(super) fn of_client() -> HeaderParser {
        HeaderParser { is_opening: true, ..HeaderParser::default() }
    }

    /// Returns a parser for a server's bytes, with limited message sizes.
    pub(super) fn of_server() -> HeaderParser {
        HeaderParser { len_max: Some(LOGIN_BYTES_MAX), ..HeaderParser::default() }
    }

    /// Returns the message that was too long, if there was one. Later bytes are not parsed.
    pub(super) fn oversized(&self) -> Option<OversizedMessage> {
        self.oversized
    }

    /// Forgets the message that was too long, as if the stream had ended before that message.
    pub(super) fn skip_oversized(&mut self) {
        self.is_broken = false;
        self.oversized = None;
    }

    /// Returns whether the last message is complete.
    pub(super) fn is_between_messages(&self) -> bool {
        self.len == 0 && self.body_left == 0 && !self.is_broken
    }

    /// Parses more bytes, and calls `on_header` for each complete header.
    pub(super) fn parse(&mut self, mut bytes: &[u8], mut on_header: impl FnMut(MessageHeader)) {
        let len = bytes.len();
        while !bytes.is_empty() && !self.is_broken {
            let skipped = self.body_left.min(bytes.len() as u64);
            self.body_left -= skipped;
            bytes = &bytes[skipped as usize..];
            while self.len < self.header_len() && !bytes.is_empty() {
                self.header_bytes[self.len] = bytes[0];
                (self.len, bytes) = (self.len + 1, &bytes[1..]);
            }
            if self.len == self.header_len() {
                let start = (len - bytes.len()).checked_sub(self.len);
                self.finish_header(start, &mut on_header);
            }
        }
    }

    /// Returns the length of the current header, as far as its first bytes are known.
    fn header_len(&self) -> usize {
        match self.header_bytes[0] {
            _ if self.is_opening => 8,
            KEY_DATA if self.len > 0 => 9,
            _ => 5,
        }
    }

    /// Interprets a complete header. `at` is where the header begins in the latest bytes.
    fn finish_header(&mut self, at: Option<usize>, on_header: &mut impl FnMut(MessageHeader)) {
        let header_len = std::mem::take(&mut self.len);
        let number = |start: usize| {
            u32::from_be_bytes(self.header_bytes[start..start + 4].try_into().unwrap())
        };
        let (len_at, header) = match self.header_bytes[0] {
            _ if self.is_opening && self.header_bytes[4..8] == TLS_REQUEST => {
                (0, MessageHeader::TlsRequest)
            }
            _ if self.is_opening => (0, MessageHeader::Startup),
            KEY_DATA => (1, MessageHeader::ProcessId(number(5).cast_signed())),
            kind => (1, MessageHeader::Message(kind)),
        };
        let stated_len = number(len_at);
        if let Some(len_max) = self.len_max.filter(|len_max| stated_len > *len_max) {
            self.oversized = Some(OversizedMessage { stated_len, len_max, at });
            self.is_broken = true;
            return;
        }
        if header == MessageHeader::Message(READY) {
            self.len_max = self.len_max.and(Some(MESSAGE_BYTES_MAX));
        }
        let rest = (u64::from(stated_len) + len_at as u64).checked_sub(header_len as u64);
        match rest {
            Some(rest) => self.body_left = rest,
            // The length is impossible, so this is not PostgreSQL's protocol.
            None => self.is_broken = true,
        }
        self.is_opening &= header != MessageHeader::Startup;
        on_header(header);
    }
}

/// Parses a server's bytes in pieces of `piece_bytes` bytes, and describes the headers; for
/// fuzzing.
pub fn parse_server_headers(bytes: &[u8], piece_bytes: usize) -> Vec<String> {
    let (mut headers, mut dialog) = (HeaderParser::of_server(), ProtocolDialog::default());
    let mut headers_seen = Vec::new();
    for bytes in bytes.chunks(piece_bytes.max(1)) {
        headers.parse(bytes, |header| {
            if let MessageHeader::Message(kind) = header {
                dialog.note_received(kind);
            }
            headers_seen.push(format!("{header:?} {}", dialog.owes_answer()));
        });
    }
    let oversized = headers.oversized().map(|oversized| oversized.to_string());
    headers_seen.push(format!("{} {oversized:?}", headers.is_between_messages()));
    headers_seen
}

/// The state of the dialog: which answers the server owes, and whether a COPY is in progress.
#[derive(Debug, Default)]
pub(super) struct ProtocolDialog {
    /// Types of sent messages that the server has not yet answered with ReadyForQuery.
    unanswered: VecDeque<u8>,
    /// Whether the server waits for COPY data, and the client has not ended the COPY.
    is_copying: bool,
}

impl ProtocolDialog {
    pub(super) fn note_sent(&mut self, kind: u8) {
        match kind {
            b'Q' | b'S' | b'F' => self.unanswered.push_back(kind),
            b'c' | b'f' => self.is_copying = false,
            _ => {}
        }
    }

    pub(super) fn note_received(&mut self, kind: u8) {
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

    /// Returns whether the client is to send COPY data.
    pub(super) fn is_copying(&self) -> bool {
        self.is_copying
    }

    /// Returns whether the server owes an answer.
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

    fn parse_in_pieces(
        headers: &mut HeaderParser,
        bytes: &[u8],
        piece: usize,
    ) -> Vec<MessageHeader> {
        let mut headers_seen = Vec::new();
        bytes
            .chunks(piece)
            .for_each(|bytes| headers.parse(bytes, |header| headers_seen.push(header)));
        headers_seen
    }

    #[test]
    fn headers_do_not_depend_on_pieces() {
        let mut client = [&8_u32.to_be_bytes()[..], &TLS_REQUEST].concat();
        client.extend([&13_u32.to_be_bytes()[..], &[0, 3, 0, 0], b"user\0"].concat());
        client.extend(message(b'Q', b"select 1\0"));
        client.extend(message(b'd', &[b'Q'; 3000]));
        client.extend(message(b'c', b""));
        let mut server = message(b'R', &[0; 4]);
        server.extend(message(KEY_DATA, &[0, 0, 1, 2, 9, 9, 9, 9]));
        server.extend(message(b'Z', b"I"));
        for piece in [1, 2, 3, 4, 5, 7, 64, 5000] {
            let mut headers = HeaderParser::of_client();
            let parsed = parse_in_pieces(&mut headers, &client, piece);
            let plain = [b'Q', b'd', b'c'].map(MessageHeader::Message);
            assert_eq!(
                parsed,
                [&[MessageHeader::TlsRequest, MessageHeader::Startup], &plain[..]].concat()
            );
            assert!(headers.is_between_messages());
            let mut headers = HeaderParser::default();
            let parsed = parse_in_pieces(&mut headers, &server, piece);
            let key = MessageHeader::ProcessId(258);
            assert_eq!(parsed, [MessageHeader::Message(b'R'), key, MessageHeader::Message(b'Z')]);
            headers.parse(b"D\0\0", |_| panic!("no header"));
            assert!(!headers.is_between_messages());
        }
    }

    #[test]
    fn parsing_ends_at_an_invalid_message() {
        let mut headers = HeaderParser::default();
        parse_in_pieces(&mut headers, b"H\0\0\0\x03Z\0\0\0\x05I", 4);
        assert!(!headers.is_between_messages());
    }

    #[test]
    fn server_messages_are_limited_and_more_so_during_login() {
        let long = |len: u32| [&[b'D'][..], &len.to_be_bytes()].concat();
        let mut headers = HeaderParser::of_server();
        parse_in_pieces(&mut headers, &message(b'R', &[0; 4]), 3);
        assert_eq!(headers.oversized(), None);
        parse_in_pieces(&mut headers, &long(LOGIN_BYTES_MAX + 1), 3);
        let shown = headers.oversized().unwrap().to_string();
        assert_eq!(
            shown,
            "the server announced a message of 1048577 bytes, expected at most 1048576"
        );
        let mut headers = HeaderParser::of_server();
        parse_in_pieces(&mut headers, &message(b'Z', b"I"), 2);
        parse_in_pieces(&mut headers, &long(LOGIN_BYTES_MAX + 1), 3);
        assert_eq!(headers.oversized(), None);
        let mut headers = HeaderParser::of_server();
        parse_in_pieces(&mut headers, &message(b'Z', b"I"), 2);
        parse_in_pieces(&mut headers, &long(u32::MAX), 3);
        assert!(headers.oversized().is_some() && !headers.is_between_messages());
        // The client's own messages are not limited.
        let mut headers = HeaderParser::default();
        parse_in_pieces(&mut headers, &long(u32::MAX), 3);
        assert_eq!(headers.oversized(), None);
    }

    #[test]
    fn an_answer_is_owed_until_the_server_is_ready() {
        let mut dialog = ProtocolDialog::default();
        assert!(!dialog.owes_answer());
        "QPBES".bytes().for_each(|kind| dialog.note_sent(kind));
        "TDC".bytes().for_each(|kind| dialog.note_received(kind));
        assert!(dialog.owes_answer());
        dialog.note_received(b'Z');
        assert!(dialog.owes_answer());
        "12DCZ".bytes().for_each(|kind| dialog.note_received(kind));
        assert!(!dialog.owes_answer());
    }

    #[test]
    fn a_copy_owes_an_answer_before_and_after_its_data() {
        for (start, end) in [("Q", "c"), ("PBES", "cS"), ("BES", "fS")] {
            let mut dialog = ProtocolDialog::default();
            start.bytes().for_each(|kind| dialog.note_sent(kind));
            assert!(dialog.owes_answer());
            "2G".bytes().for_each(|kind| dialog.note_received(kind));
            dialog.note_sent(b'd');
            assert!(!dialog.owes_answer());
            end.bytes().for_each(|kind| dialog.note_sent(kind));
            assert!(dialog.owes_answer());
            "CZ".bytes().for_each(|kind| dialog.note_received(kind));
            assert!(!dialog.owes_answer());
        }
    }

    #[test]
    fn a_copy_after_statements_is_tracked() {
        let mut dialog = ProtocolDialog::default();
        "BES".bytes().for_each(|kind| dialog.note_sent(kind));
        "2G".bytes().for_each(|kind| dialog.note_received(kind));
        "dcSQBES".bytes().for_each(|kind| dialog.note_sent(kind));
        "CZCZ2".bytes().for_each(|kind| dialog.note_received(kind));
        assert!(dialog.owes_answer());
        dialog.note_received(b'G');
        assert!(!dialog.owes_answer());
        // The server refuses the COPY in the middle of its data.
        dialog.note_received(b'E');
        "fS".bytes().for_each(|kind| dialog.note_sent(kind));
        assert!(dialog.owes_answer());
        dialog.note_received(b'Z');
        assert!(!dialog.owes_answer());
    }

    #[test]
    fn a_refused_copy_is_answered_twice() {
        let mut dialog = ProtocolDialog::default();
        "BESfS".bytes().for_each(|kind| dialog.note_sent(kind));
        "EZ".bytes().for_each(|kind| dialog.note_received(kind));
        assert!(dialog.owes_answer());
        dialog.note_received(b'Z');
        assert!(!dialog.owes_answer());
    }
}
