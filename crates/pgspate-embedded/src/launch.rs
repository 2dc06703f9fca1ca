//! Runs PostgreSQL's programs: as the server's user, in a clean environment.
//!
//! The caller's `PG*` variables, locale and working folder do not reach the programs. So a server
//! behaves the same wherever pgspate is called.

use std::env;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::account::ServerAccount;
use crate::error::{self, Result};
use crate::find::Installation;

/// How long a probe waits for the server's reply.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns a command that runs a program as `account` (or as pgspate's user).
pub(crate) fn command(
    installation: &Installation,
    program: &str,
    account: Option<&ServerAccount>,
) -> Command {
    let mut command = Command::new(installation.program(program));
    // The current folder may be closed to the account. The root folder is open.
    command.current_dir("/").stdin(Stdio::null());
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("PG") || text.starts_with("LC_") || text.starts_with("LANG") {
            command.env_remove(&name);
        }
    }
    // English messages: pgspate searches them, and quotes them in errors.
    command.env("LC_ALL", "C");
    if let Some(account) = account {
        // As root, this also drops the supplementary groups.
        command.uid(account.uid).gid(account.gid);
        command.env("HOME", "/").env("USER", &account.name);
    }
    command
}

/// Runs a command to its end. `action` completes the error message "could not …".
///
/// # Errors
/// [`pgspate_base::ErrorKind::Connect`] if the command fails. The error's cause is the command's
/// output to stderr.
pub(crate) fn run(command: Command, action: &str) -> Result<Output> {
    run_with_input(command, action, "")
}

/// Runs a command like [`run`], with a short text as its standard input.
pub(crate) fn run_with_input(mut command: Command, action: &str, input: &str) -> Result<Output> {
    let failed = || error::new(format!("could not {action}"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = || {
        let mut child = command.spawn()?;
        // An error is ignored: the command may end without reading. Dropping the pipe closes it.
        let _ = child.stdin.take().map(|mut pipe| pipe.write_all(input.as_bytes()));
        child.wait_with_output()
    };
    let output = run();
    let output = output.map_err(|e| {
        failed().because(error::could_not("run", Path::new(command.get_program()), e))
    })?;
    if output.status.success() {
        return Ok(output);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let cause = match stderr.trim() {
        "" => output.status.to_string(),
        text => text.to_string(),
    };
    Err(failed().because(error::new(cause)))
}

/// Returns whether a server accepts connections: over its socket, or without one over its port.
pub(crate) fn accepts_connections(socket_folder: Option<&Path>, port: u16) -> bool {
    let over_socket = |folder: &Path| {
        let stream = UnixStream::connect(folder.join(format!(".s.PGSQL.{port}")))?;
        stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
        probe(stream)
    };
    let over_tcp = || {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let stream = TcpStream::connect_timeout(&address, PROBE_TIMEOUT)?;
        stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
        probe(stream)
    };
    match socket_folder {
        Some(folder) => over_socket(folder),
        None => over_tcp(),
    }
    .unwrap_or(false)
}

/// Returns whether the log of a server says that another process has the server's port.
pub(crate) fn says_port_is_taken(log: &str) -> bool {
    log.contains("could not bind IPv4 address")
}

/// Returns whether the log of a server says that children of a killed server still use the
/// server's shared memory.
pub(crate) fn says_memory_is_in_use(log: &str) -> bool {
    log.contains("pre-existing shared memory block")
}

/// Describes the end of a log, as the cause of an error.
pub(crate) fn describe_log_tail(tail: &str) -> String {
    match tail.trim() {
        "" => "the server exited and logged nothing".to_string(),
        tail => format!("the server's log ends with:\n{tail}"),
    }
}

/// Sends a startup message as any client does, and looks at the server's first reply. A request for
/// a password, or any error except 57P03, means that the server accepts connections.
fn probe(mut stream: impl Read + Write) -> io::Result<bool> {
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
    // 57P03 is "cannot connect now": the server starts, stops or recovers.
    Ok(!body.windows(6).any(|field| field == b"C57P03"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream whose reads return these bytes.
    struct CannedAnswer(&'static [u8]);

    impl Read for CannedAnswer {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0.read(buf)
        }
    }

    impl Write for CannedAnswer {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            Ok(buf.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_server_that_replies_accepts_connections_unless_the_error_is_57p03() {
        assert!(probe(CannedAnswer(b"R\0\0\0\x08\0\0\0\0")).unwrap());
        assert!(probe(CannedAnswer(b"E\0\0\0\x15SFATAL\0C28000\0\0")).unwrap());
        assert!(!probe(CannedAnswer(b"E\0\0\0\x15SFATAL\0C57P03\0\0")).unwrap());
        assert!(!probe(CannedAnswer(b"HTTP/1.1 400")).unwrap());
        assert!(probe(CannedAnswer(b"")).is_err());
        assert!(probe(CannedAnswer(b"E\xff\xff\xff\xffC57P0")).unwrap());
    }

    #[test]
    fn the_output_of_a_failed_program_is_the_cause() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'no such luck' >&2; exit 3"]);
        let error = run(command, "try").unwrap_err();
        assert_eq!(error.chain(), "could not try: no such luck");
    }
}
