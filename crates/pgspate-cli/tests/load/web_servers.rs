//! Tests of files from web servers that state no length, no version, or only a modification time.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::support::{LoadCase, Run, finish, session, spawn, wait_until};

/// How a response states where its body ends.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum BodyFraming {
    Length,
    Chunked,
    /// The body ends when the connection is closed.
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
    /// The body of the first request that is not a probe, if it differs.
    first: Option<Vec<u8>>,
}

/// A web server on loopback that runs until the test process ends.
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
                // A client may close the connection at any time.
                std::thread::spawn(move || drop(send_response(&stream.unwrap(), &page)));
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

fn send_response(mut stream: &TcpStream, page: &Mutex<ServedBody>) -> std::io::Result<()> {
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
    /// Returns the response to a request. A probe is a request with a `Range` header.
    fn clone_for(&mut self, is_probe: bool) -> ServedBody {
        let mut page = self.clone();
        if let Some(first) = self.first.take_if(|_| !is_probe) {
            page.body = first;
        }
        page
    }
}

fn csv_text(version: &str, rows: u64) -> String {
    let mut text = "id,version,pad\n".to_owned();
    (0..rows).for_each(|id| writeln!(text, "{id},{version},{:>990}", "").unwrap());
    text
}

fn new_case() -> LoadCase {
    LoadCase::new("create table t (id bigint, version text, pad text)")
}

fn count(case: &LoadCase) -> String {
    case.value("select concat_ws(' ', count(*), count(distinct id), max(version)) from t")
}

#[test]
fn a_body_of_unstated_length_is_refused() {
    let case = new_case();
    let text = csv_text("a", 20_000);
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
    // Compressed data has an end mark, so no stated length is needed.
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
    // The committed chunks are the beginning of the whole body, so the load continues.
    web.change(|page| page.cut = None);
    web.load(&case, "").success();
    assert_eq!(count(&case), "20000 20000 a");
}

#[test]
fn a_truncated_body_is_refused() {
    let text = csv_text("a", 5_000);
    for framing in [BodyFraming::Length, BodyFraming::Chunked] {
        let case = new_case();
        let web = BodyServer::start(framing, text.clone());
        web.change(|page| page.cut = Some(text.len() / 2));
        let said = web.load(&case, "").refusal();
        assert!(said.contains("lost the connection while reading"), "{said}");
        assert_eq!(count(&case), "0 0");
    }
}

#[test]
fn a_load_reads_a_whole_body_before_it_reports_it_as_loaded() {
    for headers in ["", "Last-Modified: Sat, 01 Feb 2025 10:00:00 GMT\r\n", "ETag: W/\"1\"\r\n"] {
        let case = new_case();
        let web = BodyServer::start(BodyFraming::Chunked, csv_text("a", 3_000));
        web.change(|page| page.headers = headers);
        web.load(&case, "").success();
        let url = web.url();
        let again = case.load(&format!("{url} --table t"));
        assert!(again.success().contains("job 1 has loaded this, 3000 rows"), "{}", again.stderr);
        // The body has one more row, and its first 64 KiB are unchanged.
        web.put(csv_text("a", 3_001));
        let said = web.load(&case, "").refusal();
        assert!(said.contains("has changed since it was loaded into public.t"), "{said}");
        // The body has the same length, and one other row far from its beginning.
        web.put(csv_text("a", 3_000).replace("2999,a", "2999,b"));
        let said = web.load(&case, "").refusal();
        assert!(said.contains("has changed since it was loaded into public.t"), "{said}");
        assert_eq!(count(&case), "3000 3000 a");
        // The user says that a body with other rows is to be loaded, too.
        web.put(csv_text("c", 10));
        web.load(&case, "--changed reload").success();
        assert_eq!(count(&case), "3010 3000 c");
    }
}

/// Starts a load and kills it after some chunks are committed.
fn start_and_kill_load(web: &BodyServer) -> LoadCase {
    let case = new_case();
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
fn a_continued_load_does_not_mix_versions_of_a_body() {
    for framing in [BodyFraming::Chunked, BodyFraming::Length] {
        let text = csv_text("a", 16_000);
        let web = BodyServer::start(framing, text.clone());
        let case = start_and_kill_load(&web);
        let before = count(&case);
        // The part of the body whose chunks are written has changed.
        web.put(csv_text("b", 16_000));
        let said = web.load(&case, "--commit chunk").refusal();
        assert!(said.contains("its sources or options have changed"), "{said}");
        assert_eq!(count(&case), before);
        // The body has one more row at its end.
        web.put(csv_text("a", 16_001));
        web.load(&case, "--commit chunk").success();
        assert_eq!(count(&case), "16001 16001 a");
    }
}

#[test]
fn a_body_that_changes_after_the_sample_is_refused() {
    let case = new_case();
    let web = BodyServer::start(BodyFraming::Chunked, csv_text("a", 2_000));
    web.change(|page| page.first = Some(csv_text("b", 2_000).into()));
    let child = spawn(&mut case.load_command(&format!("{} --table t --quiet", web.url())));
    let said = finish(child).refusal();
    assert!(said.contains("changed while it was being read"), "{said}");
    assert_eq!(count(&case), "0 0");
    web.load(&case, "").success();
    assert_eq!(count(&case), "2000 2000 a");
}

/// The ledger does not store the query of a URL, but two queries make two sources.
#[test]
fn jobs_differ_if_the_queries_of_their_urls_differ() {
    let case = LoadCase::new("create table t (id bigint, version text, pad text)");
    let web = BodyServer::start(BodyFraming::Length, csv_text("a", 10));
    let load = |query: &str| {
        let run = case.load(&format!("{}?{query} --table t", web.url()));
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        run.stderr
    };
    // Two queries give the same rows, which are loaded twice.
    let jan = load("key=jan");
    assert!(!jan.contains("jan"), "{jan}");
    load("key=jun");
    assert_eq!(count(&case), "20 10 a");
    for (query, job) in [("key=jan", 1), ("key=jun", 2)] {
        let said = load(query);
        assert!(said.contains(&format!("job {job} has loaded this")), "{said}");
    }
    // A URL that is signed again names the same object.
    load("X-Amz-Date=1&X-Amz-Signature=2");
    let said = load("X-Amz-Date=3&X-Amz-Signature=4&X-Amz-Expires=9");
    assert!(said.contains("job 3 has loaded this"), "{said}");
    assert_eq!(count(&case), "30 10 a");
    // Two URLs of one load are two inputs.
    let args = ["?key=mar", "?key=apr"].map(|query| web.url() + query).join(" ");
    case.load(&format!("{args} --table t")).success();
    assert_eq!(count(&case), "50 10 a");
    // The ledger stores digests of queries. No digest in hex can contain these words.
    let kept = "select string_agg(source::text, ' ') from pgspate.source_file";
    assert!(!["jan", "jun", "mar", "apr"].iter().any(|it| case.value(kept).contains(it)));
}

/// The first member of a database creates the ledger, with the key that hides parts of URLs.
#[test]
fn the_first_member_of_a_fleet_claims_the_whole_url() {
    let case = LoadCase::new("create table t (id bigint)");
    let web = BodyServer::start(BodyFraming::Length, "id\n1\n");
    let member = |member: u32, secret: &str| {
        case.load(&format!(
            "{}?signature={secret} --table t --fleet f --generation 1 --members 3 \
             --member {member} --quiet",
            web.url()
        ))
    };
    member(0, "a").success();
    let said = member(1, "a").refusal();
    assert!(said.contains("member 0 of generation 1 loads a source of member 1"), "{said}");
    member(2, "b").success();
    assert_eq!(case.rows("t"), ["(1)", "(1)"]);
}
