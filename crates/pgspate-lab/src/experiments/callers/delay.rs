//! A proxy that makes the way to a server longer: each answer arrives later by a fixed time.
//!
//! The bytes of both directions stay as they are, and in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// The greatest number of bytes that are read at once.
const PIECE_BYTES: usize = 64 << 10;

/// A proxy in front of a server. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct DelayProxy {
    port: u16,
    accepting: JoinHandle<()>,
}

impl DelayProxy {
    /// Starts a proxy to the server at `address`, which answers later by `delay`.
    pub(super) async fn start(
        address: SocketAddr,
        delay: Duration,
        runtime: &Handle,
    ) -> io::Result<DelayProxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let alarms = start_clock();
        let accepting = runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let alarms = alarms.clone();
                tokio::spawn(async move {
                    // The end of a connection is what its two ends see.
                    let _ = pass(client, address, delay, alarms).await;
                });
            }
        });
        Ok(DelayProxy { port, accepting })
    }

    /// Returns the port on 127.0.0.1.
    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A moment, and whom to wake then. The earliest is the greatest, as a heap returns that first.
struct Alarm(Reverse<Instant>, oneshot::Sender<()>);

impl PartialEq for Alarm {
    fn eq(&self, other: &Alarm) -> bool {
        self.0 == other.0
    }
}

impl Eq for Alarm {}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Alarm) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Alarm) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

/// Starts a thread that wakes at exact moments. Tokio's timers have steps of a whole millisecond.
/// The thread ends with the last sender.
fn start_clock() -> Sender<Alarm> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || run_clock(&receiver));
    sender
}

fn run_clock(new: &Receiver<Alarm>) {
    let mut alarms: BinaryHeap<Alarm> = BinaryHeap::new();
    loop {
        let now = Instant::now();
        while alarms.peek().is_some_and(|alarm| alarm.0.0 <= now) {
            if let Some(Alarm(_, waiter)) = alarms.pop() {
                // No one waits if the connection has ended.
                let _ = waiter.send(());
            }
        }
        let received = match alarms.peek() {
            Some(next) => new.recv_timeout(next.0.0.saturating_duration_since(now)),
            None => new.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(alarm) => alarms.push(alarm),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Passes the bytes of one connection on until one end closes it.
async fn pass(
    client: TcpStream,
    address: SocketAddr,
    delay: Duration,
    alarms: Sender<Alarm>,
) -> io::Result<()> {
    let server = TcpStream::connect(address).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let (pieces, late_pieces) = mpsc::channel(1024);
    tokio::spawn(read(from_server, delay, pieces));
    tokio::spawn(write_later(late_pieces, to_client, alarms));
    tokio::io::copy(&mut from_client, &mut to_server).await?;
    to_server.shutdown().await
}

/// Reads what the server sends, and notes when each piece is to be passed on.
async fn read(
    mut server: OwnedReadHalf,
    delay: Duration,
    pieces: mpsc::Sender<(Instant, Bytes)>,
) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(PIECE_BYTES);
    while server.read_buf(&mut buffer).await? > 0 {
        let piece = buffer.split().freeze();
        if pieces.send((Instant::now() + delay, piece)).await.is_err() {
            break;
        }
        buffer.reserve(PIECE_BYTES);
    }
    Ok(())
}

/// Passes each piece on at its time.
async fn write_later(
    mut pieces: mpsc::Receiver<(Instant, Bytes)>,
    mut client: OwnedWriteHalf,
    alarms: Sender<Alarm>,
) -> io::Result<()> {
    while let Some((at, piece)) = pieces.recv().await {
        if at > Instant::now() {
            let (waker, woken) = oneshot::channel();
            if alarms.send(Alarm(Reverse(at), waker)).is_ok() {
                let _ = woken.await;
            }
        }
        client.write_all(&piece).await?;
    }
    client.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn answers_arrive_whole_in_order_and_not_before_their_time() {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = server.local_addr().unwrap();
        let echo = tokio::spawn(async move {
            let (mut socket, _) = server.accept().await.unwrap();
            let (mut reading, mut writing) = socket.split();
            tokio::io::copy(&mut reading, &mut writing).await.unwrap();
        });
        let delay = Duration::from_millis(20);
        let proxy = DelayProxy::start(address, delay, &Handle::current()).await.unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        let sent: Vec<u8> = (0..200_000_u32).map(|nth| (nth / 7) as u8).collect();
        let began = Instant::now();
        let (mut reading, mut writing) = client.split();
        let mut received = Vec::new();
        let (written, read) = tokio::join!(
            async {
                writing.write_all(&sent).await?;
                writing.shutdown().await
            },
            reading.read_to_end(&mut received)
        );
        written.unwrap();
        read.unwrap();
        assert!(began.elapsed() >= delay);
        assert!(sent == received);
        echo.await.unwrap();
    }
}
