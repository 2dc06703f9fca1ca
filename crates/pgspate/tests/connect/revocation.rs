//! Certificates that are revoked or expired, and revocation lists that are valid, expired or
//! unreadable.

use std::fs;
use std::path::Path;

use pgspate::ErrorKind;
use pgspate::target::connect::{Dsn, Environment};

use crate::certificates::Authority;
use crate::tls_modes::{TlsOutcome, change_certificate, check_connection};
use crate::{Fixture, error_text, is_encrypted, write_private};
use TlsOutcome::{Encrypted, Refused};

const REVOKED: TlsOutcome = Refused("server certificate has been revoked");
const UNKNOWN: TlsOutcome = Refused("no revocation list was found for the authority");
const OUTDATED: TlsOutcome = Refused("revocation list of the authority that issued it has expired");

/// The year in which a revocation list was issued, and the year in which the next list is due.
type Years = (i32, i32);
const VALID_YEARS: Years = (2020, 2050);

fn revocation_list(authority: &Authority, years: Years, revoked: &[u64]) -> String {
    authority.revoke(years, revoked)
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_however_the_list_is_given() {
    let fixture = Fixture::new(true);
    let (issuer, other) = (Authority::new("issuing CA"), Authority::new("another CA"));
    let own = issuer.issue_numbered(7, &["localhost"], "localhost");
    change_certificate(&fixture, &own.certificate, &own.key).await;
    fixture.put_client_file("root.crt", &issuer.certificate);
    let good = revocation_list(&issuer, VALID_YEARS, &[1, 2, 3]);
    let bad = revocation_list(&issuer, VALID_YEARS, &[3, 7]);
    let elder = revocation_list(&issuer, (2019, 2050), &[]);
    let past = revocation_list(&issuer, (2019, 2020), &[]);
    let foreign = revocation_list(&other, VALID_YEARS, &[]);
    let forged = {
        // This authority has the same name and another key.
        let forger = Authority::new("issuing CA");
        revocation_list(&forger, VALID_YEARS, &[])
    };
    for (nth, (lists, expected)) in [
        (vec![&good], Encrypted),
        (vec![&bad], REVOKED),
        (vec![&foreign, &good], Encrypted),
        (vec![&foreign, &bad], REVOKED),
        (vec![&foreign], UNKNOWN),
        (vec![&past], OUTDATED),
        // The newest list of an authority counts, in whatever order the lists are given.
        (vec![&elder, &bad], REVOKED),
        (vec![&bad, &elder], REVOKED),
        (vec![&past, &good], Encrypted),
        (vec![&forged], Refused("its revocation list is invalid: BadSignature")),
    ]
    .into_iter()
    .enumerate()
    {
        let all: String = lists.iter().map(|list| list.as_str()).collect();
        fixture.put_client_file("one.crl", &all);
        let folder = Path::new(&fixture.file("")).join(format!("lists{nth}"));
        fs::create_dir(&folder).unwrap();
        for (nth, list) in lists.iter().enumerate() {
            write_private(&folder.join(format!("0a1b2c3d.r{nth}")), list);
        }
        // Files not named by a hash are ignored, as OpenSSL does.
        write_private(&folder.join("notes.txt"), "no list");
        let root = format!("sslrootcert={}", fixture.file("root.crt"));
        let by_file = format!("sslcrl={}", fixture.file("one.crl"));
        let by_folder = format!("sslcrldir={}", folder.display());
        for ways in [by_file.clone(), by_folder.clone(), format!("{by_file} {by_folder}")] {
            for mode in ["require", "verify-ca", "verify-full"] {
                check_connection(&fixture, &format!("sslmode={mode} {root} {ways}"), &expected)
                    .await;
            }
        }
        // The certificate is for another host name. The revocation is still reported, and so is the
        // name if nothing else is wrong.
        let misnamed = format!("{root} {by_file} host=db.invalid hostaddr=127.0.0.1");
        check_connection(&fixture, &format!("sslmode=verify-ca {misnamed}"), &expected).await;
        let misnamed = format!("sslmode=verify-full {misnamed}");
        match &expected {
            Encrypted => {
                check_connection(&fixture, &misnamed, &Refused("does not match host name")).await
            }
            refused => check_connection(&fixture, &misnamed, refused).await,
        }
    }
}

#[tokio::test]
async fn the_list_in_the_users_home_is_used() {
    let fixture = Fixture::new(true);
    let issuer = Authority::new("issuing CA");
    let own = issuer.issue_numbered(7, &["localhost"], "localhost");
    change_certificate(&fixture, &own.certificate, &own.key).await;
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".postgresql");
    fs::create_dir(&folder).unwrap();
    let root = fixture.file("elsewhere.crt");
    fixture.put_client_file("elsewhere.crt", &issuer.certificate);
    let env = Environment {
        home: Some(home.path().to_owned()),
        user: Some("tester".to_owned()),
        ..Environment::default()
    };
    let port = fixture.server.port();
    let connect = async |extra: &str| {
        let text = format!("host=localhost port={port} dbname=postgres user=postgres {extra}");
        Dsn::resolve(Some(&text), &env)?.unwrap().connect("pgspate-test").await
    };
    let good = revocation_list(&issuer, VALID_YEARS, &[]);
    let bad = revocation_list(&issuer, VALID_YEARS, &[7]);
    write_private(&folder.join("root.crl"), &bad);
    // Without a root certificate, pgspate verifies nothing and uses no list, as libpq does.
    assert!(is_encrypted(&connect("sslmode=require").await.unwrap()).await);
    let refused = |said: &str| assert!(said.contains("has been revoked"), "{said}");
    let by_name = format!("sslmode=verify-full sslrootcert={root}");
    refused(&error_text(&connect(&by_name).await.unwrap_err()));
    write_private(&folder.join("root.crt"), &issuer.certificate);
    for mode in ["require", "verify-ca", "verify-full"] {
        refused(&error_text(&connect(&format!("sslmode={mode}")).await.unwrap_err()));
    }
    // A list that is named explicitly replaces the default list.
    fixture.put_client_file("good.crl", &good);
    let named = format!("sslmode=verify-full sslcrl={}", fixture.file("good.crl"));
    assert!(is_encrypted(&connect(&named).await.unwrap()).await);
    write_private(&folder.join("root.crl"), &good);
    assert!(is_encrypted(&connect("sslmode=verify-full").await.unwrap()).await);
    // pgspate reads the list again for each connection, because a process may outlive a list.
    let text = format!("host=localhost port={port} dbname=postgres user=postgres sslmode=require");
    let dsn = Dsn::resolve(Some(&text), &env).unwrap().unwrap();
    dsn.connect("pgspate-test").await.unwrap();
    write_private(&folder.join("root.crl"), &bad);
    refused(&error_text(&dsn.connect("pgspate-test").await.unwrap_err()));
    // An unreadable list is an error.
    for content in ["", "no list", &good[..good.len() / 2]] {
        write_private(&folder.join("root.crl"), content);
        let error = connect("sslmode=verify-full").await.unwrap_err();
        let said = error_text(&error);
        assert!(
            said.contains("root.crl\"") && said.contains("certificate revocation list"),
            "{said}"
        );
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
    fs::remove_file(folder.join("root.crl")).unwrap();
    fs::create_dir(folder.join("root.crl")).unwrap();
    assert!(error_text(&connect("sslmode=require").await.unwrap_err()).contains("root.crl"));
    fs::remove_dir(folder.join("root.crl")).unwrap();
    std::os::unix::fs::symlink("no-such", folder.join("root.crl")).unwrap();
    assert!(error_text(&connect("sslmode=require").await.unwrap_err()).contains("root.crl"));
    fs::remove_file(folder.join("root.crl")).unwrap();
    assert!(is_encrypted(&connect("sslmode=verify-full").await.unwrap()).await);
}

#[tokio::test]
async fn errors_name_the_lists_that_cannot_be_used() {
    let fixture = crate::tls_server();
    fixture.put_client_file("empty.crl", "");
    fixture
        .put_client_file("garbage.crl", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n");
    let folder = Path::new(&fixture.file("")).join("no-lists");
    fs::create_dir(&folder).unwrap();
    let root = format!("sslmode=verify-full sslrootcert={}", fixture.file("ca.crt"));
    for (lists, words) in [
        (
            format!("sslcrl={}", fixture.file("no-such.crl")),
            "could not read certificate revocation",
        ),
        (format!("sslcrl={}", fixture.file("empty.crl")), "could not use certificate revocation"),
        (format!("sslcrl={}", fixture.file("garbage.crl")), "could not use certificate revocation"),
        (format!("sslcrldir={}", fixture.file("no-such")), "could not read folder"),
        (format!("sslcrldir={}", folder.display()), "has no certificate revocation list"),
    ] {
        check_connection(&fixture, &format!("{root} {lists}"), &Refused(words)).await;
    }
}

#[tokio::test]
async fn certificates_out_of_date_are_refused() {
    let fixture = Fixture::new(true);
    let issuer = Authority::new("issuing CA");
    fixture.put_client_file("root.crt", &issuer.certificate);
    let root = format!("sslrootcert={}", fixture.file("root.crt"));
    for (from, to, words) in [
        (2019, 2020, "server certificate has expired"),
        (2090, 2095, "server certificate is not valid yet"),
    ] {
        let own = issuer.issue_valid((from, to), &["localhost"], "localhost");
        change_certificate(&fixture, &own.certificate, &own.key).await;
        for mode in ["require", "verify-ca", "verify-full"] {
            check_connection(&fixture, &format!("sslmode={mode} {root}"), &Refused(words)).await;
        }
        check_connection(&fixture, "sslmode=require", &Encrypted).await;
    }
}
