//! Connecting to real servers: TLS modes, authentication, several hosts, cancelling, lost sessions.
//!
//! All tests of this binary share two servers: one with TLS, and one without TLS that is read-only.
//! A server starts with the first test that needs it, and stops after the last.

mod authentication;
#[path = "../support/certificates.rs"]
mod certificates;
mod downgrade;
mod hosts;
mod lanes;
mod revocation;
#[path = "../support/server.rs"]
mod server;
mod session;
mod tls_modes;

use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use certificates::Authority;
use pgspate::target::connect::{Connection, Dsn, Environment};
use pgspate::{Error, Result};
use server::Server;

/// The password of every role that has a password. No message may contain this password.
const PASSWORD: &str = "k3hunter-Zp'q\\ 9";

/// A server with the files that its clients need.
struct Fixture {
    server: Server,
    has_tls: bool,
}

const HBA: &str = "
local all sockety trust
local all all scram-sha-256
hostssl all certrole samehost cert
hostssl all tlsonly samehost scram-sha-256
hostnossl all plainonly samehost trust
host all md5er samehost md5
host all clear samehost password
host all scram samehost scram-sha-256
host all postgres,ghost,single samehost trust
";

impl Fixture {
    fn new(has_tls: bool) -> Fixture {
        let (right, wrong) = (Authority::new("right CA"), Authority::new("wrong CA"));
        let own = right.issue(&["localhost"], "localhost");
        let conf = if has_tls {
            "ssl = on\nssl_cert_file = 'own.crt'\nssl_key_file = 'own.key'\nssl_ca_file = 'ca.crt'"
        } else {
            "ssl = off\ndefault_transaction_read_only = on"
        };
        let files = [
            ("own.crt", own.certificate.as_str()),
            ("own.key", own.key.as_str()),
            ("ca.crt", right.certificate.as_str()),
        ];
        let server = Server::start(conf, HBA, &files);
        let quoted = PASSWORD.replace('\'', "''");
        server.sql(&format!(
            "set password_encryption = 'md5'; create role md5er login password \
             '{quoted}'; set password_encryption = 'scram-sha-256'; create role scram login \
             password '{quoted}'; create role clear login password '{quoted}'; create role tlsonly \
             login password '{quoted}'; create role plainonly login; create role certrole login; \
             create role sockety login; create role single login connection limit 1;"
        ));
        let fixture = Fixture { server, has_tls };
        fixture.put_client_file("ca.crt", &right.certificate);
        fixture.put_client_file("other.crt", &wrong.certificate);
        for (name, authority) in [("client", &right), ("stranger", &wrong)] {
            let issued = authority.issue(&[], "certrole");
            fixture.put_client_file(&format!("{name}.crt"), &issued.certificate);
            fixture.put_client_file(&format!("{name}.key"), &issued.key);
        }
        fixture
    }

    /// Writes a file for clients, readable only by the owner.
    fn put_client_file(&self, name: &str, text: &str) {
        write_private(&self.server.folder().join(name), text);
    }

    fn file(&self, name: &str) -> String {
        self.server.folder().join(name).display().to_string()
    }

    /// Returns the parameters of a connection to this server. `extra` adds parameters or overrides
    /// them.
    fn dsn(&self, extra: &str) -> Result<Dsn> {
        let port = self.server.port();
        let text = format!("host=localhost port={port} dbname=postgres user=postgres {extra}");
        resolve(&text)
    }

    async fn connect(&self, extra: &str) -> Result<Connection> {
        self.dsn(extra)?.connect("pgspate-test").await
    }
}

fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn resolve(text: &str) -> Result<Dsn> {
    let env = Environment { user: Some("tester".to_owned()), ..Environment::default() };
    Ok(Dsn::resolve(Some(text), &env)?.expect("a connection string names a server"))
}

/// Returns the parameter `password='...'` for roles that have a password.
fn password_parameter() -> String {
    format!("password='{}'", PASSWORD.replace('\\', "\\\\").replace('\'', "\\'"))
}

fn shared_fixture(slot: &Mutex<Weak<Fixture>>, has_tls: bool) -> Arc<Fixture> {
    let mut slot = slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    slot.upgrade().unwrap_or_else(|| {
        let fixture = Arc::new(Fixture::new(has_tls));
        *slot = Arc::downgrade(&fixture);
        fixture
    })
}

fn tls_server() -> Arc<Fixture> {
    static SLOT: Mutex<Weak<Fixture>> = Mutex::new(Weak::new());
    shared_fixture(&SLOT, true)
}

fn plain_server() -> Arc<Fixture> {
    static SLOT: Mutex<Weak<Fixture>> = Mutex::new(Weak::new());
    shared_fixture(&SLOT, false)
}

/// Returns an error's messages, causes and hint as text. Fails if the text has the password.
fn error_text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}\n  caused by: {cause}");
        source = cause.source();
    }
    if let Some(hint) = error.hint_text() {
        text = format!("{text}\nhint: {hint}");
    }
    let everything = format!("{text}\n{error:?}");
    assert!(!everything.contains("hunter"), "the error has the password: {everything}");
    text
}

/// Returns the first column of the first row of a query.
async fn ask(connection: &Connection, sql: &str) -> String {
    let messages = connection.client.simple_query(sql).await.unwrap();
    let row = messages.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    row.unwrap_or_else(|| panic!("no row for {sql}")).to_owned()
}

async fn is_encrypted(connection: &Connection) -> bool {
    ask(connection, "select ssl from pg_stat_ssl where pid = pg_backend_pid()").await == "t"
}
