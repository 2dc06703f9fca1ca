//! Serves the metrics of a stream for Prometheus (`--metrics`).
//!
//! The server answers one page: it reads the head of a request, answers, and closes the connection.
//! A scrape only reads counters of the run. A client that sends nothing is dropped after 5 seconds.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pgspate::apply::{ApplyProgress, ApplyWatch};
use pgspate::{Error, ErrorKind, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The largest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The most requests that are answered at a time; further requests wait.
const REQUESTS_MAX: usize = 16;

/// A running server of metrics; dropping it stops the server.
pub struct MetricsServer(JoinHandle<()>);

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts to serve the metrics of a stream at `http://ADDRESS/metrics`.
///
/// # Errors
/// [`ErrorKind::Usage`] if the server cannot listen on the address.
pub fn serve(
    address: SocketAddr,
    watch: &Arc<ApplyWatch>,
    runtime: &Handle,
) -> Result<MetricsServer> {
    let listener = runtime.block_on(TcpListener::bind(address)).map_err(|error| {
        Error::new(ErrorKind::Usage, format!("could not listen on {address}"))
            .hint("Name another address with `--metrics`.")
            .because(error)
    })?;
    let watch = Arc::clone(watch);
    Ok(MetricsServer(runtime.spawn(async move {
        let permits = Arc::new(Semaphore::new(REQUESTS_MAX));
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let watch = Arc::clone(&watch);
                    tokio::spawn(async move {
                        // Ignored: the client may have closed the connection.
                        let _ = timeout(REQUEST_TIMEOUT, answer_request(stream, &watch)).await;
                        drop(permit);
                    });
                }
                // Most likely too many files are open; retry when some are closed.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    })))
}

/// Reads the head of a request and writes the answer.
async fn answer_request(mut stream: TcpStream, watch: &ApplyWatch) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > HEAD_BYTES_MAX || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => ("200 OK", page(&watch.progress())),
        (b"GET" | b"HEAD", _) => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET and HEAD are answered\n".to_owned()),
    };
    let mut answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    if method != b"HEAD" {
        answer += &body;
    }
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

/// Returns the metrics page.
fn page(progress: &ApplyProgress) -> String {
    let mut page = String::new();
    let mut write_metric = |name: &str, kind: &str, help: &str, value: f64| {
        // Writing to a String cannot fail.
        let _ = write!(
            page,
            "# HELP pgspate_apply_{name} {help}\n# TYPE pgspate_apply_{name} {kind}\n\
             pgspate_apply_{name} {value}\n"
        );
    };
    let mut count = |name, help, value: u64| write_metric(name, "counter", help, value as f64);
    count("events_total", "Events committed on the target.", progress.events);
    count("bytes_total", "Bytes of input that held these events.", progress.bytes);
    count("batches_total", "Transactions on the target.", progress.batches);
    count("dead_letters_total", "Events set aside in pgspate.dead_letter.", progress.dead_letters);
    if let Some(lag) = &progress.lag {
        count("reconnects_total", "Connections to the source that were lost.", lag.reconnects);
    }
    let mut gauge = |name, help, value: f64| write_metric(name, "gauge", help, value);
    gauge("batch_events", "Events of the last transaction.", progress.batch_events as f64);
    if let Some(lag) = &progress.lag {
        match lag.messages {
            None => {
                let help = "Bytes of the source's log that are not applied yet.";
                gauge("lag_bytes", help, lag.bytes as f64);
            }
            Some(messages) => {
                let help = "Messages of the topics that are not applied yet.";
                gauge("lag_messages", help, messages as f64);
            }
        }
        let help = "Seconds since the source's log passed the applied position; 0 if nothing is \
                    left to apply.";
        gauge("lag_seconds", help, lag.seconds);
        let help = "Whether the source is connected.";
        gauge("connected", help, f64::from(u8::from(lag.is_connected)));
    }
    if let Some((_, rows)) = &progress.copying {
        let help = "Rows copied so far of the table that is copied before the stream begins.";
        gauge("copied_rows", help, *rows as f64);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_help_and_type_for_each_value() {
        let progress =
            ApplyProgress { events: 12_000_000, batch_events: 3, ..ApplyProgress::default() };
        insta::assert_snapshot!(page(&progress), @"
        # HELP pgspate_apply_events_total Events committed on the target.
        # TYPE pgspate_apply_events_total counter
        pgspate_apply_events_total 12000000
        # HELP pgspate_apply_bytes_total Bytes of input that held these events.
        # TYPE pgspate_apply_bytes_total counter
        pgspate_apply_bytes_total 0
        # HELP pgspate_apply_batches_total Transactions on the target.
        # TYPE pgspate_apply_batches_total counter
        pgspate_apply_batches_total 0
        # HELP pgspate_apply_dead_letters_total Events set aside in pgspate.dead_letter.
        # TYPE pgspate_apply_dead_letters_total counter
        pgspate_apply_dead_letters_total 0
        # HELP pgspate_apply_batch_events Events of the last transaction.
        # TYPE pgspate_apply_batch_events gauge
        pgspate_apply_batch_events 3
        ");
    }
}
