//! Tests of the guard with servers that stop answering.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use pgspate_embedded::testing::{self, TestDb};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_postgres::config::Host;

use super::super::{Connection, Dsn, Environment};

const LIMIT: Duration = Duration::from_secs(1);
/// How long a test may take. Tests need far less time unless they hang.
const HANG: Duration = Duration::from_secs(120);

/// A proxy in front of a server. From a certain moment on, the proxy can discard all bytes of its
/// first connection.
struct Relay {
    dsn: Dsn,
    is_silent: watch::Sender<bool>,
    close_timeout: Duration,
}

trait RelayStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> RelayStream for T {}

impl Relay {
    async fn start(db: &TestDb) -> Relay {
        let config: tokio_postgres::Config = db.dsn().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut text =
            format!("host=127.0.0.1 port={port} dbname={}", config.get_dbname().unwrap());
        text += &format!(" user={}", config.get_user().unwrap());
        if let Some(password) = config.get_password() {
            text += &format!(" password={}", String::from_utf8_lossy(password));
        }
        let (is_silent, receiver) = watch::channel(false);
        tokio::spawn(async move {
            let mut is_first = true;
            while let Ok((client, _)) = listener.accept().await {
                let silence = std::mem::take(&mut is_first).then(|| receiver.clone());
                tokio::spawn(relay_bytes(client, config.clone(), silence));
            }
        });
        let env = Environment { user: Some("tester".to_owned()), ..Environment::default() };
        let dsn = Dsn::resolve(Some(&text), &env).unwrap().unwrap();
        Relay { dsn: dsn.with_stall_timeout(LIMIT), is_silent, close_timeout: HANG }
    }

    /// Opens the first connection, which can become silent.
    async fn connect(&self) -> Connection {
        self.dsn.connect("guarded").await.unwrap()
    }

    fn become_silent(&self) {
        self.is_silent.send_replace(true);
    }

    /// Waits until the server has no session with this process id.
    async fn wait_until_gone(&self, pid: i32) {
        let other = self.dsn.connect("other").await.unwrap();
        let sql = "select exists (select from pg_stat_activity where pid = $1)";
        let gone = async {
            while other.client.query_one(sql, &[&pid]).await.unwrap().get::<_, bool>(0) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(self.close_timeout, gone)
            .await
            .expect("the session should have ended");
    }
}

/// Relays bytes in both directions, until silence is requested. Then discards all bytes.
async fn relay_bytes(
    mut client: TcpStream,
    config: tokio_postgres::Config,
    silence: Option<watch::Receiver<bool>>,
) {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let mut server: Box<dyn RelayStream> = match &config.get_hosts()[0] {
        Host::Tcp(name) => Box::new(TcpStream::connect((name.as_str(), port)).await.unwrap()),
        Host::Unix(folder) => {
            let path = folder.join(format!(".s.PGSQL.{port}"));
            Box::new(UnixStream::connect(path).await.unwrap())
        }
    };
    let silent = async {
        match silence {
            Some(mut silence) => drop(silence.wait_for(|is_silent| *is_silent).await),
            None => pending().await,
        }
    };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
        () = silent => {}
    }
    pending().await
}

fn message_chain(error: &crate::Error) -> String {
    error.messages().join(": ")
}

fn run_test(test: impl AsyncFnOnce(TestDb)) {
    let db = testing::database();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async { tokio::time::timeout(HANG, test(db)).await }).expect("the test hangs");
}

#[test]
fn a_query_with_a_lost_answer_fails_and_its_session_ends() {
    run_test(async |db| {
        let relay = Relay::start(&db).await;
        let connection = relay.connect().await;
        connection.client.batch_execute("begin; create table public.t ()").await.unwrap();
        relay.become_silent();
        let error = connection.client.batch_execute("select 1").await.unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some("08006"));
        let error = connection.explain("could not ask", error);
        assert!(error.is_retryable());
        let chain = message_chain(&error);
        assert!(chain.contains("gave no answer for 1 s"), "{chain}");
        relay.wait_until_gone(connection.backend_pid()).await;
        // The next statement gets the same error.
        let error = connection.client.batch_execute("select 1").await.unwrap_err();
        let chain = message_chain(&connection.explain("could not ask", error));
        assert!(chain.contains("gave no answer for 1 s"), "{chain}");
    });
}

#[test]
fn a_slow_answer_is_waited_for() {
    run_test(async |db| {
        let relay = Relay::start(&db).await;
        let connection = relay.connect().await;
        connection
            .client
            .batch_execute("create table public.t (); select pg_sleep(4)")
            .await
            .unwrap();
        // Another session's lock.
        let other = relay.dsn.connect("other").await.unwrap();
        other.client.batch_execute("begin; lock table public.t").await.unwrap();
        let hold_lock = async {
            other.client.batch_execute("select pg_sleep(4)").await.unwrap();
            other.client.batch_execute("commit").await.unwrap();
        };
        let (waited, ()) =
            tokio::join!(connection.client.batch_execute("lock table public.t"), hold_lock);
        assert_eq!(waited.unwrap_err().as_db_error().unwrap().code().code(), "25P01");
        connection.client.batch_execute("select 1").await.unwrap();
    });
}

#[test]
fn an_idle_client_is_not_silent() {
    run_test(async |db| {
        let relay = Relay::start(&db).await;
        let connection = relay.connect().await;
        let client = &connection.client;
        client.batch_execute("create table public.t (x text)").await.unwrap();
        let sink = client.copy_in::<_, Bytes>("copy public.t from stdin").await.unwrap();
        let mut sink = pin!(sink);
        sink.send(Bytes::from_static(b"a\n")).await.unwrap();
        tokio::time::sleep(LIMIT * 4).await;
        assert_eq!(sink.finish().await.unwrap(), 1);
        client.batch_execute("begin").await.unwrap();
        tokio::time::sleep(LIMIT * 4).await;
        client.batch_execute("commit").await.unwrap();
    });
}

#[test]
fn a_slowly_reading_client_is_not_silent() {
    run_test(async |db| {
        let relay = Relay::start(&db).await;
        let connection = relay.connect().await;
        let sql = "copy (select repeat('x', 1000) from generate_series(1, 50000)) to stdout";
        let mut rows = pin!(connection.client.copy_out(sql).await.unwrap());
        let mut bytes = rows.next().await.unwrap().unwrap().len();
        tokio::time::sleep(LIMIT * 4).await;
        while let Some(row) = rows.next().await {
            bytes += row.unwrap().len();
        }
        assert_eq!(bytes, 1001 * 50_000);
    });
}

#[test]
fn a_copy_with_lost_data_ends() {
    run_test(async |db| {
        let relay = Relay::start(&db).await;
        let connection = relay.connect().await;
        let client = &connection.client;
        client.batch_execute("create table public.t (x text)").await.unwrap();
        let sink = client.copy_in::<_, Bytes>("copy public.t from stdin").await.unwrap();
        let mut sink = pin!(sink);
        relay.become_silent();
        let piece = Bytes::from(b"abcdefg\n".repeat(1 << 13));
        while sink.send(piece.clone()).await.is_ok() {}
        relay.wait_until_gone(connection.backend_pid()).await;
        let error = client.batch_execute("select 1").await.unwrap_err();
        let chain = message_chain(&connection.explain("could not ask", error));
        assert!(chain.contains("gave no answer for"), "{chain}");
    });
}

#[test]
fn connecting_to_a_silent_server_times_out() {
    run_test(async |db| {
        let relay = Relay::start(&db).await;
        relay.become_silent();
        let error = relay.dsn.connect("guarded").await.unwrap_err();
        let chain = message_chain(&error);
        assert!(chain.contains("no answer within 1 s"), "{chain}");
    });
}

#[test]
fn a_session_of_another_server_is_not_terminated() {
    run_test(async |db| {
        let relay = Relay::start(&db).await;
        let connection = relay.connect().await;
        let pid = connection.backend_pid();
        let guard = connection.guard.as_ref().unwrap();
        guard.identify(super::BackendId::Process(pid, "192.0.2.1".to_owned()));
        relay.become_silent();
        let query = connection.client.batch_execute("select 1");
        assert!(tokio::time::timeout(LIMIT * 5, query).await.is_err());
    });
}
