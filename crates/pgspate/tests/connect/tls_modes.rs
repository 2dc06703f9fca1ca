//! Every `sslmode` against servers with and without TLS, with right and wrong certificates.

use pgspate::ErrorKind;

use crate::certificates::{Authority, self_signed};
use crate::server::Server;
use crate::{Fixture, error_text, is_encrypted, plain_server, resolve, tls_server};

/// The outcome of an attempt to connect.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TlsOutcome {
    Plain,
    Encrypted,
    Refused(&'static str),
}

use TlsOutcome::{Encrypted, Plain, Refused};

const NO_TLS: TlsOutcome = Refused("server does not support TLS, but TLS was required");
const UNTRUSTED: TlsOutcome = Refused("server certificate was not issued by a trusted authority");
const MISNAMED: TlsOutcome =
    Refused("server certificate for \"localhost\" does not match host name \"db.invalid\"");
const NO_ROOT: TlsOutcome = Refused("does not exist");

/// Connects with `extra` parameters and checks the outcome.
pub(crate) async fn check_connection(fixture: &Fixture, extra: &str, expected: &TlsOutcome) {
    let context = format!("TLS {}: {extra}", fixture.has_tls);
    match (fixture.connect(extra).await, expected) {
        (Ok(connection), Plain) => assert!(!is_encrypted(&connection).await, "{context}"),
        (Ok(connection), Encrypted) => assert!(is_encrypted(&connection).await, "{context}"),
        (Err(error), Refused(words)) => {
            assert!(error_text(&error).contains(words), "{context}: {}", error_text(&error));
            assert_eq!(error.kind(), ErrorKind::Usage, "{context}");
            assert!(error.hint_text().is_some(), "{context}");
        }
        (Ok(_), _) => panic!("{context}: connected, expected {expected:?}"),
        (Err(error), _) => panic!("{context}: {}, expected {expected:?}", error_text(&error)),
    }
}

#[tokio::test]
async fn every_mode_against_every_server() {
    let (with_tls, without) = (tls_server(), plain_server());
    let right = format!("sslrootcert={}", with_tls.file("ca.crt"));
    let wrong = format!("sslrootcert={}", with_tls.file("other.crt"));
    let misnamed = format!("{right} host=db.invalid hostaddr=127.0.0.1");
    // The outcomes for: a server without TLS, the right authority, the wrong authority, the wrong
    // host name, and a missing root certificate.
    let rows = [
        ("disable", [Plain, Plain, Plain, Plain, Plain]),
        ("allow", [Plain, Plain, Plain, Plain, Plain]),
        ("prefer", [Plain, Encrypted, Plain, Encrypted, Encrypted]),
        ("require", [NO_TLS, Encrypted, UNTRUSTED, Encrypted, Encrypted]),
        ("verify-ca", [NO_TLS, Encrypted, UNTRUSTED, Encrypted, NO_ROOT]),
        ("verify-full", [NO_TLS, Encrypted, UNTRUSTED, MISNAMED, NO_ROOT]),
    ];
    let missing = format!("sslrootcert={}", with_tls.file("no-such-file.crt"));
    for (mode, [no_tls, by_right, by_wrong, by_name, by_nobody]) in rows {
        let mode = format!("sslmode={mode}");
        check_connection(&without, &format!("{mode} {right}"), &no_tls).await;
        check_connection(&with_tls, &format!("{mode} {right}"), &by_right).await;
        check_connection(&with_tls, &format!("{mode} {wrong}"), &by_wrong).await;
        check_connection(&with_tls, &format!("{mode} {misnamed}"), &by_name).await;
        check_connection(&with_tls, &format!("{mode} {missing}"), &by_nobody).await;
    }
}

#[tokio::test]
async fn allow_and_prefer_try_again_with_or_without_tls() {
    let fixture = tls_server();
    let allowed = format!("user=tlsonly sslmode=allow {}", crate::password_parameter());
    check_connection(&fixture, &allowed, &Encrypted).await;
    check_connection(&fixture, "user=plainonly sslmode=prefer", &Plain).await;
    let both = fixture.connect("user=nobody sslmode=prefer").await.unwrap_err();
    let text = error_text(&both);
    assert!(text.contains("with TLS: no pg_hba.conf entry"), "{text}");
    assert!(text.contains("without TLS: no pg_hba.conf entry"), "{text}");
    assert_eq!(both.sqlstate().unwrap().code(), "28000");
}

#[tokio::test]
async fn versions_of_tls_can_be_limited() {
    let fixture = tls_server();
    for (limit, version) in
        [("ssl_max_protocol_version", "TLSv1.2"), ("ssl_min_protocol_version", "TLSv1.3")]
    {
        let connection =
            fixture.connect(&format!("sslmode=require {limit}={version}")).await.unwrap();
        let sql = "select version from pg_stat_ssl where pid = pg_backend_pid()";
        assert_eq!(crate::ask(&connection, sql).await, version);
    }
}

#[tokio::test]
async fn verify_full_needs_a_name() {
    let fixture = tls_server();
    let port = fixture.server.port();
    let root = fixture.file("ca.crt");
    let text = format!("hostaddr=127.0.0.1 port={port} user=postgres sslrootcert={root}");
    let dsn = resolve(&format!("{text} sslmode=verify-full")).unwrap();
    let error = dsn.connect("pgspate-test").await.unwrap_err();
    assert!(error_text(&error).contains("needs a host name"), "{}", error_text(&error));
    let dsn = resolve(&format!("{text} sslmode=verify-ca dbname=postgres")).unwrap();
    assert!(is_encrypted(&dsn.connect("pgspate-test").await.unwrap()).await);
}

/// Gives the server another certificate and waits until new sessions get it.
pub(crate) async fn change_certificate(fixture: &Fixture, certificate: &str, key: &str) {
    let loaded = || fixture.server.sql("select pg_conf_load_time()");
    let before = loaded();
    fixture.server.put("own.crt", certificate);
    fixture.server.put("own.key", key);
    fixture.server.sql("select pg_reload_conf()");
    while loaded() == before {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn self_signed_certificates_and_common_names() {
    // This test changes the server's certificate, so it needs its own server.
    let fixture = Fixture::new(true);
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384] {
        let own = self_signed(algorithm, "localhost");
        change_certificate(&fixture, &own.certificate, &own.key).await;
        fixture.put_client_file("own-root.crt", &own.certificate);
        let root = fixture.file("own-root.crt");
        let text = format!("sslmode=verify-full sslrootcert={root}");
        check_connection(&fixture, &text, &Encrypted).await;
        let bound =
            format!("{text} channel_binding=require user=scram {}", crate::password_parameter());
        check_connection(&fixture, &bound, &Encrypted).await;
        let wrong = format!("sslmode=verify-ca sslrootcert={}", fixture.file("ca.crt"));
        let error = fixture.connect(&wrong).await.unwrap_err();
        assert!(error_text(&error).contains("server certificate"), "{}", error_text(&error));
    }

    let authority = Authority::new("third CA");
    fixture.put_client_file("third.crt", &authority.certificate);
    let root = format!("sslmode=verify-full sslrootcert={}", fixture.file("third.crt"));
    let by_common_name = authority.issue(&[], "localhost");
    change_certificate(&fixture, &by_common_name.certificate, &by_common_name.key).await;
    check_connection(&fixture, &root, &Encrypted).await;
    let names_win = authority.issue(&["elsewhere.invalid"], "localhost");
    change_certificate(&fixture, &names_win.certificate, &names_win.key).await;
    let refused = Refused("does not match host name \"localhost\"");
    check_connection(&fixture, &root, &refused).await;
    let by_address = authority.issue(&["127.0.0.1"], "elsewhere");
    change_certificate(&fixture, &by_address.certificate, &by_address.key).await;
    check_connection(&fixture, &format!("{root} host=127.0.0.1"), &Encrypted).await;
}

#[tokio::test]
async fn errors_name_the_certificate_files_that_cannot_be_used() {
    let fixture = tls_server();
    fixture.put_client_file("empty.crt", "");
    fixture.put_client_file(
        "garbage.crt",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    for (file, words) in [
        ("empty.crt", "has no certificate"),
        ("garbage.crt", "could not use root certificate file"),
    ] {
        let path = fixture.file(file);
        let error = fixture.connect(&format!("sslmode=require sslrootcert={path}")).await;
        let error = error.unwrap_err();
        assert!(error_text(&error).contains(words), "{}", error_text(&error));
        assert!(error_text(&error).contains(file), "{}", error_text(&error));
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}

/// Dropping a server stops it, even if the server has sessions.
#[tokio::test]
async fn a_dropped_server_is_stopped() {
    let server = Server::start("", "local all all trust\n", &[]);
    let folder = server.folder().to_owned();
    let text = format!("host={} port={} user=postgres", folder.display(), server.port());
    let connection = resolve(&text).unwrap().connect("pgspate-test").await.unwrap();
    drop(server);
    assert!(!folder.exists());
    assert!(connection.client.simple_query("select 1").await.is_err());
}
