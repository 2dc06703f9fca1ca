//! A replication session can log in wherever an ordinary session can.

use std::fs;

use pgspate_base::ErrorKind;
use pgspate_events::Lsn;
use pgspate_replication::postgres::SlotStream;

use crate::certificates::Authority;
use crate::support::{ReplicatingServer, dsn, lines};

const HBA: &str = "
local all postgres trust
hostssl all tlsonly samehost scram-sha-256
host all md5er samehost md5
host all clear samehost password
host all scram samehost scram-sha-256
";

const PASSWORD: &str = "hunter-Zp'q 9";

fn server(authority: &Authority) -> ReplicatingServer {
    let own = authority.issue(&["localhost"], "localhost");
    let files = [("own.crt", own.certificate), ("own.key", own.key)];
    let server = ReplicatingServer::of(
        "ssl = on\nssl_cert_file = 'own.crt'\nssl_key_file = 'own.key'",
        Some(HBA),
        &files,
    );
    server.run("create table t (id int primary key);\ncreate publication p for all tables");
    let quoted = PASSWORD.replace('\'', "''");
    for role in ["tlsonly", "md5er", "clear", "scram"] {
        let method = if role == "md5er" { "md5" } else { "scram-sha-256" };
        server.run(&format!(
            "set password_encryption = '{method}';\n\
             create role {role} login replication password '{quoted}'"
        ));
    }
    server
}

#[tokio::test]
async fn every_password_method_and_encryption_works() {
    let authority = Authority::new("some CA");
    let server = server(&authority);
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.crt");
    fs::write(&root, &authority.certificate).unwrap();
    let verified = format!("sslmode=verify-full sslrootcert={}", root.display());
    let bound = format!("{verified} channel_binding=require");
    let password = format!("password='{}'", PASSWORD.replace('\'', "\\'"));
    for (nth, (role, how)) in [
        ("tlsonly", bound.as_str()),
        ("tlsonly", "sslmode=require channel_binding=disable"),
        ("scram", verified.as_str()),
        ("scram", "sslmode=disable"),
        ("md5er", "sslmode=require"),
        ("md5er", "sslmode=disable"),
        ("clear", "sslmode=prefer"),
        ("clear", "sslmode=disable"),
    ]
    .into_iter()
    .enumerate()
    {
        let slot = format!("s{nth}");
        server.run(&format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
        server.run(&format!("insert into t values ({nth})"));
        let port = server.port();
        let text =
            format!("host=localhost port={port} dbname=postgres user={role} {password} {how}");
        let mut stream = SlotStream::start(&dsn(&text), &slot, "p", Lsn(0), Lsn(0)).await.unwrap();
        let expected = format!("Insert public.t {{id={nth}}} by [id] end");
        assert_eq!(lines(&mut stream, 1).await.0, [expected], "{role} {how}");
        let mine = "select s.ssl from pg_stat_ssl s \
                    join pg_replication_slots r on r.active_pid = s.pid";
        let is_encrypted = server.query(mine)[0][0].as_deref() == Some("t");
        assert_eq!(is_encrypted, how != "sslmode=disable", "{role} {how}");
        stream.close().await;
        server.run(&format!("select pg_drop_replication_slot('{slot}')"));
    }
}

#[tokio::test]
async fn a_login_without_channel_binding_is_refused() {
    let authority = Authority::new("some CA");
    let server = server(&authority);
    let password = format!("password='{}'", PASSWORD.replace('\'', "\\'"));
    let text = format!(
        "host=localhost port={} dbname=postgres user=clear {password} sslmode=require \
         channel_binding=require",
        server.port()
    );
    let error = SlotStream::start(&dsn(&text), "s", "p", Lsn(0), Lsn(0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(!format!("{error:?}").contains("hunter"));
}
