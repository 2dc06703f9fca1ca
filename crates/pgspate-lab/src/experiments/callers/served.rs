//! A `pgspate serve` of the lab's own, and callers that send it records over HTTP/1.1.
//!
//! Each caller has a connection, which stays open. The process ends with the lab, even if the lab
//! is killed: a shell stops it when the lab's end of a pipe is closed.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::thread;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use pgspate::{Error, ErrorKind, Result};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::senders::SetFigures;
use crate::TrialContext;
use crate::data::accounts::BankTable;
use crate::probe::cpu_seconds_of;

/// Runs a command, prints its process id, and stops it at the end of stdin.
const RUN_UNTIL_CLOSED: &str = "\"$@\" & served=$!; echo \"$served\" >&2; read -r _; \
                                kill -TERM \"$served\"; wait \"$served\"";

/// A process that serves a table, and a connection for each caller.
pub(super) struct ServedCallers {
    process: ServedProcess,
    table: BankTable,
    uri: String,
    connections: Vec<Mutex<SendRequest<Full<Bytes>>>>,
}

impl ServedCallers {
    /// Starts `pgspate serve`, and connects `callers` callers. `proxy_port` leads to the server.
    pub(super) async fn start(
        callers: usize,
        table: BankTable,
        proxy_port: Option<u16>,
        context: &TrialContext,
    ) -> Result<ServedCallers> {
        let (Some(program), Some(dsn)) = (context.program(), context.passfile_dsn()) else {
            return Err(failed("could not start pgspate serve", "the program is not known"));
        };
        // If a keyword occurs twice, the last one counts.
        let proxy = proxy_port.map_or(String::new(), |port| format!(" host=127.0.0.1 port={port}"));
        let (dsn, name) = (format!("{dsn}{proxy}"), context.table(table.name()));
        let args = ["serve", "--to", &dsn, "--table", &name, "--listen", "127.0.0.1:0", "--json"];
        let process = ServedProcess::start(program.as_os_str(), &args)?;
        let mut connections = Vec::with_capacity(callers);
        for _ in 0..callers {
            connections.push(Mutex::new(connect(&process.authority).await?));
        }
        let uri = format!("/tables/{name}/rows");
        Ok(ServedCallers { process, table, uri, connections })
    }

    /// Sends records of a caller. Returns when they are durable.
    pub(super) async fn send(&self, caller: usize, records: &[Vec<String>]) -> Result<()> {
        let request = Request::post(&self.uri)
            .header("host", &self.process.authority)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(to_json(self.table, records))));
        let request = request.map_err(|error| failed("could not make a request", error))?;
        let lost = |error| failed("could not send records to pgspate serve", error);
        let mut connection = self.connections[caller].lock().await;
        connection.ready().await.map_err(lost)?;
        let answer = connection.send_request(request).await.map_err(lost)?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(lost)?.to_bytes();
        if status == StatusCode::CREATED {
            return Ok(());
        }
        let body = String::from_utf8_lossy(&body);
        Err(failed("pgspate serve refused records", format!("{status}: {body}")))
    }

    /// Returns the CPU time of the process, in seconds.
    pub(super) fn cpu_seconds(&self) -> Option<f64> {
        cpu_seconds_of(self.process.pid)
    }

    /// Stops the process. Returns how it has put records together.
    pub(super) async fn close(self) -> Result<SetFigures> {
        drop(self.connections);
        let report = self.process.stop()?;
        let writer = &report["writer"];
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let sets: Vec<u64> = writer["sets"].as_array().into_iter().flatten().map(number).collect();
        Ok(SetFigures::new(&sets, number(&writer["set_rows"]), number(&writer["lanes_allowed"])))
    }
}

/// Opens a connection of HTTP/1.1.
async fn connect(authority: &str) -> Result<SendRequest<Full<Bytes>>> {
    let message = "could not connect to pgspate serve";
    let stream = TcpStream::connect(authority).await.map_err(|error| failed(message, error))?;
    stream.set_nodelay(true).map_err(|error| failed(message, error))?;
    let shaken = handshake(TokioIo::new(stream)).await;
    let (client, connection) = shaken.map_err(|error| failed(message, error))?;
    tokio::spawn(connection);
    Ok(client)
}

/// Returns a record as a JSON object, or several as an array.
fn to_json(table: BankTable, records: &[Vec<String>]) -> String {
    let mut out = String::with_capacity(1200 * records.len());
    for (nth, record) in records.iter().enumerate() {
        out.push(if nth == 0 { '[' } else { ',' });
        for (place, value) in record.iter().enumerate() {
            out.push(if place == 0 { '{' } else { ',' });
            out += &format!("\"{}\":", table.columns()[place]);
            match table.types()[place] {
                "bigint" | "numeric(14, 2)" => out += value,
                _ => out += &Value::from(value.as_str()).to_string(),
            }
        }
        out.push('}');
    }
    match records.len() {
        1 => out.split_off(1),
        _ => out + "]",
    }
}

/// A running `pgspate serve`. It ends when it is dropped.
struct ServedProcess {
    shell: Child,
    pid: u32,
    authority: String,
}

impl ServedProcess {
    /// Starts the command, and waits until it listens.
    fn start(program: &OsStr, args: &[&str]) -> Result<ServedProcess> {
        let message = "could not start pgspate serve";
        let started = Command::new("sh")
            .args(["-c", RUN_UNTIL_CLOSED, "sh"])
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut shell = started.map_err(|error| failed(message, error))?;
        let stderr = shell.stderr.take();
        let mut process = ServedProcess { shell, pid: 0, authority: String::new() };
        let stderr = stderr.ok_or_else(|| failed(message, "it has no stderr"))?;
        process.read_start(stderr).map_err(|said| failed(message, said))?;
        Ok(process)
    }

    /// Reads the process id and the address. The process may write before the shell has written the
    /// id. An error is what the process says instead of its address.
    fn read_start(&mut self, stderr: ChildStderr) -> Result<(), String> {
        let mut lines = BufReader::new(stderr).lines();
        let mut next = || lines.next().and_then(Result::ok);
        while self.pid == 0 || self.authority.is_empty() {
            let line = next().ok_or("it has ended")?;
            match (line.strip_prefix("listening on http://"), line.parse()) {
                (Some(address), _) => self.authority = address.to_owned(),
                (None, Ok(pid)) => self.pid = pid,
                (None, Err(_)) if line.starts_with("error:") => return Err(line),
                (None, Err(_)) => {}
            }
        }
        // What it says later must not fill the pipe.
        thread::spawn(move || lines.for_each(drop));
        Ok(())
    }

    /// Stops the process, and returns its report.
    fn stop(mut self) -> Result<Value> {
        let message = "could not read the report of pgspate serve";
        drop(self.shell.stdin.take());
        let mut text = String::new();
        let stdout: Option<ChildStdout> = self.shell.stdout.take();
        let mut stdout = stdout.ok_or_else(|| failed(message, "it has no stdout"))?;
        stdout.read_to_string(&mut text).map_err(|error| failed(message, error))?;
        serde_json::from_str(&text).map_err(|error| failed(message, error))
    }
}

impl Drop for ServedProcess {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // The process answers what is in flight, and ends.
        let _ = self.shell.wait();
    }
}

fn failed(message: &str, reason: impl ToString) -> Error {
    let reason = Error::new(ErrorKind::Server, reason.to_string());
    Error::new(ErrorKind::Server, message).because(reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::accounts::BankAccounts;

    #[test]
    fn records_become_an_object_or_an_array() {
        let bank = BankAccounts::new(1);
        let records: Vec<_> = (1..=2).map(|id| bank.fields(BankTable::Account, id, 1)).collect();
        let one: Value = serde_json::from_str(&to_json(BankTable::Account, &records[..1])).unwrap();
        assert_eq!(one["id"], 1);
        assert_eq!(one["holder"].as_str(), Some(records[0][2].as_str()));
        assert_eq!(one["balance"].as_f64(), records[0][7].parse().ok());
        let two: Value = serde_json::from_str(&to_json(BankTable::Account, &records)).unwrap();
        assert_eq!((&two[0], &two[1]["id"]), (&one, &Value::from(2)));
    }

    #[test]
    fn a_process_that_fails_says_why() {
        let script = "echo 'error: no server' >&2; exit 2";
        let Err(error) = ServedProcess::start(OsStr::new("sh"), &["-c", script]) else {
            panic!("it was started");
        };
        assert_eq!(error.chain(), "could not start pgspate serve: error: no server");
    }
}
