//! A database, a running `pgspate serve`, and a plain client of HTTP/1.1.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use pgspate_embedded::testing::{self, TestDb};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::run::{PATIENCE, Run, command, finish, spawn};

/// A table of accounts, and one with a trigger.
pub(crate) const TABLES: &str = "\
create table account (id int primary key, name text not null, balance numeric(12,2) default 7);
create table note (id bigint generated always as identity primary key, text text);";

/// A running `pgspate serve`.
pub(crate) struct ServeProcess {
    pub(crate) folder: TempDir,
    pub(crate) address: String,
    child: Option<Child>,
    stderr: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// A database, and a `pgspate serve` that writes into it.
pub(crate) struct ServeScene {
    pub(crate) db: TestDb,
    pub(crate) process: ServeProcess,
}

/// An answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl ServeScene {
    /// Serves the tables `account` and `note` of a new database.
    pub(crate) fn new(args: &[&str]) -> ServeScene {
        ServeScene::with_sql(TABLES, &[&["--table", "account", "--table", "note"], args].concat())
    }

    /// Creates a database by `sql`, and serves it.
    pub(crate) fn with_sql(sql: &str, args: &[&str]) -> ServeScene {
        let db = testing::database();
        db.run(sql);
        let folder = tempfile::tempdir().unwrap();
        let process = ServeProcess::start(&db.dsn(), folder, args);
        ServeScene { db, process }
    }

    /// Sends records of JSON.
    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.process.post(path, &[], body)
    }

    /// Sends records of JSON with a header `Prefer`.
    pub(crate) fn post_prefer(&self, path: &str, prefer: &str, body: &str) -> Answer {
        self.process.post(path, &[("prefer", prefer)], body)
    }

    /// Returns the single value of a query's result.
    pub(crate) fn value(&self, sql: &str) -> String {
        self.db.query(sql)[0][0].clone().unwrap_or_default()
    }
}

impl ServeProcess {
    /// Starts the command, and waits until it listens. Without `--listen`, it listens on a free
    /// port.
    pub(crate) fn start(dsn: &str, folder: TempDir, args: &[&str]) -> ServeProcess {
        let mut all = vec!["serve", "--to", dsn];
        if !args.contains(&"--listen") {
            all.extend(["--listen", "127.0.0.1:0"]);
        }
        all.extend(args);
        let mut child = spawn(&mut command(folder.path(), &all));
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        let address = loop {
            first.clear();
            if lines.read_line(&mut first).unwrap() == 0 {
                panic!("pgspate serve has ended: {:?}", child.wait());
            }
            if let Some(address) = first.trim().strip_prefix("listening on ") {
                break address.to_owned();
            }
        };
        let stderr = Arc::new(Mutex::new(first));
        let kept = Arc::clone(&stderr);
        let reader = thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                kept.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        ServeProcess { folder, address, child: Some(child), stderr, reader: Some(reader) }
    }

    /// Returns what the command has written to stderr so far.
    pub(crate) fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// Returns the address and port.
    pub(crate) fn authority(&self) -> &str {
        self.address.split("://").nth(1).unwrap()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.authority()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends records of JSON with further headers.
    pub(crate) fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut all = vec![("content-type", "application/json")];
        all.extend(headers);
        self.send("POST", path, &all, body.as_bytes())
    }

    /// Sends a record whose answer may be lost.
    pub(crate) fn try_post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<Answer> {
        let mut all = vec![("content-type", "application/json")];
        all.extend(headers);
        let head = head("POST", path, self.authority(), &all, body.len());
        let mut stream = TcpStream::connect(self.authority()).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(format!("{head}{body}").as_bytes());
        try_read_answer(&mut stream)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    /// Sends a request on a connection of its own.
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let head = head(method, path, self.authority(), headers, body.len());
        exchange(self.connect(), &head, body)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = self.child.as_ref().unwrap().id();
        kill_process(Pid::from_raw(id.cast_signed()).unwrap(), signal).unwrap();
    }

    /// Stops the command with SIGTERM, and waits for its end.
    pub(crate) fn stop(&mut self) -> Run {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for the end of the command.
    pub(crate) fn wait(&mut self) -> Run {
        let mut run = finish(self.child.take().unwrap());
        self.reader.take().unwrap().join().unwrap();
        run.stderr = self.stderr();
        run
    }
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Answer {
    /// Returns a header's value.
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Returns the code of an error.
    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the lines of an answer with an outcome for each record.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Returns the head of a request, after which the server closes the connection.
pub(crate) fn head(
    method: &str,
    path: &str,
    host: &str,
    headers: &[(&str, &str)],
    length: usize,
) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        head += &format!("host: {host}\r\n");
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head + &format!("content-length: {length}\r\nconnection: close\r\n\r\n")
}

/// Sends a request, and reads the answer up to the end of the connection.
pub(crate) fn exchange(mut stream: impl Read + Write, head: &str, body: &[u8]) -> Answer {
    // A refused request may be answered before it is read.
    let _ = stream.write_all(&[head.as_bytes(), body].concat()).and_then(|()| stream.flush());
    read_answer(&mut stream)
}

/// Reads an answer up to the end of the connection.
pub(crate) fn read_answer(stream: &mut impl Read) -> Answer {
    try_read_answer(stream).expect("an answer")
}

/// Reads an answer up to the end of the connection. Returns `None` if there is none.
fn try_read_answer(stream: &mut impl Read) -> Option<Answer> {
    let mut bytes = Vec::new();
    // Ignored: the connection may be reset after the answer.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let header = |line: &str| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    Some(Answer { status, headers: lines.map(header).collect(), body: body.to_owned() })
}

/// Sends a request over a Unix socket.
pub(crate) fn send_to_socket(path: &Path, target: &str, body: &str) -> Answer {
    let headers = [("content-type", "application/json")];
    let head = head("POST", target, "localhost", &headers, body.len());
    exchange(UnixStream::connect(path).unwrap(), &head, body.as_bytes())
}
