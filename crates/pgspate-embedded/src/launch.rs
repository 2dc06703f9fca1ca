//! Running PostgreSQL's programs: as the right user, in a clean environment.
//!
//! Nothing of the caller's `PG*` variables, locale or working folder reaches a server, so it
//! behaves the same wherever pgspate was called from.

use std::env;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::account::Account;
use crate::error::{self, Result};
use crate::find::Installation;

const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// A command for one of the programs, to be run as `account` (or as ourselves).
pub(crate) fn command(found: &Installation, program: &str, account: Option<&Account>) -> Command {
    let mut command = Command::new(found.program(program));
    // The folder we are in may be closed to the account; the root folder never is.
    command.current_dir("/").stdin(Stdio::null());
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("PG") || text.starts_with("LC_") || text.starts_with("LANG") {
            command.env_remove(&name);
        }
    }
    // Messages are searched, and quoted in errors: they must be in English.
    command.env("LC_ALL", "C");
    if let Some(account) = account {
        // From root, this also drops the other groups.
        command.uid(account.uid).gid(account.gid);
        command.env("HOME", "/").env("USER", &account.name);
    }
    command
}

/// Runs a command to its end; if it does not succeed, what it said becomes the error's cause.
pub(crate) fn run(command: Command, what: &str) -> Result<Output> {
    run_with_input(command, what, "")
}

/// As [`run`], with a short text as the command's standard input.
pub(crate) fn run_with_input(mut command: Command, what: &str, input: &str) -> Result<Output> {
    let failed = || error::new(format!("could not {what}"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = || {
        let mut child = command.spawn()?;
        // A command that does not read ends by itself. The pipe closes with the value.
        let _ = child.stdin.take().map(|mut pipe| pipe.write_all(input.as_bytes()));
        child.wait_with_output()
    };
    let output = run();
    let output = output
        .map_err(|e| failed().because(error::file("run", Path::new(command.get_program()), e)))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = match said.trim() {
        "" => output.status.to_string(),
        said => said.to_string(),
    };
    Err(failed().because(error::new(said)))
}

/// Whether a server takes connections, asked over its socket or else its port.
pub(crate) fn accepts(socket_folder: Option<&Path>, port: u16) -> bool {
    let over_socket = |folder: &Path| {
        let stream = UnixStream::connect(folder.join(format!(".s.PGSQL.{port}")))?;
        stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
        ask(stream)
    };
    let over_tcp = || {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
        stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
        ask(stream)
    };
    match socket_folder {
        Some(folder) => over_socket(folder),
        None => over_tcp(),
    }
    .unwrap_or(false)
}

/// Whether a server that did not start lost a race for its port.
pub(crate) fn says_port_taken(log: &str) -> bool {
    log.contains("could not bind IPv4 address")
}

/// Whether a server that did not start met the children of one that was killed.
pub(crate) fn says_memory_used(log: &str) -> bool {
    log.contains("pre-existing shared memory block")
}

/// The end of a log, as the cause of an error.
pub(crate) fn log_says(tail: &str) -> String {
    match tail.trim() {
        "" => "the server ended without a word in its log".to_string(),
        tail => format!("the server's log ends with:\n{tail}"),
    }
}

/// Begins a connection as any client would and looks at the first answer. Being asked for a
/// password, or refused for a reason of our own, is the answer of a server that works.
fn ask(mut stream: impl Read + Write) -> io::Result<bool> {
    const BODY: &[u8] = b"\x00\x03\x00\x00user\0postgres\0database\0postgres\0\0";
    let length = (BODY.len() as u32 + 4).to_be_bytes();
    stream.write_all(&[&length, BODY].concat())?;
    let mut head = [0u8; 5];
    stream.read_exact(&mut head)?;
    if head[0] != b'E' {
        return Ok(head[0] == b'R');
    }
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    let mut body = Vec::new();
    stream.take(u64::from(length.saturating_sub(4).min(4096))).read_to_end(&mut body)?;
    // 57P03 is "cannot connect now": starting up, shutting down, recovering.
    Ok(!body.windows(6).any(|field| field == b"C57P03"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Answer(&'static [u8]);

    impl Read for Answer {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0.read(buf)
        }
    }

    impl Write for Answer {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            Ok(buf.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_server_that_answers_works_unless_it_says_not_now() {
        assert!(ask(Answer(b"R\0\0\0\x08\0\0\0\0")).unwrap());
        assert!(ask(Answer(b"E\0\0\0\x15SFATAL\0C28000\0\0")).unwrap());
        assert!(!ask(Answer(b"E\0\0\0\x15SFATAL\0C57P03\0\0")).unwrap());
        assert!(!ask(Answer(b"HTTP/1.1 400")).unwrap());
        assert!(ask(Answer(b"")).is_err());
        assert!(ask(Answer(b"E\xff\xff\xff\xffC57P0")).unwrap());
    }

    #[test]
    fn what_a_program_said_is_the_cause() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'no such luck' >&2; exit 3"]);
        let error = run(command, "try").unwrap_err();
        assert_eq!(error.chain(), "could not try: no such luck");
    }
}
