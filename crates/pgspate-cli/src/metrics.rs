//! `--metrics`: what a stream does, for Prometheus.
//!
//! A responder for one page: it reads a request's head and closes. A scrape costs the run nothing
//! but a look at its counters, and one that says nothing is left after a few seconds.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pgspate::apply::{Progress, Watch};
use pgspate::{Error, Kind, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests at a time; others wait.
const REQUESTS_MAX: usize = 16;

/// Serves metrics until it is dropped.
pub struct Server(JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts to serve the metrics of the stream that is watched, at `http://ADDRESS/metrics`.
///
/// # Errors
/// An address that cannot be listened on.
pub fn serve(address: SocketAddr, watch: &Arc<Watch>, runtime: &Handle) -> Result<Server> {
    let listener = runtime.block_on(TcpListener::bind(address)).map_err(|error| {
        Error::new(Kind::Usage, format!("could not listen on {address}"))
            .hint("Name another address with `--metrics`.")
            .because(error)
    })?;
    let watch = Arc::clone(watch);
    Ok(Server(runtime.spawn(async move {
        let room = Arc::new(Semaphore::new(REQUESTS_MAX));
        loop {
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let watch = Arc::clone(&watch);
                    tokio::spawn(async move {
                        // One who has gone away needs no answer.
                        let _ = timeout(PATIENCE, answer(stream, &watch)).await;
                        drop(permit);
                    });
                }
                // Too many open files, most likely: they will be fewer.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    })))
}

async fn answer(mut stream: TcpStream, watch: &Watch) -> std::io::Result<()> {
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
        _ => ("405 Method Not Allowed", "only GET is answered\n".to_owned()),
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

/// The page.
fn page(progress: &Progress) -> String {
    let mut page = String::new();
    let mut put = |name: &str, kind: &str, help: &str, value: f64| {
        // Writing to a String cannot fail.
        let _ = write!(
            page,
            "# HELP pgspate_apply_{name} {help}\n# TYPE pgspate_apply_{name} {kind}\n\
             pgspate_apply_{name} {value}\n"
        );
    };
    let mut count = |name, help, value: u64| put(name, "counter", help, value as f64);
    count("events_total", "Events committed on the target.", progress.events);
    count("bytes_total", "Bytes of input that the events were.", progress.bytes);
    count("batches_total", "Transactions on the target.", progress.batches);
    count("dead_letters_total", "Events set aside in pgspate.dead_letter.", progress.dead_letters);
    if let Some(lag) = &progress.lag {
        count("reconnects_total", "Connections to the source that were lost.", lag.reconnects);
    }
    let mut gauge = |name, help, value: f64| put(name, "gauge", help, value);
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
        let help = "Seconds since the source's log went beyond what is applied; 0 when nothing is \
                    left to apply.";
        gauge("lag_seconds", help, lag.seconds);
        let help = "Whether the source is connected.";
        gauge("connected", help, f64::from(u8::from(lag.is_connected)));
    }
    if let Some((_, rows)) = &progress.copying {
        let help = "Rows copied of the table that is copied before the stream begins.";
        gauge("copied_rows", help, *rows as f64);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_help_and_type_for_each_value() {
        let progress = Progress { events: 12_000_000, batch_events: 3, ..Progress::default() };
        insta::assert_snapshot!(page(&progress), @"
        # HELP pgspate_apply_events_total Events committed on the target.
        # TYPE pgspate_apply_events_total counter
        pgspate_apply_events_total 12000000
        # HELP pgspate_apply_bytes_total Bytes of input that the events were.
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
