//! Tests of inputs from a web server with all kinds of faults.
//!
//! The server is implemented here, so that it can stall, cut connections and replace objects. It
//! implements enough of HTTP for URLs, and enough of S3 for the client of an object store.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pgspate_base::{Error, ErrorKind};
use pgspate_input::source::{Compression, Input, RangeReader, SourceOptions, resolve};
use tokio::runtime::Runtime;

/// The reply to one request, with its faults.
#[derive(Clone)]
struct ScriptedReply {
    status: &'static str,
    etag: Option<String>,
    /// The whole object, from which ranges are cut.
    body: Arc<Vec<u8>>,
    supports_ranges: bool,
    /// Whether to send the body in chunks, without a length.
    chunked: bool,
    /// Close the connection after this number of bytes of the body.
    cut: Option<usize>,
    /// Stop sending after this number of bytes of the body, and keep the connection open.
    stall: Option<usize>,
}

/// A request as the server received it.
struct ScriptedRequest {
    head: bool,
    path: String,
    range: Option<Range<usize>>,
    headers: Vec<String>,
    /// The number of the request, from 0.
    number: usize,
}

/// A web server on a thread of its own, whose handler decides each reply.
struct ScriptedServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

type ReplyHandler = dyn Fn(&ScriptedRequest) -> ScriptedReply + Send + Sync;

impl ScriptedServer {
    fn start(
        handler: impl Fn(&ScriptedRequest) -> ScriptedReply + Send + Sync + 'static,
    ) -> ScriptedServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let handler: Arc<ReplyHandler> = Arc::new(handler);
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&count));
        let thread = std::thread::spawn(move || {
            let mut connections = Vec::new();
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let (handler, stop) = (Arc::clone(&handler), Arc::clone(&stopped));
                let counted = Arc::clone(&counted);
                connections.push(std::thread::spawn(move || {
                    // A client may disconnect at any time.
                    let _ = serve(stream.unwrap(), &*handler, &stop, &counted);
                }));
            }
            connections.into_iter().for_each(|connection| connection.join().unwrap());
        });
        ScriptedServer { address, stop, count, thread: Some(thread) }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let result = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            result.unwrap();
        }
    }
}

fn serve(
    stream: TcpStream,
    handler: &ReplyHandler,
    stop: &AtomicBool,
    count: &AtomicUsize,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut headers = Vec::new();
    for line in lines {
        let line = line?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        headers.push(line);
    }
    let mut words = first.split(' ');
    let head = words.next() == Some("HEAD");
    let path = words.next().unwrap_or_default().to_owned();
    let range = headers.iter().find_map(|line| line.strip_prefix("range: bytes="));
    let range = range
        .and_then(|range| range.split_once('-'))
        .map(|(first, last)| first.parse::<usize>().unwrap()..last.parse::<usize>().unwrap() + 1);
    let number = count.fetch_add(1, Ordering::SeqCst);
    let request = ScriptedRequest { head, path, range, headers, number };
    send_reply(stream, &request, handler(&request), stop)
}

fn send_reply(
    mut stream: TcpStream,
    request: &ScriptedRequest,
    reply: ScriptedReply,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let total = reply.body.len();
    let (mut status, mut range, mut lines) = (reply.status, 0..total, String::new());
    if let Some(etag) = &reply.etag {
        lines += &format!("ETag: {etag}\r\nLast-Modified: Sat, 01 Feb 2025 10:00:00 GMT\r\n");
    }
    if let (true, "200 OK", Some(asked)) = (reply.supports_ranges, status, &request.range) {
        if asked.start >= total {
            (status, range) = ("416 Range Not Satisfiable", 0..0);
            lines += &format!("Content-Range: bytes */{total}\r\n");
        } else {
            (status, range) = ("206 Partial Content", asked.start..asked.end.min(total));
            let last = range.end - 1;
            lines += &format!("Content-Range: bytes {}-{last}/{total}\r\n", range.start);
        }
    }
    let body = &reply.body[range];
    lines += &match reply.chunked {
        true => "Transfer-Encoding: chunked\r\n".to_owned(),
        false => format!("Content-Length: {}\r\n", body.len()),
    };
    write!(stream, "HTTP/1.1 {status}\r\n{lines}Connection: close\r\n\r\n")?;
    if request.head {
        return Ok(());
    }
    let sent = &body[..reply.cut.or(reply.stall).unwrap_or(body.len()).min(body.len())];
    for piece in sent.chunks(if reply.chunked { 3000 } else { 1 << 20 }) {
        if reply.chunked {
            write!(stream, "{:x}\r\n", piece.len())?;
        }
        stream.write_all(piece)?;
        if reply.chunked {
            stream.write_all(b"\r\n")?;
        }
    }
    if reply.stall.is_some() {
        stream.set_read_timeout(Some(Duration::from_millis(20)))?;
        // Wait until the client disconnects.
        while !stop.load(Ordering::SeqCst) && !matches!(stream.read(&mut [0; 8]), Ok(0)) {}
    } else if reply.chunked && reply.cut.is_none() {
        stream.write_all(b"0\r\n\r\n")?;
    }
    Ok(())
}

fn whole_object(body: &Arc<Vec<u8>>) -> ScriptedReply {
    ScriptedReply {
        status: "200 OK",
        etag: Some("\"one\"".into()),
        body: Arc::clone(body),
        supports_ranges: true,
        chunked: false,
        cut: None,
        stall: None,
    }
}

fn status_reply(status: &'static str, body: &str) -> ScriptedReply {
    let body = Arc::new(body.as_bytes().to_vec());
    ScriptedReply { status, etag: None, supports_ranges: false, ..whole_object(&body) }
}

fn random_letters(bytes: usize) -> Arc<Vec<u8>> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b'a' + (state >> 24) as u8 % 26
    };
    Arc::new(std::iter::repeat_with(next).take(bytes).collect())
}

fn gzip(data: &[u8]) -> Arc<Vec<u8>> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(data).unwrap();
    Arc::new(out.finish().unwrap())
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Options with small ranges and short timeouts, so that faults occur and end quickly.
fn options() -> SourceOptions {
    SourceOptions {
        stall: Duration::from_secs(1),
        retry: Duration::from_secs(5),
        range_bytes: 10_000,
        ranges_in_flight: 3,
        ..SourceOptions::default()
    }
}

fn s3(server: &ScriptedServer) -> SourceOptions {
    let settings = [
        ("endpoint", server.url("")),
        ("skip_signature", "true".into()),
        ("region", "us-east-1".into()),
    ];
    let store = settings.map(|(key, value)| (key.to_owned(), value)).into();
    SourceOptions { store, ..options() }
}

fn open(runtime: &Runtime, spec: &str, options: &SourceOptions) -> Result<Input, Error> {
    let mut inputs = resolve(&[spec.to_owned()], options, runtime.handle().clone())?;
    assert_eq!(inputs.len(), 1);
    Ok(inputs.remove(0))
}

fn read(input: &Input) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    let mut reader = input.reader()?;
    match reader.read_to_end(&mut out) {
        Ok(_) => Ok(out),
        Err(error) => Err(pgspate_input::source::read_error(error, "other")),
    }
}

/// Returns names and options of the same input as a URL and as an object in S3.
fn http_and_s3(server: &ScriptedServer) -> [(String, SourceOptions); 2] {
    [(server.url("/b/x.csv"), options()), ("s3://b/x.csv".into(), s3(server))]
}

#[test]
fn objects_are_read_by_ranges_in_order() {
    let (runtime, body) = (runtime(), random_letters(123_456));
    let stored = gzip(&body);
    for (served, kind) in
        [(Arc::clone(&body), Compression::None), (Arc::clone(&stored), Compression::Gzip)]
    {
        let object = Arc::clone(&served);
        let server = ScriptedServer::start(move |_| whole_object(&object));
        for (spec, options) in http_and_s3(&server) {
            let input = open(&runtime, &spec, &options).unwrap();
            assert_eq!(input.name(), spec);
            assert_eq!(input.stored_bytes(), Some(served.len() as u64));
            assert_eq!(input.compression().unwrap(), kind);
            assert_eq!(input.peek(20_000).unwrap(), &body[..20_000]);
            let mut reader = input.reader().unwrap();
            let progress = reader.progress();
            let mut out = Vec::new();
            while reader.read_into(&mut out, 777).unwrap() > 0 {}
            assert!(out == *body);
            assert_eq!(progress.stored(), served.len() as u64);
            let ranges = input.ranges().unwrap();
            assert_eq!(ranges.read(5, 30_000).unwrap(), &served[5..30_005]);
            assert!(ranges.read(served.len() as u64 - 1, 2).is_err());
            assert!(input.fingerprint().unwrap().ends_with(":one"));
        }
    }
}

/// Returns how many requests the server gets while `read` reads ranges of an object of `len` bytes.
fn requests_for_ranges(len: usize, read: impl Fn(&dyn RangeReader, &[u8])) -> usize {
    let (runtime, body) = (runtime(), random_letters(len));
    let object = Arc::clone(&body);
    let server = ScriptedServer::start(move |_| whole_object(&object));
    let input = open(&runtime, "s3://b/x.parquet", &s3(&server)).unwrap();
    let before = server.count.load(Ordering::SeqCst);
    read(input.ranges().unwrap().as_ref(), &body);
    server.count.load(Ordering::SeqCst) - before
}

#[test]
fn ranges_of_an_object_need_few_requests() {
    let small = requests_for_ranges(300_000, |ranges, body| {
        for start in [0, 299_996, 150_000, 200_000] {
            assert_eq!(ranges.read(start as u64, 4).unwrap(), &body[start..start + 4]);
        }
        let each = ranges.read_each(&[(7, 100), (1000, 5)]).unwrap();
        assert_eq!(each, [&body[7..107], &body[1000..1005]]);
    });
    assert_eq!(small, 1);
    let large = requests_for_ranges(3 << 20, |ranges, body| {
        let len = body.len();
        for start in [len - 4, len - 40_000, len - 8] {
            assert_eq!(ranges.read(start as u64, 4).unwrap(), &body[start..start + 4]);
        }
        // Two requests: the third range is far from the others.
        let wanted = [(10, 70_000), (100_000, 60_000), (2_000_000, 1_000)];
        let each = ranges.read_each(&wanted).unwrap();
        for (bytes, (start, len)) in each.iter().zip(wanted) {
            assert_eq!(bytes, &body[start as usize..start as usize + len]);
        }
        assert!(ranges.read_each(&[(0, 1), (len as u64 - 1, 2)]).is_err());
    });
    assert_eq!(large, 3);
}

#[test]
fn an_empty_object_is_empty() {
    let (runtime, body) = (runtime(), random_letters(0));
    let server = ScriptedServer::start(move |_| whole_object(&body));
    for (spec, options) in http_and_s3(&server) {
        let input = open(&runtime, &spec, &options).unwrap();
        assert_eq!(input.stored_bytes(), Some(0));
        assert_eq!(input.peek(10).unwrap(), b"");
        assert_eq!(read(&input).unwrap(), b"");
    }
}

#[test]
fn a_server_without_ranges_is_streamed() {
    let (runtime, body) = (runtime(), random_letters(300_000));
    for (chunked, served) in
        [(false, Arc::clone(&body)), (true, Arc::clone(&body)), (true, gzip(&body))]
    {
        let object = Arc::clone(&served);
        let server = ScriptedServer::start(move |_| ScriptedReply {
            supports_ranges: false,
            chunked,
            ..whole_object(&object)
        });
        let input = open(&runtime, &server.url("/x.csv?token=secret"), &options()).unwrap();
        assert!(input.name().ends_with("/x.csv?token=..."), "{}", input.name());
        assert_eq!(input.extension().as_deref(), Some("csv"));
        let size = (!chunked).then_some(served.len() as u64);
        assert_eq!(input.stored_bytes(), size);
        assert_eq!(input.peek(10).unwrap(), &body[..10]);
        assert!(read(&input).unwrap() == *body);
        let error = input.ranges().unwrap_err();
        assert!(error.to_string().contains("does not support range requests"), "{error}");
    }
}

#[test]
fn a_failed_range_is_requested_again() {
    let (runtime, body) = (runtime(), random_letters(60_000));
    let object = Arc::clone(&body);
    // Every third response is cut off, and every seventh stalls.
    let server = ScriptedServer::start(move |request| ScriptedReply {
        cut: (request.number % 3 == 2).then_some(4000),
        stall: (request.number % 7 == 6).then_some(2000),
        ..whole_object(&object)
    });
    for (spec, options) in http_and_s3(&server) {
        let input = open(&runtime, &spec, &options).unwrap();
        assert!(read(&input).unwrap() == *body, "{spec}");
    }
}

#[test]
fn a_lost_connection_without_ranges_is_an_error() {
    let (runtime, body) = (runtime(), random_letters(60_000));
    for (cut, stall) in [(Some(30_000), None), (None, Some(30_000))] {
        for chunked in [false, true] {
            let object = Arc::clone(&body);
            let server = ScriptedServer::start(move |_| ScriptedReply {
                supports_ranges: false,
                chunked,
                cut,
                stall,
                ..whole_object(&object)
            });
            let input = open(&runtime, &server.url("/x.csv"), &options()).unwrap();
            let error = read(&input).unwrap_err();
            assert!(error.to_string().ends_with(", after 30000 bytes"), "{error}");
            assert_eq!(error.kind(), ErrorKind::Source);
        }
    }
}

#[test]
fn a_server_that_always_stalls_is_an_error() {
    let (runtime, body) = (runtime(), random_letters(60_000));
    let object = Arc::clone(&body);
    let server = ScriptedServer::start(move |request| {
        let is_far = request.range.as_ref().is_some_and(|range| range.start >= 30_000);
        ScriptedReply { stall: is_far.then_some(10), ..whole_object(&object) }
    });
    for (spec, options) in http_and_s3(&server) {
        let input = open(&runtime, &spec, &options).unwrap();
        let start = Instant::now();
        let error = read(&input).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Source);
        assert_eq!(error.place().unwrap().source.as_deref(), Some(spec.as_str()));
        // This limit is far above the sum of `stall` and `retry`.
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn an_object_that_changes_while_it_is_read_is_an_error() {
    let runtime = runtime();
    // First a new entity tag, then a new size with the old entity tag.
    for (etag, size) in [("\"two\"", 60_000), ("\"one\"", 60_001)] {
        let (old, new) = (random_letters(60_000), random_letters(size));
        let server = ScriptedServer::start(move |request| {
            let is_far = request.range.as_ref().is_some_and(|range| range.start >= 30_000);
            match is_far {
                true => ScriptedReply { etag: Some(etag.into()), ..whole_object(&new) },
                false => whole_object(&old),
            }
        });
        for (spec, options) in http_and_s3(&server) {
            let input = open(&runtime, &spec, &options).unwrap();
            let error = read(&input).unwrap_err();
            let expected = format!("\"{spec}\" changed while it was being read");
            assert_eq!(error.to_string(), expected);
        }
    }
}

/// Only a strong entity tag proves that ranges are of one version.
#[test]
fn a_range_without_the_strong_tag_is_an_error() {
    let (runtime, body) = (runtime(), random_letters(60_000));
    for tag in [None, Some("W/\"one\"".to_owned())] {
        let object = Arc::clone(&body);
        let server = ScriptedServer::start(move |request| {
            let is_far = request.range.as_ref().is_some_and(|range| range.start >= 30_000);
            let whole = whole_object(&object);
            if is_far { ScriptedReply { etag: tag.clone(), ..whole } } else { whole }
        });
        let input = open(&runtime, &server.url("/x.csv"), &options()).unwrap();
        let error = read(&input).unwrap_err().to_string();
        assert!(error.contains("changed while it was being read"), "{error}");
    }
}

#[test]
fn requests_to_s3_name_the_version_that_was_resolved() {
    let (runtime, body) = (runtime(), random_letters(20_000));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (object, log) = (Arc::clone(&body), Arc::clone(&seen));
    let server = ScriptedServer::start(move |request| {
        let tag = request.headers.iter().find(|line| line.starts_with("if-match:"));
        log.lock().unwrap().push((request.head, tag.cloned()));
        match request.head {
            true => whole_object(&object),
            false => status_reply("412 Precondition Failed", ""),
        }
    });
    let input = open(&runtime, "s3://b/x.csv", &s3(&server)).unwrap();
    let error = read(&input).unwrap_err();
    assert_eq!(error.to_string(), "\"s3://b/x.csv\" changed while it was being read");
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], (true, None));
    assert!(seen[1..].iter().all(|(_, tag)| tag.as_deref() == Some("if-match: \"one\"")));
}

#[test]
fn refused_requests_have_clear_errors() {
    let runtime = runtime();
    let server = ScriptedServer::start(|request| match request.path.as_str() {
        "/forbidden" => status_reply("403 Forbidden", "no"),
        "/busy" => status_reply("503 Service Unavailable", "later"),
        "/odd" => status_reply("418 I'm a teapot", ""),
        "/later" => status_reply("202 Accepted", ""),
        _ => status_reply("404 Not Found", ""),
    });
    for (path, message) in [
        ("/forbidden", "access to \"URL\" was denied (HTTP status 403)"),
        ("/busy", "the server refused \"URL\": 503 Service Unavailable"),
        ("/odd", "the server refused \"URL\": 418 I'm a teapot"),
        ("/later", "the server refused \"URL\": 202 Accepted"),
        ("/gone", "\"URL\" does not exist (HTTP status 404)"),
    ] {
        let url = server.url(path);
        let error = open(&runtime, &url, &options()).unwrap_err();
        assert_eq!(error.to_string(), message.replace("URL", &url));
        assert_eq!(error.kind(), ErrorKind::Source);
    }
    // A permanent refusal is not retried.
    let before = server.count.load(Ordering::SeqCst);
    open(&runtime, &server.url("/forbidden"), &options()).unwrap_err();
    assert_eq!(server.count.load(Ordering::SeqCst), before + 1);
}

#[test]
fn headers_are_sent_and_secrets_are_not_shown() {
    let (runtime, body) = (runtime(), random_letters(100));
    let object = Arc::clone(&body);
    let server = ScriptedServer::start(move |request| {
        match request.headers.iter().any(|line| line == "x-key: open sesame") {
            true => whole_object(&object),
            false => status_reply("401 Unauthorized", ""),
        }
    });
    let url = server.url("/x.csv").replace("http://", "http://user:hunter2@");
    let error = open(&runtime, &url, &options()).unwrap_err();
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    let store = vec![("header.X-Key".to_owned(), "open sesame".to_owned())];
    let input = open(&runtime, &url, &SourceOptions { store, ..options() }).unwrap();
    assert_eq!(input.name(), server.url("/x.csv"));
    assert!(read(&input).unwrap() == *body);
}

#[test]
fn an_unreachable_server_is_an_error() {
    let runtime = runtime();
    // First a free port, then a port without TLS.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = ScriptedServer::start(|_| status_reply("400 Bad ScriptedRequest", ""));
    let quick = SourceOptions { retry: Duration::from_millis(300), ..options() };
    for url in [format!("http://{free}/x"), server.url("/x").replace("http:", "https:")] {
        let error = open(&runtime, &url, &quick).unwrap_err();
        assert_eq!(error.to_string(), format!("could not fetch \"{url}\""));
        assert!(std::error::Error::source(&error).is_some());
    }
    let unreachable = SourceOptions { store: s3(&server).store, ..quick };
    let mut unreachable = unreachable;
    unreachable.store[0].1 = format!("http://{free}");
    let error = open(&runtime, "s3://b/k", &unreachable).unwrap_err();
    assert_eq!(error.to_string(), "could not read \"s3://b/k\" from S3");
    assert!(error.hint_text().unwrap().contains("AWS_ENDPOINT_URL"), "{error:?}");
}

#[test]
fn a_reader_dropped_early_sends_no_more_requests() {
    let (runtime, body) = (runtime(), random_letters(400_000));
    for served in [Arc::clone(&body), gzip(&body)] {
        let object = Arc::clone(&served);
        let server = ScriptedServer::start(move |request| {
            let is_far = request.range.as_ref().is_some_and(|range| range.start >= 20_000);
            ScriptedReply { stall: is_far.then_some(10), ..whole_object(&object) }
        });
        let stall = Duration::from_secs(600);
        let patient = |options: SourceOptions| SourceOptions { stall, ..options };
        for (spec, options) in http_and_s3(&server) {
            let input = open(&runtime, &spec, &patient(options)).unwrap();
            let mut reader = input.reader().unwrap();
            if served == body {
                reader.read_exact(&mut [0; 1000]).unwrap();
            }
            // The server stalls now. Waiting for the server would take ten minutes, and dropping
            // the reader waits for the decompression thread.
            drop(reader);
        }
        assert!(server.count.load(Ordering::SeqCst) < 20);
    }
}
