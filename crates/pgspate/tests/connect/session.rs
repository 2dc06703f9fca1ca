//! A session's parameters, its notices, cancelling, and the end of a session.

use std::time::Duration;

use pgspate::ErrorKind;
use pgspate::target::connect::{Connection, Dsn, Environment};

use crate::{ask, error_text, password_parameter, plain_server, tls_server};

#[tokio::test]
async fn a_connection_knows_its_sessions_parameters() {
    let fixture = tls_server();
    let connection = fixture.connect("").await.unwrap();
    let pid = ask(&connection, "select pg_backend_pid()").await;
    assert_eq!(connection.backend_pid().to_string(), pid);
    let version = ask(&connection, "show server_version_num").await;
    assert_eq!(connection.server_version().to_string(), version);
    assert_eq!(connection.parameter("timezone").unwrap(), ask(&connection, "show timezone").await);
    assert_eq!(connection.parameter("client_encoding"), Some("UTF8"));
    assert_eq!(connection.parameter("nonsense"), None);
    assert_eq!(ask(&connection, "show application_name").await, "pgspate-test");
    let named = fixture.connect("application_name='my load'").await.unwrap();
    assert_eq!(ask(&named, "show application_name").await, "my load");
}

#[tokio::test]
async fn options_and_variables_reach_the_session() {
    let fixture = tls_server();
    let mut env = Environment::default();
    for (name, value) in [
        ("PGHOST", "localhost"),
        ("PGPORT", &fixture.server.port().to_string()),
        ("PGUSER", "postgres"),
        ("PGOPTIONS", "-c work_mem=5MB -c timezone=UTC"),
        ("PGTZ", "Europe/Berlin"),
        ("PGDATESTYLE", "SQL, DMY"),
    ] {
        env.variables.insert(name.to_owned(), value.to_owned());
    }
    let dsn = Dsn::resolve(None, &env).unwrap().unwrap();
    let connection = dsn.connect("x").await.unwrap();
    assert_eq!(ask(&connection, "show work_mem").await, "5MB");
    assert_eq!(connection.parameter("TimeZone"), Some("Europe/Berlin"));
    assert_eq!(connection.parameter("DateStyle"), Some("SQL, DMY"));
    env.variables.insert("PGDATABASE".to_owned(), "template1".to_owned());
    let other = Dsn::resolve(None, &env).unwrap().unwrap().connect("x").await.unwrap();
    assert_eq!(ask(&other, "select current_database()").await, "template1");
}

#[tokio::test]
async fn notices_are_ignored() {
    let fixture = tls_server();
    let connection = fixture.connect("").await.unwrap();
    let raise = "do $$ begin for i in 1..300 loop \
                 raise warning using message = repeat('é', 3000), detail = 'n ' || i, \
                 errcode = '01999'; end loop; end $$";
    connection.client.batch_execute(raise).await.unwrap();
    assert_eq!(ask(&connection, "select 1").await, "1");
}

/// Waits until the query `sql` on `observer` returns `t`.
async fn wait_for(observer: &Connection, sql: &str) {
    for _ in 0..1500 {
        if ask(observer, sql).await == "t" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("timed out waiting until this returns t: {sql}");
}

#[tokio::test]
async fn cancel_stops_a_statement_however_it_was_sent() {
    let server = tls_server();
    let checked = format!("sslmode=verify-full sslrootcert={}", server.file("ca.crt"));
    let socket = format!("host={} user=sockety", server.server.folder().display());
    for (fixture, extra) in [
        (server.clone(), "sslmode=require"),
        (server.clone(), "sslmode=prefer"),
        (server.clone(), "sslmode=disable"),
        (server.clone(), &checked),
        (server.clone(), &socket),
        (plain_server(), "sslmode=prefer"),
    ] {
        let observer = fixture.connect("").await.unwrap();
        let connection = fixture.connect(extra).await.unwrap();
        let (pid, canceller) = (connection.backend_pid(), connection.canceller());
        let cancel = async {
            let sql = format!(
                "select coalesce(bool_or(wait_event = 'PgSleep'), false) from pg_stat_activity \
                 where pid = {pid}"
            );
            wait_for(&observer, &sql).await;
            canceller.cancel().await.unwrap();
        };
        let client = &connection.client;
        client.batch_execute("begin").await.unwrap();
        let (slept, ()) = tokio::join!(client.simple_query("select pg_sleep(600)"), cancel);
        client.batch_execute("rollback").await.unwrap();
        let error = connection.explain("could not sleep", slept.unwrap_err());
        assert_eq!(error.sqlstate().unwrap().code(), "57014");
        assert_eq!(error.kind(), ErrorKind::Server);
        assert_eq!(
            error_text(&error),
            "could not sleep\n  caused by: canceling statement due to user request (SQLSTATE 57014)"
        );
        assert_eq!(ask(&connection, "select 1").await, "1");
    }
}

#[tokio::test]
async fn a_dropped_or_closed_connection_leaves_no_session() {
    let fixture = tls_server();
    let observer = fixture.connect("").await.unwrap();
    let gone = |pid: i32| format!("select count(*) = 0 from pg_stat_activity where pid = {pid}");
    let dropped = fixture.connect("").await.unwrap();
    let pid = dropped.backend_pid();
    drop(dropped);
    wait_for(&observer, &gone(pid)).await;
    let closed = fixture.connect("").await.unwrap();
    let pid = closed.backend_pid();
    closed.close().await;
    wait_for(&observer, &gone(pid)).await;
}

#[tokio::test]
async fn a_lost_connection_says_why() {
    let fixture = tls_server();
    for idle in [true, false] {
        let connection = fixture.connect("").await.unwrap();
        let pid = connection.backend_pid();
        // `sql` blocks this thread, so the server's last message stays in the socket unread.
        assert_eq!(fixture.server.sql(&format!("select pg_terminate_backend({pid})")), "t");
        let sql = format!("select count(*) = 0 from pg_stat_activity where pid = {pid}");
        while fixture.server.sql(&sql) != "t" {}
        while idle && !connection.is_closed() {
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            let error = connection.client.simple_query("select 1").await.unwrap_err();
            let error = connection.explain("could not read", error);
            let text = error_text(&error);
            let words = "terminating connection due to administrator command (SQLSTATE 57P01)";
            assert!(text.contains(words), "idle {idle}: {text}");
            assert_eq!(error.kind(), ErrorKind::Connect);
            assert_eq!(error.sqlstate().unwrap().code(), "57P01");
            assert!(error.is_retryable());
        }
        assert!(connection.is_closed());
    }
}

#[tokio::test]
async fn the_psql_command_opens_the_same_database() {
    let fixture = tls_server();
    let has_psql = std::process::Command::new("psql").arg("--version").output().is_ok();
    let folder = fixture.server.folder().display().to_string();
    for extra in [
        format!("user=scram sslmode=require application_name='it''s ok' {}", password_parameter())
            .replace("it''s", "it\\'s"),
        format!("user=sockety host={folder}"),
        format!(
            "user=scram host=localhost,{folder} {} options='-c work_mem=5MB'",
            password_parameter()
        ),
    ] {
        let dsn = fixture.dsn(&extra).unwrap();
        let command = dsn.psql_command();
        assert!(command.starts_with("psql ") && !command.contains("hunter"), "{command}");
        if !has_psql {
            continue;
        }
        let shell = std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("{command} -XAtc 'select current_user, current_database()'"))
            .env("PGPASSWORD", crate::PASSWORD)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&shell.stdout).into_owned();
        let problems = String::from_utf8_lossy(&shell.stderr).into_owned();
        assert_eq!(said.trim_end(), format!("{}|postgres", dsn.user()), "{command}: {problems}");
    }
}
