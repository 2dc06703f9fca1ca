//! TLS: certificates of the server and of clients, their reload, and HTTP/2.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use pgspate_embedded::testing::{self, TestDb};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::authorities::{Authority, Issued};
use crate::run::{command, finish, spawn, wait_until};
use crate::scene::{Answer, ServeProcess, TABLES, exchange, head};

const ROWS: &str = "/tables/note/rows";
const BODY: &str = r#"{"text":"x"}"#;

fn write_server_files(folder: &Path, issued: &Issued) {
    fs::write(folder.join("cert.pem"), &issued.certificate).unwrap();
    fs::write(folder.join("key.pem"), &issued.key).unwrap();
    fs::set_permissions(folder.join("key.pem"), Permissions::from_mode(0o600)).unwrap();
}

/// Serves the table `note` with TLS.
fn start(authority: &Authority, args: &[&str]) -> (TestDb, ServeProcess) {
    let db = testing::database();
    db.run(TABLES);
    let folder = tempfile::tempdir().unwrap();
    write_server_files(folder.path(), &authority.issue(&["localhost", "127.0.0.1"], "first"));
    fs::write(folder.path().join("ca.pem"), &authority.certificate).unwrap();
    let tls = ["--table", "note", "--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let process = ServeProcess::start(&db.dsn(), folder, &[&tls, args].concat());
    (db, process)
}

/// Sends a record over TLS. Returns the answer and the server's certificate, or why there is none.
fn post(
    process: &ServeProcess,
    trusted: &Authority,
    client: Option<&Issued>,
) -> Result<(Answer, Vec<u8>), String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.certificate.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        None => builder.with_no_client_auth(),
        Some(issued) => {
            let chain = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![chain], key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(process.authority()).unwrap();
    let mut stream = StreamOwned::new(session, stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).map_err(|error| error.to_string())?;
    }
    let certificate = stream.conn.peer_certificates().unwrap()[0].to_vec();
    // With TLS 1.3 a client learns only afterwards that its certificate was refused.
    let headers = [("content-type", "application/json")];
    let head = head("POST", ROWS, "localhost", &headers, BODY.len());
    let sent = stream.write_all(format!("{head}{BODY}").as_bytes()).and_then(|()| stream.flush());
    sent.map_err(|error| error.to_string())?;
    let mut first = [0; 1];
    stream.read_exact(&mut first).map_err(|error| error.to_string())?;
    let answer = exchange(Prefixed(Some(first[0]), stream), "", b"");
    Ok((answer, certificate))
}

/// A stream of which the first byte was already read.
struct Prefixed<T>(Option<u8>, T);

impl<T: Read> Read for Prefixed<T> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.0.take() {
            Some(first) => {
                buf[0] = first;
                Ok(1)
            }
            None => self.1.read(buf),
        }
    }
}

impl<T: Write> Write for Prefixed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn records_are_taken_over_tls_with_a_certificate_that_is_read_again() {
    let authority = Authority::new("authority");
    let (db, process) = start(&authority, &[]);
    let (answer, first) = post(&process, &authority, None).unwrap();
    assert_eq!(answer.status, 201);
    // A client without TLS gets no answer, and disturbs no other client.
    let plain = process.try_post(ROWS, &[], BODY);
    assert!(plain.is_none(), "{plain:?}");
    write_server_files(process.folder.path(), &authority.issue(&["localhost"], "second"));
    process.signal(Signal::HUP);
    wait_until("the new certificate is shown", || {
        post(&process, &authority, None).unwrap().1 != first
    });
    fs::write(process.folder.path().join("cert.pem"), "nothing").unwrap();
    process.signal(Signal::HUP);
    wait_until("the file is refused", || process.stderr().contains("could not read certificate"));
    assert_eq!(post(&process, &authority, None).unwrap().0.status, 201);
    assert_ne!(db.query("select count(*) from note")[0][0].as_deref(), Some("0"));
}

#[test]
fn clients_need_a_certificate_of_the_authority() {
    let authority = Authority::new("authority");
    let other = Authority::new("other");
    let (db, process) = start(&authority, &["--client-ca", "ca.pem", "--listen", "0.0.0.0:0"]);
    let known = authority.issue(&["client"], "client");
    assert_eq!(post(&process, &authority, Some(&known)).unwrap().0.status, 201);
    let stranger = other.issue(&["client"], "client");
    for client in [None, Some(&stranger)] {
        let refused = post(&process, &authority, client);
        assert!(refused.is_err(), "{refused:?}");
    }
    assert_eq!(db.query("select count(*) from note")[0][0].as_deref(), Some("1"));
}

#[test]
fn keys_that_others_can_read_are_refused() {
    let db = testing::database();
    db.run(TABLES);
    let folder = tempfile::tempdir().unwrap();
    write_server_files(folder.path(), &Authority::new("authority").issue(&["localhost"], "it"));
    let key = folder.path().join("key.pem");
    let tls = ["--table", "note", "--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let dsn = db.dsn();
    let args = [&["serve", "--to", &dsn], &tls[..]].concat();
    let refusal = || {
        let run = finish(spawn(&mut command(folder.path(), &args)));
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        run.stderr
    };
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    assert!(refusal().contains("has group or world access"));
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    fs::write(&key, "nothing").unwrap();
    assert!(refusal().contains("could not read private key file"));
}
