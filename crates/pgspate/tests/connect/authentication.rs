//! Passwords, channel binding, client certificates, and the errors of refused logins.

use pgspate::ErrorKind;
use pgspate::target::connect::{Dsn, Environment};

use crate::{
    ask, error_text, is_encrypted, password_parameter, plain_server, tls_server, write_private,
};

#[tokio::test]
async fn every_password_method_accepts_the_right_password() {
    let (with_tls, without) = (tls_server(), plain_server());
    for role in ["scram", "md5er", "clear"] {
        for fixture in [&with_tls, &without] {
            let connection =
                fixture.connect(&format!("user={role} {}", password_parameter())).await.unwrap();
            assert_eq!(ask(&connection, "select current_user").await, role);
        }
    }
}

#[tokio::test]
async fn a_wrong_password_is_refused_in_the_servers_words() {
    let fixture = tls_server();
    for (role, mode) in [("scram", "prefer"), ("scram", "disable"), ("md5er", "require")] {
        let extra = format!("user={role} sslmode={mode} password=wr0ng-hunter2");
        let error = fixture.connect(&extra).await.unwrap_err();
        let text = error_text(&error);
        let words = format!("password authentication failed for user \"{role}\" (SQLSTATE 28P01)");
        assert!(text.contains(&words), "{text}");
        assert!(text.contains("The password came from the connection string."), "{text}");
        assert_eq!(error.sqlstate().unwrap().code(), "28P01");
        assert_eq!(error.kind(), ErrorKind::Connect);
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn the_error_for_a_missing_password_names_the_places_that_were_searched() {
    let fixture = tls_server();
    let home = tempfile::tempdir().unwrap();
    let port = fixture.server.port();
    let env = Environment { home: Some(home.path().to_owned()), ..Environment::default() };
    let text = format!("host=localhost port={port} user=scram dbname=postgres");
    let resolve = || Dsn::resolve(Some(&text), &env).unwrap().unwrap();

    let error = resolve().connect("pgspate-test").await.unwrap_err();
    assert!(
        error_text(&error).contains("the server asks for a password"),
        "{}",
        error_text(&error)
    );
    assert!(error_text(&error).contains(".pgpass\" does not exist"), "{}", error_text(&error));
    assert!(!error.is_retryable());

    let pgpass = home.path().join(".pgpass");
    write_private(&pgpass, &format!("localhost:{port}:postgres:other:hunter2\n"));
    let error = resolve().connect("pgspate-test").await.unwrap_err();
    let line = format!("has no line for localhost:{port}:postgres:scram");
    assert!(error_text(&error).contains(&line), "{}", error_text(&error));

    let escaped = crate::PASSWORD.replace('\\', "\\\\");
    write_private(&pgpass, &format!("*:*:*:scram:{escaped}\n"));
    let connection = resolve().connect("pgspate-test").await.unwrap();
    assert_eq!(ask(&connection, "select current_user").await, "scram");

    write_private(&pgpass, "*:*:*:*:wr0ng-hunter2\n");
    let error = resolve().connect("pgspate-test").await.unwrap_err();
    assert!(error_text(&error).contains("came from the password file"), "{}", error_text(&error));
}

#[tokio::test]
async fn a_required_channel_binding_is_used_or_the_login_is_refused() {
    let (with_tls, without) = (tls_server(), plain_server());
    let scram = format!("user=scram {}", password_parameter());
    for binding in ["disable", "prefer", "require"] {
        let extra = format!("{scram} sslmode=require channel_binding={binding}");
        assert!(is_encrypted(&with_tls.connect(&extra).await.unwrap()).await);
    }
    // Channel binding needs TLS, so these modes require TLS, too.
    for mode in ["allow", "prefer"] {
        let extra = format!("{scram} channel_binding=require sslmode={mode}");
        assert!(is_encrypted(&with_tls.connect(&extra).await.unwrap()).await, "{mode}");
        let error = without.connect(&extra).await.unwrap_err();
        assert!(error_text(&error).contains("does not support TLS"), "{}", error_text(&error));
    }
    let extra = format!("{scram} channel_binding=require");
    for refused in [
        with_tls.connect(&format!("{extra} sslmode=disable")).await,
        without.connect(&format!("{extra} sslmode=disable")).await,
        with_tls.connect(&format!("{extra} host={}", with_tls.file(""))).await,
        with_tls.connect(&format!("{extra} user=md5er sslmode=require")).await,
        with_tls.connect(&format!("{extra} user=postgres sslmode=require")).await,
    ] {
        let error = refused.unwrap_err();
        assert!(
            error_text(&error).contains("channel binding is required"),
            "{}",
            error_text(&error)
        );
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}

#[tokio::test]
async fn a_client_certificate_logs_a_role_in() {
    let fixture = tls_server();
    let certificate = |name: &str| {
        let (cert, key) =
            (fixture.file(&format!("{name}.crt")), fixture.file(&format!("{name}.key")));
        format!("user=certrole sslmode=require sslcert={cert} sslkey={key}")
    };
    let connection = fixture.connect(&certificate("client")).await.unwrap();
    assert_eq!(ask(&connection, "select current_user").await, "certrole");

    let error = fixture.connect("user=certrole sslmode=require").await.unwrap_err();
    assert!(error_text(&error).contains("valid client certificate"), "{}", error_text(&error));
    let error = fixture.connect(&certificate("stranger")).await.unwrap_err();
    assert!(error_text(&error).contains("alert UnknownCA"), "{}", error_text(&error));
    let unsent = format!("{} sslcertmode=disable", certificate("client"));
    let error = fixture.connect(&unsent).await.unwrap_err();
    assert!(error_text(&error).contains("valid client certificate"), "{}", error_text(&error));
}

#[tokio::test]
async fn a_private_key_must_be_private_and_belong_to_the_certificate() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = tls_server();
    let key = std::fs::read_to_string(fixture.file("client.key")).unwrap();
    fixture.put_client_file("open.key", &key);
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(fixture.file("open.key"), open).unwrap();
    for (key, words) in [
        ("open.key", "has group or world access"),
        ("no-such.key", "of the client certificate"),
        ("stranger.key", "could not use client certificate"),
        ("client.crt", "could not read private key file"),
    ] {
        let (cert, key) = (fixture.file("client.crt"), fixture.file(key));
        let extra = format!("sslmode=require sslcert={cert} sslkey={key}");
        let error = fixture.connect(&extra).await.unwrap_err();
        assert!(error_text(&error).contains(words), "{}", error_text(&error));
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}

#[tokio::test]
async fn refusals_keep_their_sqlstate_and_get_a_hint() {
    let fixture = tls_server();
    let _only = fixture.connect("user=single").await.unwrap();
    for (extra, code, words, hint) in [
        ("dbname=nowhere", "3D000", "database \"nowhere\" does not exist", "create database"),
        ("user=ghost", "28000", "role \"ghost\" does not exist", "PGUSER"),
        ("user=nobody", "28000", "no pg_hba.conf entry", "to the server's pg_hba.conf"),
        ("user=single", "53300", "too many connections for role \"single\"", "--lanes"),
    ] {
        let error = fixture.connect(extra).await.unwrap_err();
        let text = error_text(&error);
        assert!(text.contains(words) && text.contains(hint), "{text}");
        assert_eq!(error.sqlstate().unwrap().code(), code);
        assert_eq!(error.kind(), ErrorKind::Connect);
        assert_eq!(error.is_retryable(), code == "53300");
    }
}
