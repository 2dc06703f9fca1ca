//! Servers that send invalid messages: every command ends with an error.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;

use tempfile::TempDir;

use crate::run::{Run, command, finish};

/// The limit of a command's address space in KiB.
const ADDRESS_SPACE_KIB: u32 = 2_000_000;

/// Returns a message with its true length.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    message_with_length(kind, 4 + body.len() as u32, body)
}

/// Returns a message that states this length, which may be wrong.
fn message_with_length(kind: u8, len: u32, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &len.to_be_bytes(), body].concat()
}

/// Returns an error message with this SQLSTATE.
fn error_message(code: &str) -> Vec<u8> {
    message(b'E', format!("SERROR\0VERROR\0C{code}\0Mno\0\0").as_bytes())
}

/// Returns the message that the server is ready for a query.
fn ready_message() -> Vec<u8> {
    message(b'Z', b"I")
}

/// Returns the messages of a login without authentication.
fn login_messages() -> Vec<u8> {
    let parameter = |text: &str| message(b'S', text.as_bytes());
    [
        message(b'R', &[0; 4]),
        parameter("server_version\x0018.0\0"),
        parameter("client_encoding\0UTF8\0"),
        message(b'K', &[0, 0, 0, 1, 0, 0, 0, 2]),
        ready_message(),
    ]
    .concat()
}

/// Starts a server on loopback that sends `first` to each new client and replies `then` to each
/// query. The server ends with the test's process.
fn start_server(first: Vec<u8>, then: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let (first, then) = (first.clone(), then.clone());
            // The command notices a failed connection, so the error is not needed here.
            thread::spawn(move || drop(serve(client, &first, &then)));
        }
    });
    address
}

fn serve(mut client: TcpStream, first: &[u8], then: &[u8]) -> io::Result<()> {
    let mut head = [0; 4];
    client.read_exact(&mut head)?;
    let mut startup = vec![0; u32::from_be_bytes(head) as usize - 4];
    client.read_exact(&mut startup)?;
    client.write_all(first)?;
    loop {
        let mut kind = [0];
        client.read_exact(&mut kind)?;
        client.read_exact(&mut head)?;
        let mut body = vec![0; u32::from_be_bytes(head) as usize - 4];
        client.read_exact(&mut body)?;
        match kind[0] {
            b'X' => return Ok(()),
            b'Q' | b'S' => client.write_all(then)?,
            _ => {}
        }
    }
}

/// Runs a command with little address space, so that a huge allocation fails.
fn run_in_little_memory(folder: &TempDir, args: &[&str]) -> Run {
    let full = command(folder.path(), args);
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -v {ADDRESS_SPACE_KIB} && exec \"$0\" \"$@\""));
    command.arg(full.get_program()).args(full.get_args()).current_dir(folder.path()).env_clear();
    for (name, value) in full.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.env("MALLOC_ARENA_MAX", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap())
}

/// Checks that every command ends with an error that contains `words`.
#[track_caller]
fn assert_all_commands_fail(what: &str, first: &[u8], then: &[u8], words: &str) {
    let folder = TempDir::with_prefix("pgspate-cli-").unwrap();
    std::fs::write(folder.path().join("t.csv"), "v\n1\n").unwrap();
    std::fs::write(folder.path().join("t.json"), "{}\n").unwrap();
    let address = start_server(first.to_vec(), then.to_vec());
    let (host, port) = (address.ip(), address.port());
    let dsn = format!("host={host} port={port} user=u dbname=d sslmode=disable connect_timeout=20");
    let slot = format!(
        "postgres://u@{host}:{port}/d?slot=s&publication=p&sslmode=disable&connect_timeout=20"
    );
    let commands: [&[&str]; 5] = [
        &["load", "t.csv", "--table", "t", "--to", &dsn, "--quiet"],
        &["sync", "t.csv", "--table", "t", "--key", "v", "--no-delete", "--to", &dsn],
        &["apply", &slot, "--to", &dsn],
        &["doctor", "--to", &dsn],
        &["status", "--to", &dsn],
    ];
    for args in commands {
        let run = run_in_little_memory(&folder, args);
        let verb = args[0];
        assert_eq!(run.status, Some(2), "{what}, {verb}: {:?} {}", run.status, run.stderr);
        assert!(!run.stderr.contains("panicked"), "{what}, {verb}: {}", run.stderr);
        assert!(run.stderr.contains(words), "{what}, {verb}: \"{words}\" not in: {}", run.stderr);
    }
}

#[test]
fn a_malformed_sqlstate_does_not_panic() {
    for code in ["", "4", "é"] {
        assert_all_commands_fail(&format!("login {code:?}"), &error_message(code), &[], "no");
        let then = [error_message(code), ready_message()].concat();
        assert_all_commands_fail(&format!("answer {code:?}"), &login_messages(), &then, "no");
    }
}

#[test]
fn a_message_that_states_gigabytes_is_refused() {
    for kind in *b"RESNDTKZ" {
        let what = format!("{:?} at login", char::from(kind));
        let huge = message_with_length(kind, i32::MAX as u32, b"\0\0\0\0");
        assert_all_commands_fail(
            &what,
            &huge,
            &[],
            "the server announced a message of 2147483647 bytes",
        );
    }
    for kind in *b"EDTCNd" {
        let what = format!("{:?} as an answer", char::from(kind));
        let huge = message_with_length(kind, i32::MAX as u32, b"\0\0\0\0");
        let words = "the server announced a message of 2147483647 bytes";
        assert_all_commands_fail(&what, &login_messages(), &huge, words);
    }
}

#[test]
fn wrong_counts_and_lengths_within_a_message_are_refused() {
    let columns = [&u16::MAX.to_be_bytes()[..], b"a\0"].concat();
    let value = [&1_u16.to_be_bytes()[..], &i32::MAX.to_be_bytes(), b"x"].concat();
    let values = [&u16::MAX.to_be_bytes()[..], &1_i32.to_be_bytes(), b"x"].concat();
    let column = [&1_u16.to_be_bytes()[..], b"a\0", &[0; 18]].concat();
    let shape = message(b'T', &column);
    for (what, then) in [
        ("columns", message(b'T', &columns)),
        ("a value", [shape.clone(), message(b'D', &value)].concat()),
        ("values", [shape, message(b'D', &values)].concat()),
        ("a short length", message_with_length(b'D', 3, b"")),
        ("nothing known", message(b'?', b"x")),
    ] {
        let then = [then, message(b'C', b"SELECT 1\0"), ready_message()].concat();
        assert_all_commands_fail(what, &login_messages(), &then, "error: ");
    }
}
