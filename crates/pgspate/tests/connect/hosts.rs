//! Several hosts, sockets, and hosts on which no server listens.

use std::time::Duration;

use pgspate::ErrorKind;

use crate::{ask, error_text, password_parameter, plain_server, resolve, tls_server};

#[tokio::test]
async fn a_socket_is_used_without_tls() {
    let fixture = tls_server();
    let folder = fixture.server.folder().display().to_string();
    for mode in ["prefer", "require"] {
        let extra = format!("host={folder} user=sockety sslmode={mode}");
        let connection = fixture.connect(&extra).await.unwrap();
        let sql = "select inet_server_addr() is null and not ssl from pg_stat_ssl \
                   where pid = pg_backend_pid()";
        assert_eq!(ask(&connection, sql).await, "t");
        assert!(connection.place().contains(&folder), "{}", connection.place());
    }
    let url = format!(
        "postgres://sockety@{}:{}/postgres",
        folder.replace('/', "%2F"),
        fixture.server.port()
    );
    let connection = resolve(&url).unwrap().connect("pgspate-test").await.unwrap();
    assert_eq!(ask(&connection, "select current_user").await, "sockety");
}

#[tokio::test]
async fn the_next_host_is_tried_when_one_is_down() {
    let fixture = tls_server();
    let port = fixture.server.port();
    let text = format!("postgres://postgres@127.0.0.1:1,localhost:{port}/postgres");
    let connection = resolve(&text).unwrap().connect("pgspate-test").await.unwrap();
    assert!(connection.place().contains(&port.to_string()), "{}", connection.place());
    for _ in 0..8 {
        let shuffled = format!("{text}?load_balance_hosts=random");
        resolve(&shuffled).unwrap().connect("pgspate-test").await.unwrap();
    }
}

#[tokio::test]
async fn if_all_hosts_fail_the_error_has_a_line_for_each_host() {
    let text = "host=127.0.0.1,/no/such/folder,no-such-host.invalid port=1,2,3 user=bob \
                password=hunter2";
    let error = resolve(text).unwrap().connect("pgspate-test").await.unwrap_err();
    let text = error_text(&error);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "could not connect to any of 3 addresses");
    assert_eq!(lines[1], "  caused by: server at \"127.0.0.1\", port 1: connection refused");
    assert_eq!(
        lines[2],
        "  caused by: server on socket \"/no/such/folder/.s.PGSQL.2\": no server listens on the \
         socket"
    );
    assert!(
        lines[3].starts_with(
            "  caused by: server at \"no-such-host.invalid\", port 3: could not translate host name"
        ),
        "{text}"
    );
    assert_eq!(error.kind(), ErrorKind::Connect);
    assert!(error.is_retryable());
}

#[tokio::test]
async fn the_error_for_a_port_without_a_server_has_a_hint() {
    let error = resolve("host=127.0.0.1 port=1").unwrap().connect("x").await.unwrap_err();
    assert_eq!(
        error_text(&error),
        "could not connect to server at \"127.0.0.1\", port 1\n  caused by: connection refused\n\
         hint: No server listens there. Check host and port, or start pgspate's own server with \
         `pgspate server start`."
    );
}

#[tokio::test]
async fn the_error_for_a_number_that_the_system_refuses_has_a_hint() {
    let text = "host=127.0.0.1 port=1 keepalives_count=2000000000";
    let error = resolve(text).unwrap().connect("x").await.unwrap_err();
    assert!(error_text(&error).contains("caused by: invalid argument\n"), "{}", error_text(&error));
    assert!(error_text(&error).contains("keepalives_count"), "{}", error_text(&error));
}

#[tokio::test]
async fn a_refusal_ends_the_search_and_a_silent_server_does_not() {
    let fixture = tls_server();
    let port = fixture.server.port();
    let text = format!("host=localhost,localhost port={port},1 user=postgres dbname=nowhere");
    let error = resolve(&text).unwrap().connect("x").await.unwrap_err();
    assert!(
        error_text(&error).starts_with("could not connect to server at"),
        "{}",
        error_text(&error)
    );

    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    let text = format!(
        "host=127.0.0.1,localhost port={silent_port},{port} user=postgres connect_timeout=1"
    );
    let dsn = resolve(&text).unwrap();
    let connection = dsn.connect("x").await.unwrap();
    assert!(connection.place().contains(&port.to_string()), "{}", connection.place());
    let alone = format!("host=127.0.0.1 port={silent_port} connect_timeout=1");
    let error = resolve(&alone).unwrap().connect("x").await.unwrap_err();
    assert!(error_text(&error).contains("no answer within 1 s"), "{}", error_text(&error));
}

/// Returns a listener whose queue is full, so that the kernel accepts no more connections. Also
/// returns the clients in the queue.
fn full_listener() -> (socket2::Socket, Vec<socket2::Socket>) {
    use socket2::{Domain, SockAddr, Socket, Type};
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = ([127, 0, 0, 1], 0).into();
    listener.bind(&SockAddr::from(any)).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    loop {
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        if client.connect_timeout(&address, Duration::from_millis(200)).is_err() {
            return (listener, waiting);
        }
        waiting.push(client);
    }
}

#[tokio::test]
async fn connect_timeout_ends_a_wait_at_any_stage() {
    let (full, _waiting) = full_listener();
    let port = full.local_addr().unwrap().as_socket().unwrap().port();
    let mut silent = vec![("disable", port)];
    let mut impostors = Vec::new();
    // The server is silent after the client connected, at the start of TLS, after it refused TLS,
    // and after it accepted the login.
    for (mode, answer) in [
        ("disable", &b""[..]),
        ("require", b"S"),
        ("prefer", b"N"),
        ("disable", b"R\0\0\0\x08\0\0\0\0"),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        silent.push((mode, listener.local_addr().unwrap().port()));
        impostors.push(tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(answer).await.unwrap();
            std::future::pending::<()>().await;
        }));
    }
    let tried = silent.into_iter().map(|(mode, port)| async move {
        let text = format!("host=127.0.0.1 port={port} sslmode={mode} connect_timeout=1");
        let error = resolve(&text).unwrap().connect("x").await.unwrap_err();
        let told = error_text(&error);
        assert!(told.contains("caused by: no answer within 1 s\n"), "{mode} {port}: {told}");
        assert!(error.is_retryable(), "{mode} {port}");
    });
    futures_util::future::join_all(tried).await;
    impostors.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Starts a proxy that makes the server look like PostgreSQL 12. Returns its port.
async fn proxy_of_old_version(server: u16) -> u16 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = tokio::net::TcpStream::connect(("127.0.0.1", server)).await.unwrap();
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        let forward = tokio::io::copy(&mut from_client, &mut to_server);
        let back = async {
            let (mut piece, name) = (vec![0; 1 << 16], b"server_version\0");
            while let Ok(len @ 1..) = from_server.read(&mut piece).await {
                let at = piece[..len].windows(name.len()).position(|bytes| bytes == name);
                if let Some(at) = at {
                    piece[at + name.len()..][..2].copy_from_slice(b"12");
                }
                to_client.write_all(&piece[..len]).await?;
            }
            std::io::Result::Ok(())
        };
        let _ = tokio::join!(forward, back);
    });
    port
}

#[tokio::test]
async fn a_server_older_than_postgresql_13_is_refused() {
    let fixture = plain_server();
    let port = proxy_of_old_version(fixture.server.port()).await;
    let text = format!(
        "host=127.0.0.1 port={port} user=scram dbname=postgres sslmode=disable {}",
        password_parameter()
    );
    let error = resolve(&text).unwrap().connect("x").await.unwrap_err();
    let said = error_text(&error);
    assert!(said.contains(" runs PostgreSQL 12."), "{said}");
    assert!(said.contains("pgspate needs PostgreSQL 13 or newer."), "{said}");
}

#[tokio::test]
async fn the_error_says_if_the_program_on_the_port_is_not_postgresql() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let impostor = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        let http = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        // `prefer` connects twice, with TLS and without TLS, and gets the last two replies.
        for answer in [&b""[..], http, b"S\0\0\0\0\0\0", b"S", b""] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.write_all(answer).await;
            let _ = stream.shutdown().await;
        }
    });
    for mode in ["disable", "disable", "require", "prefer"] {
        let text = format!("host=127.0.0.1 port={port} sslmode={mode} password=hunter2");
        let error = resolve(&text).unwrap().connect("x").await.unwrap_err();
        let closed = error_text(&error).contains("the server closed the connection unexpectedly");
        let strange = error_text(&error).contains("does not speak PostgreSQL's protocol");
        assert!(closed || strange, "{mode}: {}", error_text(&error));
        assert!(
            error_text(&error).contains("Check that the program listening there"),
            "{}",
            error_text(&error)
        );
    }
    impostor.await.unwrap();
}

#[tokio::test]
async fn target_session_attrs_chooses_among_servers() {
    let (writable, read_only) = (tls_server(), plain_server());
    let ports = [read_only.server.port(), writable.server.port()];
    let list = |ports: [u16; 2]| {
        format!("host=localhost port={},{} user=postgres dbname=postgres", ports[0], ports[1])
            .replace("host=localhost", "host=localhost,localhost")
    };
    let connected_port = |ports: [u16; 2], attrs: &'static str| async move {
        let dsn = resolve(&format!("{} target_session_attrs={attrs}", list(ports))).unwrap();
        let connection = dsn.connect("x").await?;
        Ok::<_, pgspate::Error>(ask(&connection, "show port").await.parse::<u16>().unwrap())
    };
    let reversed = [ports[1], ports[0]];
    assert_eq!(connected_port(ports, "any").await.unwrap(), ports[0]);
    assert_eq!(connected_port(ports, "read-write").await.unwrap(), ports[1]);
    assert_eq!(connected_port(reversed, "read-only").await.unwrap(), ports[0]);
    assert_eq!(connected_port(ports, "primary").await.unwrap(), ports[0]);
    assert_eq!(connected_port(reversed, "prefer-standby").await.unwrap(), reversed[0]);
    let error = connected_port(ports, "standby").await.unwrap_err();
    assert!(
        error_text(&error).contains("server is not in hot standby mode"),
        "{}",
        error_text(&error)
    );
    assert!(error_text(&error).contains("could not connect to any of"), "{}", error_text(&error));
}
