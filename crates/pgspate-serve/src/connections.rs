//! Accepts connections, and serves HTTP/1.1 and HTTP/2 on them.
//!
//! What a client may use has limits: connections, the size and the time of a head and of a body,
//! and the time without a request.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::linger::LingeringStream;
use crate::listen::Front;
use crate::state::{LiveCount, ServeState};
use crate::tls::TlsFront;

/// How long the handshake of TLS may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The most requests at the same time on a connection of HTTP/2.
const STREAMS_MAX: u32 = 256;
/// How often a silent connection of HTTP/2 is asked whether its client lives.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long a connection that must end may still take.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after an error of the listening socket, most likely too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
    content-type: application/json\r\ncontent-length: 91\r\nconnection: close\r\n\r\n\
    {\"code\":\"too_many_connections\",\"message\":\"too many connections\",\
    \"details\":null,\"hint\":null}";

/// What all connections share.
pub(crate) struct ConnectionSetup {
    pub(crate) state: Arc<ServeState>,
    pub(crate) router: Router,
    pub(crate) tls: Option<Arc<TlsFront>>,
    /// Becomes true when serving ends.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// Accepts connections until serving ends. Returns when all connections have ended.
pub(crate) async fn accept_connections(front: Front, setup: ConnectionSetup) {
    let most = setup.state.limits.connections.clamp(1, Semaphore::MAX_PERMITS);
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let permits = Arc::new(Semaphore::new(most as usize));
    let mut stopping = setup.stopping.clone();
    let setup = Arc::new(setup);
    loop {
        let accepted = tokio::select! {
            accepted = front.accept() => accepted,
            () = wait_for_stop(&mut stopping) => break,
        };
        let Ok(stream) = accepted.map(LingeringStream::new) else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let counters = &setup.state.counters;
        match Arc::clone(&permits).try_acquire_owned() {
            Ok(permit) => {
                counters.connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve_connection(Arc::clone(&setup), stream, permit));
            }
            Err(_) => {
                counters.connections_refused.fetch_add(1, Ordering::Relaxed);
                if setup.tls.is_none() {
                    // Ignored: the client has gone.
                    let _ = stream.try_write(TOO_MANY);
                }
            }
        }
    }
    // From here on no client can connect; a Unix socket's file is removed.
    drop(front);
    drop(permits.acquire_many(most).await);
}

/// Waits until serving ends.
async fn wait_for_stop(stopping: &mut watch::Receiver<bool>) {
    // Ignored: without its sender, serving has ended.
    let _ = stopping.wait_for(|stops| *stops).await;
}

async fn serve_connection(
    setup: Arc<ConnectionSetup>,
    stream: LingeringStream,
    _permit: OwnedSemaphorePermit,
) {
    let _live = LiveCount::of(&setup.state.counters.connections_open);
    let Some(tls) = &setup.tls else { return serve_stream(&setup, stream).await };
    let handshake = TlsAcceptor::from(tls.config()).accept(stream);
    let mut stopping = setup.stopping.clone();
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake) => shaken,
        () = wait_for_stop(&mut stopping) => return,
    };
    if let Ok(Ok(stream)) = shaken {
        serve_stream(&setup, stream).await;
    }
}

/// When a connection was last used.
struct ConnectionUse {
    in_flight: AtomicUsize,
    last_end: Mutex<Instant>,
}

impl ConnectionUse {
    /// Returns how long the connection may stay without a request.
    fn time_left(&self, limit: Duration) -> Duration {
        match self.in_flight.load(Ordering::Relaxed) {
            0 => limit.saturating_sub(self.lock().elapsed()),
            _ => limit,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Instant> {
        self.last_end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is being answered. Its end is a use of its connection.
struct LiveRequest(Arc<ConnectionUse>);

impl LiveRequest {
    fn begin(usage: &Arc<ConnectionUse>) -> LiveRequest {
        usage.in_flight.fetch_add(1, Ordering::Relaxed);
        LiveRequest(Arc::clone(usage))
    }
}

impl Drop for LiveRequest {
    fn drop(&mut self) {
        *self.0.lock() = Instant::now();
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve_stream(
    setup: &ConnectionSetup,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) {
    let limit = setup.state.limits.request_timeout;
    let usage =
        ConnectionUse { in_flight: AtomicUsize::new(0), last_end: Mutex::new(Instant::now()) };
    let usage = Arc::new(usage);
    let router = TowerToHyperService::new(setup.router.clone());
    let counted = Arc::clone(&usage);
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let live = LiveRequest::begin(&counted);
        let answer = router.call(request);
        async move {
            let answer = answer.await;
            drop(live);
            answer
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limit)
        .max_buf_size(HEAD_BYTES_MAX)
        // A client may end its side after the request, and read the answer.
        .half_close(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .max_concurrent_streams(STREAMS_MAX);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut stopping = setup.stopping.clone();
    loop {
        let left = usage.time_left(limit);
        tokio::select! {
            // Ignored: an error of the connection concerns its client alone.
            _ = connection.as_mut() => return,
            () = wait_for_stop(&mut stopping) => break,
            () = tokio::time::sleep(left.max(Duration::from_millis(10))) => {
                if usage.time_left(limit).is_zero() {
                    break;
                }
            }
        }
    }
    connection.as_mut().graceful_shutdown();
    loop {
        let before = Instant::now();
        let ended = tokio::time::timeout(END_TIMEOUT, connection.as_mut()).await;
        // Whoever has a request gets the answer. Whoever has none delays the end no longer.
        let is_idle = usage.in_flight.load(Ordering::Relaxed) == 0 && *usage.lock() < before;
        if ended.is_ok() || is_idle {
            return;
        }
    }
}
