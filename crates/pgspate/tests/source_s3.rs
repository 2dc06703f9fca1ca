//! Inputs from a real S3 server on loopback, the Python program moto.

#[path = "support/moto.rs"]
mod moto;

use std::io::{Read, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{ClientOptions, ObjectStoreExt};
use pgspate::source::{Compression, Input, SourceOptions, resolve};
use pgspate::{Error, ErrorKind};
use tokio::runtime::Runtime;

use moto::Moto;

/// Returns the address of the server that all tests of this file share. Each test has its own
/// bucket.
fn shared_endpoint() -> &'static str {
    static SHARED: OnceLock<Mutex<Option<Moto>>> = OnceLock::new();
    static ENDPOINT: OnceLock<String> = OnceLock::new();
    ENDPOINT.get_or_init(|| {
        let moto = Moto::start(&[]);
        let endpoint = moto.endpoint.clone();
        let shared = SHARED.get_or_init(|| Mutex::new(None));
        *shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(moto);
        endpoint
    })
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn options(endpoint: &str) -> SourceOptions {
    let settings = [
        ("endpoint", endpoint),
        ("region", "us-east-1"),
        ("access_key_id", "test"),
        ("secret_access_key", "secret"),
    ];
    let store = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    SourceOptions { store, range_bytes: 100_000, ..SourceOptions::default() }
}

/// Creates a bucket. Returns a client that can write to it.
fn create_bucket(runtime: &Runtime, endpoint: &str, bucket: &str) -> AmazonS3 {
    // The test's client needs a cryptography provider. The engine may have installed the provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let answer = runtime.block_on(async {
        reqwest::Client::new().put(format!("{endpoint}/{bucket}")).send().await
    });
    assert!(answer.unwrap().status().is_success());
    AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_region("us-east-1")
        .with_bucket_name(bucket)
        .with_access_key_id("test")
        .with_secret_access_key("secret")
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .build()
        .unwrap()
}

fn put(runtime: &Runtime, store: &AmazonS3, key: &str, data: &[u8]) {
    let path = object_store::path::Path::parse(key).unwrap();
    runtime.block_on(store.put(&path, data.to_vec().into())).unwrap();
}

fn resolve_input(runtime: &Runtime, endpoint: &str, spec: &str) -> Result<Vec<Input>, Error> {
    resolve(&[spec.to_owned()], &options(endpoint), runtime.handle().clone())
}

fn names(inputs: &[Input]) -> Vec<&str> {
    inputs.iter().map(Input::name).collect()
}

fn read(input: &Input) -> Vec<u8> {
    let mut out = Vec::new();
    input.reader().unwrap().read_to_end(&mut out).unwrap();
    out
}

fn rows(count: u64) -> Vec<u8> {
    let lines = (0..count).map(|i| format!("{i},{}\n", i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    lines.collect::<String>().into_bytes()
}

#[test]
fn an_object_is_read_in_ranges() {
    let (runtime, endpoint) = (runtime(), shared_endpoint());
    let store = create_bucket(&runtime, endpoint, "one");
    let data = rows(40_000);
    put(&runtime, &store, "dir/a b+c%20é.csv", &data);
    let spec = "s3://one/dir/a b+c%20é.csv";
    let input = resolve_input(&runtime, endpoint, spec).unwrap().remove(0);
    assert_eq!(input.name(), spec);
    assert_eq!(input.extension().as_deref(), Some("csv"));
    assert_eq!(input.stored_bytes(), Some(data.len() as u64));
    assert!(input.modified().is_some() && input.etag().is_some());
    assert!(read(&input) == data);
    assert_eq!(input.peek(1000).unwrap(), &data[..1000]);
    let ranges = input.ranges().unwrap();
    assert_eq!(ranges.read(150_000, 70_000).unwrap(), &data[150_000..220_000]);
}

#[test]
fn a_compressed_object_is_decompressed() {
    let (runtime, endpoint) = (runtime(), shared_endpoint());
    let store = create_bucket(&runtime, endpoint, "compressed");
    let data = rows(60_000);
    let mut stored = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    stored.write_all(&data).unwrap();
    let stored = stored.finish().unwrap();
    assert!(stored.len() > 300_000);
    put(&runtime, &store, "a.csv.gz", &stored);
    put(&runtime, &store, "cut.csv.gz", &stored[..stored.len() - 10]);
    let input = resolve_input(&runtime, endpoint, "s3://compressed/a.csv.gz").unwrap().remove(0);
    let reader = input.reader().unwrap();
    assert_eq!(reader.compression(), Compression::Gzip);
    assert_eq!(reader.progress().total(), Some(stored.len() as u64));
    drop(reader);
    assert!(read(&input) == data);
    let input = resolve_input(&runtime, endpoint, "s3://compressed/cut.csv.gz").unwrap().remove(0);
    let error = input.reader().unwrap().read_to_end(&mut Vec::new()).unwrap_err();
    let expected = format!("gzip data ends early at byte {}", stored.len() - 10);
    assert_eq!(error.to_string(), expected);
}

#[test]
fn folders_and_patterns_are_listed() {
    let (runtime, endpoint) = (runtime(), shared_endpoint());
    let store = create_bucket(&runtime, endpoint, "many");
    for key in
        ["d/b.csv", "d/a.csv", "d/sub/c.csv", "d/_SUCCESS", "d/.x/y.csv", "d/n.txt", "dd/z.csv"]
    {
        put(&runtime, &store, key, key.as_bytes());
    }
    // Some tools create folders as empty objects whose names end with a slash.
    let marker = reqwest::Client::new().put(format!("{endpoint}/many/d/empty/"));
    assert!(runtime.block_on(marker.body("").send()).unwrap().status().is_success());
    let marker = reqwest::Client::new().put(format!("{endpoint}/many/d/sub/"));
    assert!(runtime.block_on(marker.body("").send()).unwrap().status().is_success());
    let found = |spec: &str| resolve_input(&runtime, endpoint, spec).unwrap();
    let all = ["s3://many/d/a.csv", "s3://many/d/b.csv", "s3://many/d/n.txt"];
    let below = "s3://many/d/sub/c.csv";
    for folder in ["s3://many/d/", "s3://many/d"] {
        let inputs = found(folder);
        assert_eq!(names(&inputs), [&all[..], &[below]].concat(), "{folder}");
    }
    assert_eq!(names(&found("s3://many/d/*.csv")), all[..2]);
    assert_eq!(names(&found("s3://many/d/**/*.csv")), [all[0], all[1], below]);
    assert_eq!(names(&found("s3://many/*/?.csv")), [all[0], all[1], "s3://many/dd/z.csv"]);
    assert_eq!(read(&found("s3://many/d/*.csv")[1]), b"d/b.csv");
}

#[test]
fn errors_name_missing_objects_and_buckets() {
    let (runtime, endpoint) = (runtime(), shared_endpoint());
    let store = create_bucket(&runtime, endpoint, "few");
    put(&runtime, &store, "a.csv", b"1");
    for (spec, message) in [
        ("s3://few/b.csv", "\"s3://few/b.csv\" does not exist"),
        ("s3://few/b*.csv", "no files match \"s3://few/b*.csv\""),
        ("s3://few/no/", "no files in folder \"s3://few/no/\""),
        ("s3://fewer/a.csv", "bucket \"fewer\" does not exist"),
        ("s3://fewer/", "bucket \"fewer\" does not exist"),
        ("s3://fewer/*.csv", "bucket \"fewer\" does not exist"),
    ] {
        let error = resolve_input(&runtime, endpoint, spec).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.kind()), (message, ErrorKind::Source));
        assert!(spec.ends_with("no/") || error.hint_text().is_some(), "{spec}");
    }
}

#[test]
fn an_object_that_is_replaced_while_it_is_read_is_an_error() {
    let (runtime, endpoint) = (runtime(), shared_endpoint());
    let store = create_bucket(&runtime, endpoint, "changing");
    put(&runtime, &store, "a.csv", &rows(1000));
    let input = resolve_input(&runtime, endpoint, "s3://changing/a.csv").unwrap().remove(0);
    put(&runtime, &store, "a.csv", &rows(1001));
    let error = input.reader().unwrap_err();
    assert_eq!(error.to_string(), "\"s3://changing/a.csv\" changed while it was being read");
    assert!(input.ranges().unwrap().read(0, 10).is_err());
}

#[test]
fn denied_access_says_what_to_check() {
    let runtime = runtime();
    // moto checks no keys in the first two requests, which create the bucket and the object.
    let moto = Moto::start(&[("INITIAL_NO_AUTH_ACTION_COUNT", "2")]);
    let store = create_bucket(&runtime, &moto.endpoint, "closed");
    put(&runtime, &store, "a.csv", b"1");
    for spec in ["s3://closed/", "s3://closed/*.csv"] {
        let error = resolve_input(&runtime, &moto.endpoint, spec).unwrap_err();
        let expected =
            format!("access to \"{spec}\" was denied: the service does not know the access key");
        assert_eq!(error.to_string(), expected);
        assert!(error.hint_text().unwrap().contains("AWS_ACCESS_KEY_ID"), "{error:?}");
    }
    // The reply to a HEAD request has no body, so pgspate does not know the reason.
    let error = resolve_input(&runtime, &moto.endpoint, "s3://closed/a.csv").unwrap_err();
    assert_eq!(error.to_string(), "access to \"s3://closed/a.csv\" was denied");
    assert!(error.hint_text().unwrap().contains("AWS_PROFILE"), "{error:?}");
    assert!(!format!("{error:?}").contains("secret"));
}
