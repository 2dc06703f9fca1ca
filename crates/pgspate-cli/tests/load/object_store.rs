//! Tests of loads from objects of a real S3 server on loopback.

use std::io::{Read, Write};
use std::net::TcpStream;

use insta::assert_snapshot;

use crate::moto::Moto;
use crate::support::{LoadCase, Run};

/// Creates a bucket, or creates or replaces an object. The test server replaces an object only if
/// the request names a user, but checks no signature.
pub(crate) fn put_object(moto: &Moto, path: &str, content: &[u8]) {
    let address = moto.endpoint.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "PUT /{path} HTTP/1.0\r\nHost: {address}\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=user/20260101/us-east-1/s3/aws4_request\r\n\
         Content-Length: {}\r\n\r\n",
        content.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(content).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.lines().next().unwrap().contains(" 200"), "{answer}");
}

/// Loads objects into the table `t`. The variables of the AWS tools give credentials, region and
/// address.
pub(crate) fn load_from_store(case: &LoadCase, moto: &Moto, source: &str, more: &[&str]) -> Run {
    let mut command = case.load_command("--table t");
    command.args([source]).args(more);
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "secret");
    command.env("AWS_REGION", "us-east-1").env("AWS_ENDPOINT_URL", &moto.endpoint);
    Run::of(command.output().unwrap())
}

#[test]
fn objects_are_found_by_name_pattern_and_folder() {
    let case = LoadCase::new("create table t (id int primary key, name text)");
    let moto = Moto::start(&[]);
    put_object(&moto, "lake", b"");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(b"name,id\ntwo,2\n").unwrap();
    put_object(&moto, "lake/day%3D1/a.csv", b"id,name\n1,one\n");
    put_object(&moto, "lake/day%3D2/b.csv.gz", &encoder.finish().unwrap());
    put_object(&moto, "lake/day%3D2/_SUCCESS", b"");
    let load = |source: &str, more: &[&str]| load_from_store(&case, &moto, source, more);
    for source in ["s3://lake/", "s3://lake/**/*.csv*", "s3://lake/day=?/[ab].csv*"] {
        load(source, &[]).success();
        assert_eq!(case.rows("t"), ["(1,one)", "(2,two)"], "{source}");
        case.db.run("truncate t");
    }
    let option = format!("endpoint={}", moto.endpoint);
    let mut command = case.load_command("s3://lake/day=1/a.csv --table t --quiet");
    for option in [&option, "access_key_id=test", "secret_access_key=x", "region=us-east-1"] {
        command.args(["--source-option", option]);
    }
    Run::of(command.output().unwrap()).success();
    assert_eq!(case.rows("t"), ["(1,one)"]);
    assert_snapshot!(load("s3://lake/day=3/*.csv", &["-q"]).refusal(), @r#"
    error: no files match "s3://lake/day=3/*.csv"
      at: s3://lake/day=3/*.csv

    hint: Patterns match files: `*` stays within one folder, `**` crosses folders, and
          … hidden files are ignored.
    "#);
    assert_snapshot!(load("s3://no-such-lake/a.csv", &["-q"]).refusal(), @r#"
    error: bucket "no-such-lake" does not exist
      at: s3://no-such-lake/a.csv

    hint: Check the bucket's name. For a store that is not Amazon's, set AWS_ENDPOINT_URL.
    "#);
    assert_eq!(case.rows("t"), ["(1,one)"]);
}
