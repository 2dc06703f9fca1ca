//! Files behind web servers that say little of them: no length, no version, or only a time.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::support::{LoadCase, Run, finish, session, spawn, wait_until};

/// How the server says where a body ends.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum BodyFraming {
    Length,
    Chunked,
    /// With the connection.
    Close,
}

/// The response that the server gives until a test replaces it.
#[derive(Clone)]
struct ServedBody {
    framing: BodyFraming,
    body: Vec<u8>,
    /// The connection closes after this many bytes of the body.
    cut: Option<usize>,
    headers: &'static str,
    /// What the first request gets to see instead.
    first: Option<Vec<u8>>,
}

/// A server on loopback, which ends with the process.
pub(crate) struct BodyServer {
    address: SocketAddr,
    page: Arc<Mutex<ServedBody>>,
}

impl BodyServer {
    pub(crate) fn start(framing: BodyFraming, body: impl Into<Vec<u8>>) -> BodyServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let page = ServedBody { framing, body: body.into(), cut: None, headers: "", first: None };
        let page = Arc::new(Mutex::new(page));
        let shared = Arc::clone(&page);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let page = Arc::clone(&shared);
                // A client may leave at any time.
                std::thread::spawn(move || drop(answer(&stream.unwrap(), &page)));
            }
        });
        BodyServer { address, page }
    }

    fn url(&self) -> String {
        format!("http://{}/t.csv", self.address)
    }

    fn put(&self, body: impl Into<Vec<u8>>) {
        self.page.lock().unwrap().body = body.into();
    }

    fn change(&self, change: impl FnOnce(&mut ServedBody)) {
        change(&mut self.page.lock().unwrap());
    }

    pub(crate) fn load(&self, case: &LoadCase, args: &str) -> Run {
        case.load(&format!("{} --table t --quiet {args}", self.url()))
    }
}

fn answer(mut stream: &TcpStream, page: &Mutex<ServedBody>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let mut is_probe = false;
    while let Some(line) = lines.next().transpose()?.filter(|line| !line.is_empty()) {
        is_probe |= line.to_ascii_lowercase().starts_with("range:");
    }
    let mut page = page.lock().unwrap().clone_for(is_probe);
    let body = std::mem::take(&mut page.body);
    let framing = match page.framing {
        BodyFraming::Length => format!("Content-Length: {}\r\n", body.len()),
        BodyFraming::Chunked => "Transfer-Encoding: chunked\r\n".to_owned(),
        BodyFraming::Close => String::new(),
    };
    let headers = page.headers;
    write!(stream, "HTTP/1.1 200 OK\r\n{headers}{framing}Connection: close\r\n\r\n")?;
    let sent = &body[..page.cut.unwrap_or(body.len())];
    for piece in sent.chunks(100_000) {
        if page.framing == BodyFraming::Chunked {
            write!(stream, "{:x}\r\n", piece.len())?;
        }
        stream.write_all(piece)?;
        if page.framing == BodyFraming::Chunked {
            stream.write_all(b"\r\n")?;
        }
    }
    if page.framing == BodyFraming::Chunked && page.cut.is_none() {
        stream.write_all(b"0\r\n\r\n")?;
    }
    Ok(())
}

impl ServedBody {
    /// What this request gets. The first one that is no probe may get something else.
    fn clone_for(&mut self, is_probe: bool) -> ServedBody {
        let mut page = self.clone();
        if let Some(first) = self.first.take_if(|_| !is_probe) {
            page.body = first;
        }
        page
    }
}

fn rows(version: &str, rows: u64) -> String {
    let mut text = "id,version,pad\n".to_owned();
    (0..rows).for_each(|id| writeln!(text, "{id},{version},{:>990}", "").unwrap());
    text
}

fn case() -> LoadCase {
    LoadCase::new("create table t (id bigint, version text, pad text)")
}

fn count(case: &LoadCase) -> String {
    case.value("select concat_ws(' ', count(*), count(distinct id), max(version)) from t")
}

#[test]
fn a_body_whose_end_nobody_tells_is_refused() {
    let case = case();
    let text = rows("a", 20_000);
    let web = BodyServer::start(BodyFraming::Close, text.clone());
    web.change(|page| page.cut = Some(text.len() / 2));
    for commit in ["end", "chunk"] {
        let said = web.load(&case, &format!("--commit {commit}")).refusal();
        assert!(said.contains("the server does not say where"), "{said}");
        assert!(said.contains("`--source-option unframed=allow`"), "{said}");
        assert_eq!(count(&case), "0 0");
    }
    web.change(|page| page.cut = None);
    let said = web.load(&case, "--source-option unframed=perhaps").refusal();
    assert!(said.contains("invalid value for source option \"unframed\": \"perhaps\""), "{said}");
    web.load(&case, "--source-option unframed=allow").success();
    assert_eq!(count(&case), "20000 20000 a");
    // Compressed data tell their own end.
    case.db.run("truncate t");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    web.put(gzip.clone());
    web.change(|page| page.cut = Some(gzip.len() - 5));
    let said = web.load(&case, "--commit end").refusal();
    assert!(said.contains("gzip data ends early"), "{said}");
    assert_eq!(count(&case), "0 0");
    let said = web.load(&case, "--commit chunk --lanes 1").refusal();
    assert!(said.contains("gzip data ends early"), "{said}");
    assert_ne!(count(&case), "0 0");
    // What is written of it is what the whole one begins with.
    web.change(|page| page.cut = None);
    web.load(&case, "").success();
    assert_eq!(count(&case), "20000 20000 a");
}

#[test]
fn a_body_that_ends_before_its_end_is_an_error() {
    let text = rows("a", 5_000);
    for framing in [BodyFraming::Length, BodyFraming::Chunked] {
        let case = case();
        let web = BodyServer::start(framing, text.clone());
        web.change(|page| page.cut = Some(text.len() / 2));
        let said = web.load(&case, "").refusal();
        assert!(said.contains("lost the connection while reading"), "{said}");
        assert_eq!(count(&case), "0 0");
    }
}

#[test]
fn an_export_is_read_whole_before_it_is_said_to_be_loaded() {
    for headers in ["", "Last-Modified: Sat, 01 Feb 2025 10:00:00 GMT\r\n", "ETag: W/\"1\"\r\n"] {
        let case = case();
        let web = BodyServer::start(BodyFraming::Chunked, rows("a", 3_000));
        web.change(|page| page.headers = headers);
        web.load(&case, "").success();
        let url = web.url();
        let again = case.load(&format!("{url} --table t"));
        assert!(again.success().contains("job 1 has loaded this, 3000 rows"), "{}", again.stderr);
        // The file has grown by a row, and its first 64 KiB are unchanged.
        web.put(rows("a", 3_001));
        let said = web.load(&case, "").refusal();
        assert!(said.contains("contains rows that job 1 has already loaded"), "{said}");
        // Of the same length, with another row far behind.
        web.put(rows("a", 3_000).replace("2999,a", "2999,b"));
        let said = web.load(&case, "").refusal();
        assert!(said.contains("contains rows that job 1 has already loaded"), "{said}");
        assert_eq!(count(&case), "3000 3000 a");
        // Other rows are loaded as such.
        web.put(rows("c", 10));
        web.load(&case, "").success();
        assert_eq!(count(&case), "3010 3000 c");
    }
}

/// A load with chunks in the table that was killed.
fn killed(web: &BodyServer) -> LoadCase {
    let case = case();
    case.db.run("create unique index held on t (id) where id = 11000");
    let (runtime, holder) = session(&case.db.dsn());
    let sql = "begin; insert into t values (11000, 'held')";
    runtime.block_on(holder.batch_execute(sql)).unwrap();
    let args = format!("{} --table t --commit chunk --lanes 1 --quiet", web.url());
    let mut child = spawn(&mut case.load_command(&args));
    let waits = "select count(*) from pg_stat_activity \
                 where wait_event_type = 'Lock' and datname = current_database()";
    wait_until("the load waits for the key", || case.value(waits) != "0");
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    case.db.run("drop index held");
    assert_ne!(count(&case), "0 0");
    case
}

#[test]
fn versions_are_not_mixed_when_a_load_goes_on() {
    for framing in [BodyFraming::Chunked, BodyFraming::Length] {
        let text = rows("a", 16_000);
        let web = BodyServer::start(framing, text.clone());
        let case = killed(&web);
        let before = count(&case);
        // Other rows where chunks are written.
        web.put(rows("b", 16_000));
        let said = web.load(&case, "--commit chunk").refusal();
        assert!(said.contains("its sources or options have changed"), "{said}");
        assert_eq!(count(&case), before);
        // The same rows and more.
        web.put(rows("a", 16_001));
        web.load(&case, "--commit chunk").success();
        assert_eq!(count(&case), "16001 16001 a");
    }
}

#[test]
fn what_was_looked_at_is_what_is_loaded() {
    let case = case();
    let web = BodyServer::start(BodyFraming::Chunked, rows("a", 2_000));
    web.change(|page| page.first = Some(rows("b", 2_000).into()));
    let child = spawn(&mut case.load_command(&format!("{} --table t --quiet", web.url())));
    let said = finish(child).refusal();
    assert!(said.contains("changed while it was being read"), "{said}");
    assert_eq!(count(&case), "0 0");
    web.load(&case, "").success();
    assert_eq!(count(&case), "2000 2000 a");
}

/// What a URL says behind the question mark is not kept, and still tells sources apart.
#[test]
fn what_is_not_shown_of_a_url_tells_jobs_apart() {
    let case = LoadCase::new("create table t (id bigint, version text, pad text)");
    let web = BodyServer::start(BodyFraming::Length, rows("a", 10));
    let load = |query: &str| {
        let run = case.load(&format!("{}?{query} --table t", web.url()));
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        run.stderr
    };
    // The same rows from another place are other rows.
    let jan = load("key=jan");
    assert!(!jan.contains("jan"), "{jan}");
    load("key=jun");
    assert_eq!(count(&case), "20 10 a");
    for (query, job) in [("key=jan", 1), ("key=jun", 2)] {
        let said = load(query);
        assert!(said.contains(&format!("job {job} has loaded this")), "{said}");
    }
    // Whoever signs a URL again means the same object.
    load("X-Amz-Date=1&X-Amz-Signature=2");
    let said = load("X-Amz-Date=3&X-Amz-Signature=4&X-Amz-Expires=9");
    assert!(said.contains("job 3 has loaded this"), "{said}");
    assert_eq!(count(&case), "30 10 a");
    // Both at once are two inputs.
    let args = ["?key=mar", "?key=apr"].map(|query| web.url() + query).join(" ");
    case.load(&format!("{args} --table t")).success();
    assert_eq!(count(&case), "50 10 a");
    // Words that no hex digest can contain.
    let kept = "select string_agg(sources::text, ' ') from pgspate.job";
    assert!(!["jan", "jun", "mar", "apr"].iter().any(|it| case.value(kept).contains(it)));
}
