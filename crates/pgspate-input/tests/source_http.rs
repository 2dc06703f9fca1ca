//! Inputs from a server that misbehaves in every way a server on a network does.
//!
//! The server is written out here, so that it can stall, cut connections and swap objects on
//! purpose. It speaks enough HTTP for URLs, and enough S3 for an object store's client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pgspate_base::{Error, ErrorKind};
use pgspate_input::source::{Compression, Input, Options, resolve};
use tokio::runtime::Runtime;

/// What to do with a request.
#[derive(Clone)]
struct Reply {
    status: &'static str,
    etag: Option<String>,
    /// The object; ranges of it are cut out here.
    body: Arc<Vec<u8>>,
    ranges: bool,
    /// Without a length, in chunks.
    chunked: bool,
    /// Close the connection after so many bytes of the body.
    cut: Option<usize>,
    /// Say nothing more after so many bytes of the body, and keep the connection.
    stall: Option<usize>,
}

struct Request {
    head: bool,
    path: String,
    range: Option<Range<usize>>,
    headers: Vec<String>,
    /// Ordinal among the requests, from 0.
    number: usize,
}

struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

impl Server {
    fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let handler: Arc<Handler> = Arc::new(handler);
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
                    // A client may leave at any time.
                    let _ = serve(stream.unwrap(), &*handler, &stop, &counted);
                }));
            }
            connections.into_iter().for_each(|connection| connection.join().unwrap());
        });
        Server { address, stop, count, thread: Some(thread) }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Server {
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
    handler: &Handler,
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
    let request = Request { head, path, range, headers, number };
    answer(stream, &request, handler(&request), stop)
}

fn answer(
    mut stream: TcpStream,
    request: &Request,
    reply: Reply,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let total = reply.body.len();
    let (mut status, mut range, mut lines) = (reply.status, 0..total, String::new());
    if let Some(etag) = &reply.etag {
        lines += &format!("ETag: {etag}\r\nLast-Modified: Sat, 01 Feb 2025 10:00:00 GMT\r\n");
    }
    if let (true, "200 OK", Some(asked)) = (reply.ranges, status, &request.range) {
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
        // Until the client gives up.
        while !stop.load(Ordering::SeqCst) && !matches!(stream.read(&mut [0; 8]), Ok(0)) {}
    } else if reply.chunked && reply.cut.is_none() {
        stream.write_all(b"0\r\n\r\n")?;
    }
    Ok(())
}

fn good(body: &Arc<Vec<u8>>) -> Reply {
    Reply {
        status: "200 OK",
        etag: Some("\"one\"".into()),
        body: Arc::clone(body),
        ranges: true,
        chunked: false,
        cut: None,
        stall: None,
    }
}

fn refusing(status: &'static str, body: &str) -> Reply {
    let body = Arc::new(body.as_bytes().to_vec());
    Reply { status, etag: None, ranges: false, ..good(&body) }
}

fn data(bytes: usize) -> Arc<Vec<u8>> {
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

/// Small ranges and short patience, so that faults are met and over quickly.
fn options() -> Options {
    Options {
        stall: Duration::from_millis(400),
        retry: Duration::from_secs(2),
        range_bytes: 10_000,
        ranges_in_flight: 3,
        ..Options::default()
    }
}

fn s3(server: &Server) -> Options {
    let settings = [
        ("endpoint", server.url("")),
        ("skip_signature", "true".into()),
        ("region", "us-east-1".into()),
    ];
    let store = settings.map(|(key, value)| (key.to_owned(), value)).into();
    Options { store, ..options() }
}

fn open(runtime: &Runtime, spec: &str, options: &Options) -> Result<Input, Error> {
    let mut inputs = resolve(&[spec.to_owned()], options, runtime.handle().clone())?;
    assert_eq!(inputs.len(), 1);
    Ok(inputs.remove(0))
}

fn read(input: &Input) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    let mut reader = input.reader()?;
    match reader.read_to_end(&mut out) {
        Ok(_) => Ok(out),
        Err(error) => Err(pgspate_input::source::error_of(error, "other")),
    }
}

/// The same input as a URL and as an object in S3.
fn both(server: &Server) -> [(String, Options); 2] {
    [(server.url("/b/x.csv"), options()), ("s3://b/x.csv".into(), s3(server))]
}

#[test]
fn objects_are_read_by_ranges_in_order() {
    let (runtime, body) = (runtime(), data(123_456));
    let stored = gzip(&body);
    for (served, kind) in
        [(Arc::clone(&body), Compression::None), (Arc::clone(&stored), Compression::Gzip)]
    {
        let object = Arc::clone(&served);
        let server = Server::start(move |_| good(&object));
        for (spec, options) in both(&server) {
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

#[test]
fn an_empty_object_is_empty() {
    let (runtime, body) = (runtime(), data(0));
    let server = Server::start(move |_| good(&body));
    for (spec, options) in both(&server) {
        let input = open(&runtime, &spec, &options).unwrap();
        assert_eq!(input.stored_bytes(), Some(0));
        assert_eq!(input.peek(10).unwrap(), b"");
        assert_eq!(read(&input).unwrap(), b"");
    }
}

#[test]
fn a_server_without_ranges_is_streamed() {
    let (runtime, body) = (runtime(), data(300_000));
    for (chunked, served) in
        [(false, Arc::clone(&body)), (true, Arc::clone(&body)), (true, gzip(&body))]
    {
        let object = Arc::clone(&served);
        let server = Server::start(move |_| Reply { ranges: false, chunked, ..good(&object) });
        let input = open(&runtime, &server.url("/x.csv?token=secret"), &options()).unwrap();
        assert!(input.name().ends_with("/x.csv?token=..."), "{}", input.name());
        assert_eq!(input.extension().as_deref(), Some("csv"));
        let size = (!chunked).then_some(served.len() as u64);
        assert_eq!(input.stored_bytes(), size);
        assert_eq!(input.peek(10).unwrap(), &body[..10]);
        assert!(read(&input).unwrap() == *body);
        let error = input.ranges().unwrap_err();
        assert!(error.to_string().contains("does not give parts of it"), "{error}");
    }
}

#[test]
fn a_lost_connection_is_made_up_for_by_ranges() {
    let (runtime, body) = (runtime(), data(60_000));
    let object = Arc::clone(&body);
    // Every third answer breaks off, every seventh falls silent.
    let server = Server::start(move |request| Reply {
        cut: (request.number % 3 == 2).then_some(4000),
        stall: (request.number % 7 == 6).then_some(2000),
        ..good(&object)
    });
    for (spec, options) in both(&server) {
        let input = open(&runtime, &spec, &options).unwrap();
        assert!(read(&input).unwrap() == *body, "{spec}");
    }
}

#[test]
fn a_lost_stream_is_an_error() {
    let (runtime, body) = (runtime(), data(60_000));
    for (cut, stall) in [(Some(30_000), None), (None, Some(30_000))] {
        for chunked in [false, true] {
            let object = Arc::clone(&body);
            let server = Server::start(move |_| Reply {
                ranges: false,
                chunked,
                cut,
                stall,
                ..good(&object)
            });
            let input = open(&runtime, &server.url("/x.csv"), &options()).unwrap();
            let error = read(&input).unwrap_err();
            assert!(error.to_string().ends_with("broke off after 30000 bytes"), "{error}");
            assert_eq!(error.kind(), ErrorKind::Source);
        }
    }
}

#[test]
fn a_server_that_stays_silent_is_an_error() {
    let (runtime, body) = (runtime(), data(60_000));
    let object = Arc::clone(&body);
    let server = Server::start(move |request| {
        let is_far = request.range.as_ref().is_some_and(|range| range.start >= 30_000);
        Reply { stall: is_far.then_some(10), ..good(&object) }
    });
    for (spec, options) in both(&server) {
        let input = open(&runtime, &spec, &options).unwrap();
        let start = Instant::now();
        let error = read(&input).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Source);
        assert_eq!(error.place().unwrap().source.as_deref(), Some(spec.as_str()));
        // Far more than stall and retry allow together, far less than for ever.
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn an_object_that_changes_meanwhile_is_an_error() {
    let runtime = runtime();
    // A new tag, and a new size under the old tag.
    for (etag, size) in [("\"two\"", 60_000), ("\"one\"", 60_001)] {
        let (old, new) = (data(60_000), data(size));
        let server = Server::start(move |request| {
            let is_far = request.range.as_ref().is_some_and(|range| range.start >= 30_000);
            match is_far {
                true => Reply { etag: Some(etag.into()), ..good(&new) },
                false => good(&old),
            }
        });
        for (spec, options) in both(&server) {
            let input = open(&runtime, &spec, &options).unwrap();
            let error = read(&input).unwrap_err();
            let expected = format!("\"{spec}\" changed while it was being read");
            assert_eq!(error.to_string(), expected);
        }
    }
}

#[test]
fn s3_is_asked_for_the_version_that_was_resolved() {
    let (runtime, body) = (runtime(), data(20_000));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (object, log) = (Arc::clone(&body), Arc::clone(&seen));
    let server = Server::start(move |request| {
        let tag = request.headers.iter().find(|line| line.starts_with("if-match:"));
        log.lock().unwrap().push((request.head, tag.cloned()));
        match request.head {
            true => good(&object),
            false => refusing("412 Precondition Failed", ""),
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
fn refusals_say_what_to_do() {
    let runtime = runtime();
    let server = Server::start(|request| match request.path.as_str() {
        "/forbidden" => refusing("403 Forbidden", "no"),
        "/busy" => refusing("503 Service Unavailable", "later"),
        "/odd" => refusing("418 I'm a teapot", ""),
        _ => refusing("404 Not Found", ""),
    });
    for (path, message) in [
        ("/forbidden", "access to \"URL\" was denied (HTTP status 403)"),
        ("/busy", "the server refused \"URL\": 503 Service Unavailable"),
        ("/odd", "the server refused \"URL\": 418 I'm a teapot"),
        ("/gone", "\"URL\" does not exist (HTTP status 404)"),
    ] {
        let url = server.url(path);
        let error = open(&runtime, &url, &options()).unwrap_err();
        assert_eq!(error.to_string(), message.replace("URL", &url));
        assert_eq!(error.kind(), ErrorKind::Source);
    }
    // Refusals that time does not heal are not repeated.
    let before = server.count.load(Ordering::SeqCst);
    open(&runtime, &server.url("/forbidden"), &options()).unwrap_err();
    assert_eq!(server.count.load(Ordering::SeqCst), before + 1);
}

#[test]
fn headers_can_be_given_and_secrets_are_not_shown() {
    let (runtime, body) = (runtime(), data(100));
    let object = Arc::clone(&body);
    let server = Server::start(move |request| {
        match request.headers.iter().any(|line| line == "x-key: open sesame") {
            true => good(&object),
            false => refusing("401 Unauthorized", ""),
        }
    });
    let url = server.url("/x.csv").replace("http://", "http://user:hunter2@");
    let error = open(&runtime, &url, &options()).unwrap_err();
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    let store = vec![("header.X-Key".to_owned(), "open sesame".to_owned())];
    let input = open(&runtime, &url, &Options { store, ..options() }).unwrap();
    assert_eq!(input.name(), server.url("/x.csv"));
    assert!(read(&input).unwrap() == *body);
}

#[test]
fn nobody_there_is_an_error() {
    let runtime = runtime();
    // A port that was just free, and one that does not speak TLS.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Server::start(|_| refusing("400 Bad Request", ""));
    let quick = Options { retry: Duration::from_millis(300), ..options() };
    for url in [format!("http://{free}/x"), server.url("/x").replace("http:", "https:")] {
        let error = open(&runtime, &url, &quick).unwrap_err();
        assert_eq!(error.to_string(), format!("could not fetch \"{url}\""));
        assert!(std::error::Error::source(&error).is_some());
    }
    let nobody = Options { store: s3(&server).store, ..quick };
    let mut nobody = nobody;
    nobody.store[0].1 = format!("http://{free}");
    let error = open(&runtime, "s3://b/k", &nobody).unwrap_err();
    assert_eq!(error.to_string(), "could not read \"s3://b/k\" from S3");
    assert!(error.hint_text().unwrap().contains("AWS_ENDPOINT_URL"), "{error:?}");
}

#[test]
fn a_reader_dropped_early_stops_asking() {
    let (runtime, body) = (runtime(), data(400_000));
    for served in [Arc::clone(&body), gzip(&body)] {
        let object = Arc::clone(&served);
        let server = Server::start(move |request| {
            let is_far = request.range.as_ref().is_some_and(|range| range.start >= 20_000);
            Reply { stall: is_far.then_some(10), ..good(&object) }
        });
        let patient = |options: Options| Options { stall: Duration::from_secs(600), ..options };
        for (spec, options) in both(&server) {
            let input = open(&runtime, &spec, &patient(options)).unwrap();
            let mut reader = input.reader().unwrap();
            if served == body {
                reader.read_exact(&mut [0; 1000]).unwrap();
            }
            // The server is silent now; waiting for it would take ten minutes. With a decoding
            // thread, dropping waits for it.
            drop(reader);
        }
        assert!(server.count.load(Ordering::SeqCst) < 20);
    }
}
