//! Any bytes as a server's messages: no panic, and the same result however the bytes are
//! split.

use pgspate::target::connect::parse_server_headers;

pub(crate) fn run(data: &[u8]) {
    let Some((&piece, bytes)) = data.split_first() else { return };
    let whole = parse_server_headers(bytes, bytes.len().max(1));
    assert_eq!(parse_server_headers(bytes, usize::from(piece).max(1)), whole);
}
