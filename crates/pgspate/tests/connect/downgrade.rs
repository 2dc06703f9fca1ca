//! Attackers that refuse TLS, or add forged messages before the TLS handshake. An attacker is the
//! server itself, or a proxy between client and server.
//!
//! The tests implement the attackers. The bytes that an attacker receives are all bytes that an
//! eavesdropper could read.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use pgspate::ErrorKind;

use crate::{PASSWORD, error_text, is_encrypted, password_parameter, resolve, tls_server};

/// The request for TLS: its length and its code.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f];

/// AuthenticationOk and ReadyForQuery: the login is complete.
const LOGIN_MESSAGES: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
/// A request for the password without encryption.
const PASSWORD_REQUEST: &[u8] = b"R\0\0\0\x08\0\0\0\x03";
/// An error message that the attacker forged.
const FORGED_ERROR: &[u8] = b"E\0\0\0\x29SFATAL\0C28000\0Mforged words here\0\0\0\0\0\0\0";

/// Starts a server that replies `answer` to the first eight bytes, and then only reads. Returns its
/// address, and a channel with all bytes that each connection received.
fn forging_server(answer: &'static [u8]) -> (SocketAddr, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tx, rx) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, tx) = (stream.unwrap(), tx.clone());
            thread::spawn(move || {
                let mut sent = vec![0; 8];
                if stream.read_exact(&mut sent).is_ok() && stream.write_all(answer).is_ok() {
                    // The client may close or reset the connection.
                    let _ = stream.read_to_end(&mut sent);
                }
                let _ = tx.send(sent);
            });
        }
    });
    (address, rx)
}

/// Returns whether the bytes are only a request for TLS and the beginning of a handshake.
fn is_handshake_alone(sent: &[u8]) -> bool {
    let Some(rest) = sent.strip_prefix(&SSL_REQUEST) else { return false };
    let mut rest = rest;
    // TLS records: handshakes (22), and alerts with the reason for the end (21).
    while let [kind @ (21 | 22), 3, _, high, low, more @ ..] = rest {
        let len = usize::from(*high) << 8 | usize::from(*low);
        assert!(*kind == 21 || len > 2);
        let Some(next) = more.get(len..) else { return false };
        rest = next;
    }
    rest.is_empty()
}

#[tokio::test]
async fn a_client_that_requires_tls_sends_no_secret_without_tls() {
    let authority = crate::certificates::Authority::new("some CA");
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.crt");
    crate::write_private(&root, &authority.certificate);
    let root = root.display();
    let stuffed: &[&[u8]] = &[
        b"N",
        b"E",
        b"",
        b"S",
        FORGED_ERROR,
        LOGIN_MESSAGES,
        PASSWORD_REQUEST,
        // Before the handshake, the server may send only one byte. These replies are longer.
        b"SR\0\0\0\x08\0\0\0\0Z\0\0\0\x05I",
        b"SR\0\0\0\x08\0\0\0\x03",
        b"NR\0\0\0\x08\0\0\0\x03",
        b"S\x15\x03\x03\0\x02\x02\x28",
    ];
    for mode in ["require", "verify-ca", "verify-full"] {
        for answer in stuffed {
            let (address, sent) = forging_server(answer);
            let text = format!(
                "host=localhost hostaddr=127.0.0.1 port={} user=scram dbname=postgres {} \
                 sslmode={mode} sslrootcert={root} connect_timeout=3",
                address.port(),
                password_parameter(),
            );
            let error = resolve(&text).unwrap().connect("pgspate-test").await.unwrap_err();
            let said = error_text(&error);
            assert!(!said.contains("forged words"), "{mode} {answer:?}: {said}");
            if answer.starts_with(b"N") {
                assert!(said.contains("does not support TLS"), "{mode} {answer:?}: {said}");
                assert_eq!(error.kind(), ErrorKind::Usage);
            }
            let sent = sent.recv().unwrap();
            let words = String::from_utf8_lossy(&sent);
            assert!(!words.contains("scram") && !words.contains(PASSWORD), "{mode}: {words}");
            let is_fine = sent == SSL_REQUEST || is_handshake_alone(&sent);
            assert!(is_fine, "{mode} {answer:?}: {sent:?}");
        }
    }
}

/// Starts a proxy that adds unencrypted bytes before the server's handshake. Returns its address.
fn stuffing_proxy(server: u16, stuffing: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let mut client = stream.unwrap();
                let mut server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let mut request = [0; 8];
                let mut answer = [0];
                client.read_exact(&mut request).unwrap();
                server.write_all(&request).unwrap();
                server.read_exact(&mut answer).unwrap();
                // Sent at once, so that the client receives all bytes together.
                client.write_all(&[&answer[..], stuffing].concat()).unwrap();
                let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
                let _ = std::io::copy(&mut server, &mut client);
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

#[tokio::test]
async fn bytes_before_the_handshake_end_the_connection() {
    let fixture = tls_server();
    let root = fixture.file("ca.crt");
    let stuffings: [&[u8]; 5] = [b"", b"R", LOGIN_MESSAGES, PASSWORD_REQUEST, FORGED_ERROR];
    for stuffing in stuffings {
        let port = stuffing_proxy(fixture.server.port(), stuffing).port();
        for mode in ["require", "verify-full"] {
            let text = format!(
                "host=localhost hostaddr=127.0.0.1 port={port} user=scram dbname=postgres {} \
                 sslmode={mode} sslrootcert={root} connect_timeout=10",
                password_parameter(),
            );
            let connected = resolve(&text).unwrap().connect("pgspate-test").await;
            match (stuffing, connected) {
                ([], connected) => assert!(is_encrypted(&connected.unwrap()).await),
                (_, Ok(_)) => panic!("{mode}: connected through {stuffing:?}"),
                (_, Err(error)) => {
                    let said = error_text(&error);
                    assert!(said.contains("TLS handshake failed"), "{mode} {stuffing:?}: {said}");
                    assert!(!said.contains("forged words"), "{said}");
                }
            }
        }
    }
}

#[tokio::test]
async fn parameters_that_pgspate_cannot_honor_are_refused_before_anything_is_sent() {
    let (address, sent) = forging_server(b"N");
    let text =
        format!("host=127.0.0.1 port={} user=scram {}", address.port(), password_parameter());
    for (parameter, words) in [
        ("require_auth=scram-sha-256", "require_auth cannot be used"),
        ("require_auth=!password", "require_auth cannot be used"),
        ("sslcertmode=require", "sslcertmode=require cannot be used"),
        ("sslmode=require sslcrl=/no/such", "sslcrl cannot be used"),
        ("sslmode=require sslcrldir=/no/such", "sslcrldir cannot be used"),
    ] {
        let error = resolve(&format!("{text} {parameter}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error_text(&error).contains(words), "{parameter}: {}", error_text(&error));
    }
    assert!(sent.try_recv().is_err());
}
