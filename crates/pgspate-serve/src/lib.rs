//! Records over HTTP: many clients send records, the writer writes together what arrives together,
//! and each request is answered when its records are durable.
//!
//! - `connections` accepts clients and limits what each may use.
//! - `access` decides who may write.
//! - `insert` answers a request with records; `records` reads its body as `load` would read it.
//! - `health` watches the server, so that requests are refused while it is away.
//!
//! The words of requests and answers are PostgREST's, where PostgREST has them. Nothing here prints
//! or handles signals: the caller does, by [`ServeNotice`] and [`ServeSwitch`].

mod access;
mod connections;
mod fault;
mod health;
mod insert;
mod linger;
mod listen;
mod metrics;
mod options;
mod prefer;
mod records;
mod router;
mod state;
mod stats;
mod tables;
mod tls;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pgspate::target::connect::Dsn;
use pgspate::writer::Writer;
use pgspate::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio::sync::watch;

pub use options::{
    BODY_BYTES_MAX, HttpLimits, ListenAddress, ServeOptions, ServeReport, TableCounts, TlsFiles,
};

use access::AccessRules;
use connections::{ConnectionSetup, accept_connections};
use listen::Front;
use state::ServeState;
use tables::ServedTables;
use tls::TlsFront;

/// Something that happens while records are served.
#[derive(Debug)]
pub enum ServeNotice {
    /// The server does not answer. Requests get status 503.
    ServerAway,
    /// The server is a standby, or accepts no writes for another reason. Requests get status 503.
    ServerReadOnly,
    /// The server answers again, and accepts writes.
    ServerBack,
}

/// A server of HTTP that listens and does not answer yet.
pub struct RecordServer {
    state: Arc<ServeState>,
    front: Front,
    tls: Option<Arc<TlsFront>>,
    dsn: Dsn,
    stop: watch::Sender<bool>,
}

/// Stops a [`RecordServer`], or lets it read its files again.
#[derive(Clone)]
pub struct ServeSwitch {
    state: Arc<ServeState>,
    tls: Option<Arc<TlsFront>>,
    stop: watch::Sender<bool>,
}

impl RecordServer {
    /// Connects to the server, looks the tables up, and listens.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a table does not exist, a file cannot be used, the address is in
    /// use, or other machines could write without a token. The errors of [`Writer::open`].
    pub async fn open(dsn: Dsn, options: ServeOptions, runtime: &Handle) -> Result<RecordServer> {
        let access = AccessRules::new(&options)?;
        let tls = options.tls.as_ref().map(TlsFront::new).transpose()?.map(Arc::new);
        let is_open = options.tokens.is_none()
            && options.tls.as_ref().is_none_or(|files| files.client_authority.is_none());
        raise_file_limit();
        let writer = Writer::open(dsn.clone(), options.writer.clone(), runtime).await?;
        let tables = ServedTables::look_up(&options.tables, &writer).await?;
        if tables.all.is_empty() {
            return Err(Error::new(ErrorKind::Usage, "no table is named"));
        }
        let front = Front::listen(&options.listen, is_open).await?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = match (&options.listen, front.tcp_address()) {
            (_, Some(address)) => format!("{scheme}://{address}"),
            (ListenAddress::Tcp(address), None) => format!("{scheme}://{address}"),
            (ListenAddress::Unix(path), None) => format!("unix:{}", path.display()),
        };
        let state = ServeState::new(writer, tables, access, options.limits, address);
        let stop = watch::Sender::new(false);
        Ok(RecordServer { state: Arc::new(state), front, tls, dsn, stop })
    }

    /// Returns the address: a URL, or `unix:/path`.
    pub fn address(&self) -> &str {
        &self.state.address
    }

    /// Returns the served tables, each with its schema.
    pub fn tables(&self) -> Vec<String> {
        self.state.tables.all.iter().map(|table| table.name.clone()).collect()
    }

    /// Returns the switch of this server.
    pub fn switch(&self) -> ServeSwitch {
        ServeSwitch {
            state: Arc::clone(&self.state),
            tls: self.tls.clone(),
            stop: self.stop.clone(),
        }
    }

    /// Answers requests until [`ServeSwitch::stop`] is called. Then answers what is in flight,
    /// writes what is queued, and ends the sessions. `notify` is called for each notice.
    pub async fn run(self, notify: impl Fn(ServeNotice) + Send + Sync + 'static) -> ServeReport {
        let RecordServer { state, front, tls, dsn, stop } = self;
        let health = tokio::spawn(health::watch_server(dsn, Arc::clone(&state), Arc::new(notify)));
        let router = router::router(Arc::clone(&state));
        let stopping = stop.subscribe();
        let setup = ConnectionSetup { state: Arc::clone(&state), router, tls, stopping };
        accept_connections(front, setup).await;
        health.abort();
        state.writer.close().await;
        state.report()
    }
}

impl ServeSwitch {
    /// Stops accepting connections and requests. [`RecordServer::run`] then returns.
    pub fn stop(&self) {
        self.state.is_stopping.store(true, Ordering::Relaxed);
        self.stop.send_replace(true);
    }

    /// Reads tokens and certificates again. Returns an error for each file that cannot be used, and
    /// whose old content counts.
    pub fn reload(&self) -> Vec<Error> {
        let tls = self.tls.as_ref().map(|tls| tls.reload());
        let results = [Some(self.state.access.reload()), tls];
        results.into_iter().flatten().filter_map(Result::err).collect()
    }
}

/// Raises the limit of open files as far as the system lets any process raise it.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Ignored: with the old limit, fewer clients connect at once.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
