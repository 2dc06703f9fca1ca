//! A proxy between the command and the server that injects one fault at a chosen message.
//!
//! All other messages pass unchanged, in order and without delay. Messages of all connections are
//! counted in one sequence. The log has a line for each message, without its content.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio_postgres::config::Host;

use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::protocol::{CommitDetector, MessageSide, OpeningPacket, WireMessage, ends_commit};

const READ_BYTES: usize = 64 << 10;

/// A proxy on loopback for one server. Its connections are closed when the value is dropped.
pub(crate) struct Proxy {
    runtime: Option<Runtime>,
    shared: Arc<ProxyShared>,
    address: SocketAddr,
    config: tokio_postgres::Config,
}

/// Returns the reason for which a statement is refused; `None` for a statement that is passed on.
pub(crate) type StatementRules = fn(&str) -> Option<&'static str>;

/// How a stalled connection ends: its messages continue, or the connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StallRelease {
    Resume,
    Cut,
}

/// What the listener, the connections and the test share.
struct ProxyShared {
    server: ProxiedServer,
    state: Mutex<ProxyState>,
    has_fired: Condvar,
    release: watch::Sender<Option<StallRelease>>,
    server_goes_away: Notify,
    begin: Instant,
    rules: StatementRules,
}

/// Where the server listens.
enum ProxiedServer {
    Tcp(String, u16),
    Socket(PathBuf),
}

#[derive(Default)]
struct ProxyState {
    plan: Option<FaultPlan>,
    messages: u64,
    commits: u64,
    /// Number of messages of the side and type that the plan names.
    messages_of_kind: u64,
    fired: bool,
    /// Number of connections that had been opened when the fault happened.
    connections_at_fault: usize,
    connections: Vec<AbortHandle>,
    log: String,
}

impl Proxy {
    /// Starts a proxy for the server that `dsn` names, with the fault of `plan`.
    pub(crate) fn start(dsn: &str, plan: Option<FaultPlan>) -> Proxy {
        Proxy::start_with_rules(dsn, plan, |_| None)
    }

    /// Starts a proxy that also makes the server refuse statements. For a statement, `rules`
    /// returns the reason for which it is refused.
    pub(crate) fn start_with_rules(
        dsn: &str,
        plan: Option<FaultPlan>,
        rules: StatementRules,
    ) -> Proxy {
        let config: tokio_postgres::Config = dsn.parse().unwrap();
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let server = match &config.get_hosts()[0] {
            Host::Tcp(name) => ProxiedServer::Tcp(name.clone(), port),
            Host::Unix(folder) => ProxiedServer::Socket(folder.join(format!(".s.PGSQL.{port}"))),
        };
        let shared = Arc::new(ProxyShared {
            server,
            state: Mutex::new(ProxyState { plan, ..ProxyState::default() }),
            has_fired: Condvar::new(),
            release: watch::Sender::new(None),
            server_goes_away: Notify::new(),
            begin: Instant::now(),
            rules,
        });
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(Arc::clone(&shared).listen(listener, address));
        Proxy { runtime: Some(runtime), shared, address, config }
    }

    /// Returns a connection string for the database through the proxy.
    pub(crate) fn dsn(&self) -> String {
        let quote = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
        let mut dsn = format!("host={} port={}", self.address.ip(), self.address.port());
        let password = self.config.get_password().map(String::from_utf8_lossy);
        for (key, value) in [
            ("user", self.config.get_user()),
            ("dbname", self.config.get_dbname()),
            ("password", password.as_deref()),
            ("options", self.config.get_options()),
        ] {
            if let Some(value) = value {
                let _ = write!(dsn, " {key}={}", quote(value));
            }
        }
        dsn
    }

    /// Replaces the plan. The count of messages starts again at 1.
    pub(crate) fn arm(&self, plan: FaultPlan) {
        let mut state = self.shared.state();
        (state.plan, state.fired) = (Some(plan), false);
        (state.messages, state.commits, state.messages_of_kind) = (0, 0, 0);
    }

    /// Returns the address on which the proxy listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns whether the fault has happened.
    pub(crate) fn has_fired(&self) -> bool {
        self.shared.state().fired
    }

    /// Returns how many connections had been opened when the fault happened.
    pub(crate) fn connections_at_fault(&self) -> usize {
        self.shared.state().connections_at_fault
    }

    /// Waits until the fault has happened. Returns false if the fault does not happen in this time.
    pub(crate) fn wait_until_fired(&self, limit: Duration) -> bool {
        let state = self.shared.state();
        let waited = self.shared.has_fired.wait_timeout_while(state, limit, |state| !state.fired);
        waited.unwrap_or_else(PoisonError::into_inner).0.fired
    }

    /// Releases stalled connections, now and later.
    pub(crate) fn release(&self, how: StallRelease) {
        self.shared.log_line(&format!("release: {how:?}"));
        self.shared.release.send_replace(Some(how));
    }

    /// Cuts stalled connections, and passes everything on from now on.
    pub(crate) fn disarm(&self) {
        self.release(StallRelease::Cut);
        self.shared.state().plan = None;
    }

    /// Returns the number of messages so far, and how many of them commit.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.shared.state();
        (state.messages, state.commits)
    }

    /// Returns the log: number, connection, side, type and bytes of each message, and the faults.
    pub(crate) fn log(&self) -> String {
        self.shared.state().log.clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Do not wait for a running name lookup.
            runtime.shutdown_background();
        }
    }
}

impl ProxyShared {
    fn state(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_line(&self, line: &str) {
        let _ = writeln!(self.state().log, "{:9.3?} {line}", self.begin.elapsed());
    }

    /// Counts a message, and returns the fault that happens to it.
    fn count_and_choose_fault(
        &self,
        connection: usize,
        side: MessageSide,
        message: &WireMessage,
        commits: bool,
    ) -> Option<Fault> {
        let mut state = self.state();
        state.messages += 1;
        state.commits += u64::from(commits);
        let (nth, kind) = (state.messages, char::from(message.kind));
        let arrow = if side == MessageSide::Client { "->" } else { "<-" };
        let mark = if commits { " commit" } else { "" };
        let bytes = message.len();
        let _ = writeln!(state.log, "#{nth} {connection} {arrow} {kind} {bytes}{mark}");
        let has_fired = state.fired;
        let plan = state.plan.filter(|it| !has_fired || matches!(it.at, FaultPlace::Every(_)))?;
        let is_here = match plan.at {
            FaultPlace::Message(at) => state.messages == at,
            FaultPlace::Every(count) => state.messages.is_multiple_of(count),
            FaultPlace::Commit(at) => commits && state.commits == at,
            FaultPlace::Kind(of, kind, at) => {
                let is_of_kind = of == side && kind == message.kind;
                state.messages_of_kind += u64::from(is_of_kind);
                is_of_kind && state.messages_of_kind == at
            }
        };
        if !is_here || (plan.fault == Fault::SwallowCommit && !commits) {
            return None;
        }
        state.fired = true;
        state.connections_at_fault = state.connections.len();
        drop(state);
        self.log_line(&format!("connection {connection}: {plan}"));
        self.has_fired.notify_all();
        Some(plan.fault)
    }

    /// Makes the server unreachable after a connection was cut, if the plan says so.
    fn go_away_if_planned(&self) {
        if self.state().plan.is_some_and(|plan| plan.away.is_some()) {
            self.server_goes_away.notify_one();
        }
    }

    async fn listen(self: Arc<ProxyShared>, mut listener: TcpListener, address: SocketAddr) {
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((client, _)) => self.accept(client),
                    Err(error) => self.log_line(&format!("could not accept: {error}")),
                },
                () = self.server_goes_away.notified() => {
                    drop(listener);
                    listener = self.stay_away(address).await;
                }
            }
        }
    }

    fn accept(self: &Arc<ProxyShared>, client: TcpStream) {
        let shared = Arc::clone(self);
        let mut state = self.state();
        let nth = state.connections.len() + 1;
        let task = tokio::spawn(async move {
            let why = match shared.serve(nth, client).await {
                Ok(()) => "closed".to_owned(),
                Err(error) => error.to_string(),
            };
            shared.log_line(&format!("connection {nth}: {why}"));
        });
        state.connections.push(task.abort_handle());
    }

    /// Acts as a server that is down: cuts all connections and refuses new connections. Keeps the
    /// port.
    async fn stay_away(&self, address: SocketAddr) -> TcpListener {
        let kept = loop {
            let kept = TcpSocket::new_v4().unwrap();
            kept.set_reuseaddr(true).unwrap();
            match kept.bind(address) {
                Ok(()) => break kept,
                // An outgoing connection of another process may use the port for a moment.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        let (time, connections) = {
            let state = self.state();
            (state.plan.and_then(|plan| plan.away), state.connections.clone())
        };
        connections.iter().for_each(AbortHandle::abort);
        self.log_line("away");
        tokio::time::sleep(time.unwrap_or_default()).await;
        self.log_line("back");
        kept.listen(128).unwrap()
    }

    async fn serve(&self, nth: usize, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let connection = ProxiedConnection::new(self, nth);
        match &self.server {
            ProxiedServer::Tcp(name, port) => {
                let server = TcpStream::connect((name.as_str(), *port)).await?;
                server.set_nodelay(true)?;
                connection.serve(client, server).await
            }
            ProxiedServer::Socket(path) => {
                connection.serve(client, UnixStream::connect(path).await?).await
            }
        }
    }
}

/// The states of a commit whose reply the proxy drops.
const NOT_SWALLOWING: u8 = 0;
const SWALLOWING: u8 = 1;
const ANSWERED: u8 = 2;
/// The answers to a prepared statement that commits.
const SWALLOWING_STATEMENT: u8 = 3;

/// One connection. The tasks of both directions use it.
struct ProxiedConnection<'a> {
    shared: &'a ProxyShared,
    nth: usize,
    is_stalled: AtomicBool,
    is_lost: AtomicBool,
    swallow: AtomicU8,
}

impl ProxiedConnection<'_> {
    fn new(shared: &ProxyShared, nth: usize) -> ProxiedConnection<'_> {
        let (is_stalled, is_lost) = (AtomicBool::new(false), AtomicBool::new(false));
        let swallow = AtomicU8::new(NOT_SWALLOWING);
        ProxiedConnection { shared, nth, is_stalled, is_lost, swallow }
    }

    /// Passes messages both ways. A lost connection stays open towards the server until released.
    async fn serve<S>(&self, client: TcpStream, mut server: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let relayed = self.relay(client, &mut server).await;
        if self.is_lost.load(SeqCst) {
            let mut release = self.shared.release.subscribe();
            let mut nowhere = tokio::io::sink();
            tokio::select! {
                _ = tokio::io::copy(&mut server, &mut nowhere) => {}
                _ = release.wait_for(Option::is_some) => {}
            }
        }
        relayed
    }

    /// Passes messages both ways until either side closes.
    async fn relay<S>(&self, mut client: TcpStream, server: &mut S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (from_client, mut to_client) = client.split();
        let (from_server, mut to_server) = tokio::io::split(server);
        let mut from_client = BufReader::with_capacity(READ_BYTES, from_client);
        let mut from_server = BufReader::with_capacity(READ_BYTES, from_server);
        loop {
            let Some((message, opening)) = WireMessage::read_opening(&mut from_client).await?
            else {
                return Ok(());
            };
            self.pass(MessageSide::Client, &message, false, &mut from_client, &mut to_server)
                .await?;
            match opening {
                OpeningPacket::Startup | OpeningPacket::Cancel => break,
                OpeningPacket::Encryption => {
                    let answer = from_server.read_u8().await?;
                    let message = WireMessage::encryption_reply(answer);
                    self.pass(
                        MessageSide::Server,
                        &message,
                        false,
                        &mut from_server,
                        &mut to_client,
                    )
                    .await?;
                    if answer != b'N' {
                        return Err(io::Error::other("encrypted; a fault cannot be placed"));
                    }
                }
            }
        }
        tokio::select! {
            forth = self.relay_from_client(&mut from_client, &mut to_server) => forth,
            back = self.relay_from_server(&mut from_server, &mut to_client) => back,
        }
    }

    async fn relay_from_client<R, W>(&self, from: &mut R, to: &mut W) -> io::Result<()>
    where
        R: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut commits = CommitDetector::default();
        while let Some(mut message) = WireMessage::read(from).await? {
            message.refuse_statement(self.shared.rules);
            let is_commit = commits.is_commit(&message);
            self.pass(MessageSide::Client, &message, is_commit, from, to).await?;
        }
        Ok(())
    }

    async fn relay_from_server<R, W>(&self, from: &mut R, to: &mut W) -> io::Result<()>
    where
        R: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        while let Some(message) = WireMessage::read(from).await? {
            if self.swallow.load(SeqCst) == NOT_SWALLOWING {
                self.pass(MessageSide::Server, &message, false, from, to).await?;
                continue;
            }
            message.skip(from).await?;
            self.shared.log_line(&format!(
                "connection {}: swallowed {} {}",
                self.nth,
                char::from(message.kind),
                message.len()
            ));
            let is_statement = self.swallow.load(SeqCst) == SWALLOWING_STATEMENT;
            if ends_commit(&message, is_statement) {
                self.swallow.store(ANSWERED, SeqCst);
            } else if message.kind == b'Z' && self.swallow.load(SeqCst) == ANSWERED {
                return Err(self.cut());
            }
        }
        Ok(())
    }

    /// Counts a message, and passes it on or injects the planned fault.
    async fn pass<R, W>(
        &self,
        side: MessageSide,
        message: &WireMessage,
        is_commit: bool,
        from: &mut R,
        to: &mut W,
    ) -> io::Result<()>
    where
        R: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        self.wait_while_stalled().await?;
        match self.shared.count_and_choose_fault(self.nth, side, message, is_commit) {
            None => message.pass(u64::MAX, from, to).await,
            Some(Fault::Cut) => Err(self.cut()),
            Some(Fault::CutInside) => {
                message.pass(message.total_len() / 2, from, to).await?;
                Err(self.cut())
            }
            Some(Fault::CutAfter) => {
                message.pass(u64::MAX, from, to).await?;
                Err(self.cut())
            }
            Some(Fault::Lose) => {
                message.pass(u64::MAX, from, to).await?;
                self.is_lost.store(true, SeqCst);
                Err(io::Error::other("lost"))
            }
            Some(Fault::Stall) => {
                self.is_stalled.store(true, SeqCst);
                self.wait_while_stalled().await?;
                message.pass(u64::MAX, from, to).await
            }
            Some(Fault::SwallowCommit) => {
                let is_statement = message.kind == b'B';
                let state = if is_statement { SWALLOWING_STATEMENT } else { SWALLOWING };
                self.swallow.store(state, SeqCst);
                message.pass(u64::MAX, from, to).await
            }
        }
    }

    async fn wait_while_stalled(&self) -> io::Result<()> {
        if !self.is_stalled.load(SeqCst) {
            return Ok(());
        }
        let mut release = self.shared.release.subscribe();
        let how = *release.wait_for(Option::is_some).await.map_err(io::Error::other)?;
        match how {
            Some(StallRelease::Cut) => Err(self.cut()),
            _ => Ok(()),
        }
    }

    /// Returns the error that closes the connection.
    fn cut(&self) -> io::Error {
        self.shared.go_away_if_planned();
        io::Error::other("cut")
    }
}
