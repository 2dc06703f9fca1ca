//! Any bytes as a server's messages: no panic, and the same is told however they are cut.

use pgspate::target::connect::headers_of_server;

pub(crate) fn run(data: &[u8]) {
    let Some((&piece, bytes)) = data.split_first() else { return };
    let whole = headers_of_server(bytes, bytes.len().max(1));
    assert_eq!(headers_of_server(bytes, usize::from(piece).max(1)), whole);
}
