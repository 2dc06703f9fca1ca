//! Messages of pgoutput, built byte by byte.

use pgspate_events::Lsn;
use pgspate_events::decode::Decode;
use pgspate_replication::postgres::Pgoutput;
use proptest::prelude::*;

use crate::support::{NoColumnTypes, line};

fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

fn begin(xid: u32) -> Vec<u8> {
    [&b"B"[..], &0x10_u64.to_be_bytes(), &0_u64.to_be_bytes(), &xid.to_be_bytes()].concat()
}

fn commit(end: u64) -> Vec<u8> {
    let numbers = [0x10, end, 0].map(u64::to_be_bytes).concat();
    [&b"C\0"[..], &numbers].concat()
}

/// Builds the description of a table with the columns `id`, its key, and `note`.
fn relation(oid: u32, identity: u8, flags: [u8; 2]) -> Vec<u8> {
    let mut message = [&b"R"[..], &oid.to_be_bytes(), &text("shop"), &text("orders")].concat();
    message.extend([identity, 0, 2]);
    for (flag, name) in flags.iter().zip(["id", "note"]) {
        message.push(*flag);
        message.extend(text(name));
        message.extend([0, 0, 0, 25, 0xFF, 0xFF, 0xFF, 0xFF]);
    }
    message
}

/// Builds a row: `None` is NULL, and a question mark is an omitted value.
fn tuple(values: &[Option<&str>]) -> Vec<u8> {
    let mut tuple = (values.len() as u16).to_be_bytes().to_vec();
    for value in values {
        match value {
            None => tuple.push(b'n'),
            Some("?") => tuple.push(b'u'),
            Some(value) => {
                tuple.push(b't');
                tuple.extend((value.len() as u32).to_be_bytes());
                tuple.extend(value.as_bytes());
            }
        }
    }
    tuple
}

fn change(kind: u8, parts: &[(u8, &[Option<&str>])]) -> Vec<u8> {
    let mut message = [&[kind][..], &7_u32.to_be_bytes()].concat();
    for (part, values) in parts {
        message.push(*part);
        message.extend(tuple(values));
    }
    message
}

fn decode(messages: &[Vec<u8>]) -> Result<Vec<String>, String> {
    let mut decoder = Pgoutput::new();
    let mut events = Vec::new();
    for message in messages {
        decoder.decode(message, &NoColumnTypes, &mut events).map_err(|error| error.to_string())?;
    }
    Ok(events.iter().map(line).collect())
}

/// Returns messages of every kind, as a server sends them.
fn stream() -> Vec<Vec<u8>> {
    vec![
        begin(5),
        [&b"O"[..], &[0; 8], &text("elsewhere")].concat(),
        [&b"Y"[..], &[0, 0, 64, 0], &text("public"), &text("mood")].concat(),
        relation(7, b'd', [1, 0]),
        change(b'I', &[(b'N', &[Some("1"), Some("a")])]),
        change(b'U', &[(b'N', &[Some("1"), Some("?")])]),
        change(b'U', &[(b'K', &[Some("1"), None]), (b'N', &[Some("2"), None])]),
        [&b"M\x01"[..], &[0; 8], &text("prefix"), &[0, 0, 0, 1], b"x"].concat(),
        change(b'D', &[(b'K', &[Some("2"), None])]),
        commit(0x20),
        begin(6),
        [&b"T"[..], &[0, 0, 0, 1, 0], &7_u32.to_be_bytes()].concat(),
        relation(7, b'f', [1, 1]),
        change(b'U', &[(b'O', &[Some("1"), Some("long")]), (b'N', &[Some("3"), Some("?")])]),
        change(b'D', &[(b'O', &[Some("3"), Some("long")])]),
        commit(0x30),
    ]
}

#[test]
fn every_kind_of_message_is_decoded() {
    assert_eq!(
        decode(&stream()).unwrap(),
        [
            "Insert shop.orders {id=1 note=a} by [id] in 5",
            "Update shop.orders {id=1 note=-} by [id] in 5",
            "Update shop.orders {id=2 note=NULL} was {id=1} by [id] in 5",
            "Delete shop.orders was {id=2} by [id] in 5 end",
            "Truncate shop.orders by [id] in 6",
            // With a whole old row, the new row has all values.
            "Update shop.orders {id=3 note=long} was {id=1 note=long} in 6",
            "Delete shop.orders was {id=3 note=long} in 6 end",
        ]
    );
}

#[test]
fn a_transaction_ends_where_its_commit_says() {
    let mut decoder = Pgoutput::new();
    let mut events = Vec::new();
    let mut ends = Vec::new();
    for message in stream() {
        decoder.decode(&message, &NoColumnTypes, &mut events).unwrap();
        let is_last = events.last().is_some_and(|event| event.ends_transaction);
        assert_eq!(decoder.is_inside(), !is_last || message[0] != b'C' && message[0] != b'M');
        ends.extend(decoder.take_end().map(|(end, _)| end));
    }
    assert_eq!(ends, [Lsn(0x20), Lsn(0x30)]);
    assert_eq!(&*events[0].origin.source, "0/10");
    // The last event is held back until the commit.
    let cut_off = &stream()[..5];
    assert_eq!(decode(cut_off).unwrap().len(), 0);
}

#[test]
fn malformed_messages_are_refused() {
    let table = relation(7, b'd', [1, 0]);
    for (messages, error) in [
        (vec![vec![]], "a message is cut off"),
        (vec![b"x".to_vec()], "unknown kind of message"),
        (vec![begin(5), begin(6)], "a transaction begins within another one"),
        (vec![commit(1)], "a transaction ends that has not begun"),
        (vec![table.clone(), change(b'D', &[])], "a change outside a transaction"),
        (vec![begin(5), table.clone(), change(b'D', &[])], "a message is cut off"),
        (
            vec![begin(5), change(b'I', &[(b'N', &[])])],
            "a change of a table that has not been described",
        ),
        (
            vec![begin(5), table.clone(), change(b'I', &[(b'N', &[None])])],
            "a row has other columns than its table",
        ),
        (vec![begin(5), table.clone(), change(b'I', &[(b'X', &[])])], "unknown part of a change"),
        (
            vec![begin(5), relation(7, b'n', [0, 0]), change(b'D', &[(b'K', &[None, None])])],
            "an old key of a table that has none",
        ),
        (vec![b"S\0\0\0\x01\x01".to_vec()], "a transaction is streamed before it has ended"),
    ] {
        assert_eq!(decode(&messages).unwrap_err(), error);
    }
    let binary = [&b"I"[..], &7_u32.to_be_bytes(), b"N\0\x02b\0\0\0\x01xn"].concat();
    let error = decode(&[begin(5), table, binary]).unwrap_err();
    assert_eq!(error, "a value is binary, which was not asked for");
}

#[test]
fn a_truncated_message_is_refused() {
    for (nth, message) in stream().iter().enumerate() {
        for end in 0..message.len() {
            let mut decoder = Pgoutput::new();
            let mut events = Vec::new();
            for before in &stream()[..nth] {
                decoder.decode(before, &NoColumnTypes, &mut events).unwrap();
            }
            let before = events.len();
            let done = decoder.decode(&message[..end], &NoColumnTypes, &mut events);
            // The content of these messages is not read.
            let is_passed_over = matches!(message[0], b'O' | b'Y' | b'M') && end > 0;
            assert_eq!(done.is_ok(), is_passed_over, "{nth} {end}");
            assert_eq!(events.len(), before);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn no_bytes_panic(
        edits in prop::collection::vec(any::<(prop::sample::Index, u16, u8)>(), 0..6),
        tail in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut messages = stream();
        messages.push(tail);
        for (nth, at, byte) in edits {
            let nth = nth.index(messages.len());
            let message = &mut messages[nth];
            if !message.is_empty() {
                let at = usize::from(at) % message.len();
                message[at] = byte;
            }
        }
        let mut decoder = Pgoutput::new();
        let mut events = Vec::new();
        for message in &messages {
            let before = events.len();
            if decoder.decode(message, &NoColumnTypes, &mut events).is_err() {
                prop_assert_eq!(events.len(), before);
            }
        }
    }
}
