//! Slow and malicious clients harm no other client.

use std::io::{Read, Write};
use std::net::Shutdown;

use crate::run::wait_until;
use crate::scene::{ServeScene, head, read_answer};

const ROWS: &str = "/tables/note/rows";
const BODY: &str = r#"{"text":"x"}"#;
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

#[test]
fn a_head_without_an_end_is_refused() {
    let scene = ServeScene::new(&[]);
    let mut stream = scene.process.connect();
    stream.write_all(b"POST /tables/note/rows HTTP/1.1\r\nhost: localhost\r\n").unwrap();
    let header = format!("x-filler: {}\r\n", "a".repeat(1000));
    for _ in 0..1000 {
        if stream.write_all(header.as_bytes()).is_err() {
            break;
        }
    }
    assert_eq!(scene.post(ROWS, BODY).status, 201);
    // The connection has ended: with status 431, or reset while the client was still sending.
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 431"), "{text}");
}

#[test]
fn slow_heads_bodies_and_silent_connections_are_ended() {
    let scene = ServeScene::new(&["--request-timeout", "2"]);
    let mut silent = scene.process.connect();
    let mut slow_head = scene.process.connect();
    slow_head.write_all(b"POST /tables/note/rows HTTP/1.1\r\nhost: loc").unwrap();
    let mut slow_body = scene.process.connect();
    let head = head("POST", ROWS, scene.process.authority(), &JSON, 1000);
    slow_body.write_all(head.as_bytes()).unwrap();
    slow_body.write_all(b"{").unwrap();
    let mut kept = scene.process.connect();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert_eq!(scene.post(ROWS, BODY).status, 201);
    let mut bytes = Vec::new();
    silent.read_to_end(&mut bytes).unwrap();
    assert!(bytes.is_empty());
    let _ = slow_head.read_to_end(&mut bytes);
    let answer = read_answer(&mut slow_body);
    assert_eq!((answer.status, answer.code().as_str()), (408, "timeout"));
    // After an answered request, too.
    let mut bytes = Vec::new();
    kept.read_to_end(&mut bytes).unwrap();
    assert!(bytes.starts_with(b"HTTP/1.1 200 OK"));
    wait_until("all connections are closed", || {
        scene.process.get("/stats").json()["connections_open"] == 1
    });
    assert_eq!(scene.post(ROWS, BODY).status, 201);
}

#[test]
fn a_huge_body_is_refused_before_it_is_read() {
    let scene = ServeScene::new(&["--max-body", "100kB"]);
    let mut stream = scene.process.connect();
    let head = head("POST", ROWS, scene.process.authority(), &JSON, 1 << 40);
    stream.write_all(head.as_bytes()).unwrap();
    let answer = read_answer(&mut stream);
    assert_eq!((answer.status, answer.code().as_str()), (413, "body_too_large"));
    assert_eq!(answer.header("connection"), "close");
    // Of a body that does not tell its length, no more than that is read.
    let mut stream = scene.process.connect();
    let chunked = "POST /tables/note/rows HTTP/1.1\r\nhost: localhost\r\n\
                   content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(chunked.as_bytes()).unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", 10_000, " ".repeat(10_000));
    for _ in 0..11 {
        stream.write_all(chunk.as_bytes()).unwrap();
    }
    assert_eq!(read_answer(&mut stream).status, 413);
    assert_eq!(scene.process.get("/stats").json()["queued_bytes"], 0);
    assert_eq!(scene.post(ROWS, BODY).status, 201);
}

#[test]
fn a_client_that_sends_on_after_a_refusal_reads_its_answer() {
    let scene = ServeScene::new(&["--max-body", "100kB"]);
    let rest = vec![b' '; 4 << 20];
    for _ in 0..10 {
        let mut stream = scene.process.connect();
        let head = head("POST", ROWS, scene.process.authority(), &JSON, rest.len());
        stream.write_all(head.as_bytes()).unwrap();
        // No write fails: the server takes the rest, and drops it.
        stream.write_all(&rest).unwrap();
        assert_eq!(read_answer(&mut stream).status, 413);
    }
    assert_eq!(scene.post(ROWS, BODY).status, 201);
}

#[test]
fn a_client_that_ends_its_side_gets_its_answer() {
    let scene = ServeScene::new(&[]);
    let mut stream = scene.process.connect();
    let head = head("POST", ROWS, scene.process.authority(), &JSON, BODY.len());
    stream.write_all(format!("{head}{BODY}").as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_answer(&mut stream).status, 201);
    // A body that ends early is no record.
    let mut stream = scene.process.connect();
    stream.write_all(format!("{head}{{").as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"));
    assert_eq!(scene.value("select count(*) from note"), "1");
}

#[test]
fn connections_over_the_limit_are_refused() {
    let scene = ServeScene::new(&["--max-connections", "3"]);
    let mut held: Vec<_> = (0..3).map(|_| scene.process.connect()).collect();
    // Each connection was accepted once it has an answer.
    for stream in &mut held {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 15]).unwrap();
    }
    let refused = read_answer(&mut scene.process.connect());
    assert_eq!((refused.status, refused.code().as_str()), (503, "too_many_connections"));
    let length: usize = refused.header("content-length").parse().unwrap();
    assert_eq!(length, refused.body.len());
    held.pop();
    wait_until("a place is free", || {
        let mut stream = scene.process.connect();
        let head = head("POST", ROWS, scene.process.authority(), &JSON, BODY.len());
        let _ = stream.write_all(format!("{head}{BODY}").as_bytes());
        read_answer(&mut stream).status == 201
    });
}

#[test]
fn garbage_is_no_request() {
    let scene = ServeScene::new(&[]);
    for garbage in [
        &b"\x00\x01\x02\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\ngarbage garbage garbage",
    ] {
        let mut stream = scene.process.connect();
        stream.write_all(garbage).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(scene.post(ROWS, BODY).status, 201);
}
