//! Measures how fast an object of an S3 store is read, in bytes per second.
//!
//! The store is in this process and sends zeros over loopback. So the time is the client's and the
//! server's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pgspate_input::source::{SourceOptions, resolve};

const OBJECT_BYTES: u64 = 1 << 30;

/// Starts a store that has one object, whatever it is asked for. Returns its address.
fn start_store() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer_requests(stream));
        }
    });
    format!("http://{address}")
}

/// Answers the requests of a connection until the client closes it.
fn answer_requests(stream: TcpStream) {
    let zeros = vec![0; 1 << 20];
    let Ok(mut output) = stream.try_clone() else { return };
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(request) = lines.next() {
        let headers = lines.by_ref().take_while(|line| !line.is_empty());
        let range = headers.filter_map(|line| parse_range(&line)).last();
        let (begin, end) = range.unwrap_or((0, OBJECT_BYTES - 1));
        let status = if range.is_some() { "206 Partial Content" } else { "200 OK" };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Range: bytes \
             {begin}-{end}/{OBJECT_BYTES}\r\nETag: \"a\"\r\nLast-Modified: Mon, 30 Nov 2026 \
             12:00:00 GMT\r\n\r\n",
            end + 1 - begin
        );
        let mut left = if request.starts_with("HEAD") { 0 } else { end + 1 - begin };
        if output.write_all(head.as_bytes()).is_err() {
            return;
        }
        while left > 0 {
            let count = left.min(zeros.len() as u64);
            if output.write_all(&zeros[..count as usize]).is_err() {
                return;
            }
            left -= count;
        }
    }
}

/// Returns the first and the last byte of a header `Range: bytes=0-99`.
fn parse_range(line: &str) -> Option<(u64, u64)> {
    let (name, value) = line.split_once(':')?;
    if !name.eq_ignore_ascii_case("range") {
        return None;
    }
    let (begin, end) = value.trim().strip_prefix("bytes=")?.split_once('-')?;
    Some((begin.parse().ok()?, end.parse().ok()?))
}

fn object(criterion: &mut Criterion) {
    let endpoint = start_store();
    let runtime = tokio::runtime::Runtime::new().expect("it starts");
    let settings = [
        ("endpoint", endpoint.as_str()),
        ("region", "us-east-1"),
        ("access_key_id", "test"),
        ("secret_access_key", "secret"),
    ];
    let store = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let options = SourceOptions { store, ..SourceOptions::default() };
    let source = ["s3://bucket/zeros.csv".to_owned()];
    let input = resolve(&source, &options, runtime.handle().clone()).expect("it exists").remove(0);
    let mut chunk = vec![0; 1 << 20];
    let mut group = criterion.benchmark_group("object");
    group.sample_size(10);
    group.throughput(Throughput::Bytes(OBJECT_BYTES));
    group.bench_function("read", |bencher| {
        bencher.iter(|| {
            let (mut reader, mut bytes) = (input.reader().expect("it opens"), 0);
            while let count @ 1.. = reader.read(&mut chunk).expect("it is read") {
                bytes += count as u64;
            }
            assert_eq!(bytes, OBJECT_BYTES);
        });
    });
    group.finish();
}

criterion_group!(benches, object);
criterion_main!(benches);
