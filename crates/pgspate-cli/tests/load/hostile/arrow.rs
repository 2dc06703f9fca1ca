//! Tests of Arrow files and streams with forged sizes. A test writes a valid file and changes a
//! size.

use std::sync::Arc;

use arrow_array::{ArrayRef, DictionaryArray, Int32Array, RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};

use super::{check_loaded, check_refused, new_case};
use crate::web_servers::{BodyFraming, BodyServer};

/// Bytes of the only string in a batch: a number that occurs nowhere else in the file.
const TEXT_BYTES: i64 = 34_567;

fn record_batch() -> RecordBatch {
    let text = StringArray::from(vec!["x".repeat(TEXT_BYTES as usize)]);
    RecordBatch::try_from_iter([("v", Arc::new(text) as ArrayRef)]).unwrap()
}

fn dictionary_batch() -> RecordBatch {
    let text = StringArray::from(vec!["x".repeat(TEXT_BYTES as usize)]);
    let array = DictionaryArray::new(Int32Array::from(vec![0]), Arc::new(text));
    RecordBatch::try_from_iter([("v", Arc::new(array) as ArrayRef)]).unwrap()
}

fn write_options(compression: Option<CompressionType>) -> IpcWriteOptions {
    IpcWriteOptions::default().try_with_compression(compression).unwrap()
}

fn encode_file(batch: &RecordBatch, compression: Option<CompressionType>) -> Vec<u8> {
    let options = write_options(compression);
    let mut writer =
        FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

fn encode_stream(batch: &RecordBatch, compression: Option<CompressionType>) -> Vec<u8> {
    let options = write_options(compression);
    let mut writer =
        StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

/// Encodes a batch in both formats. Returns each encoding with the extension of its file name.
fn encode_both(
    batch: &RecordBatch,
    compression: Option<CompressionType>,
) -> [(&'static str, Vec<u8>); 2] {
    [("arrow", encode_file(batch, compression)), ("arrows", encode_stream(batch, compression))]
}

/// Replaces a number by another wherever its bytes occur.
#[track_caller]
fn replace_number(content: &[u8], number: i64, other: i64) -> Vec<u8> {
    let (from, to) = (number.to_le_bytes(), other.to_le_bytes());
    let mut content = content.to_vec();
    let places: Vec<_> =
        (0..content.len() - 8).filter(|at| content[*at..*at + 8] == from).collect();
    assert!(!places.is_empty(), "the content must have the number {number}");
    for at in places {
        content[at..at + 8].copy_from_slice(&to);
    }
    content
}

#[test]
fn compressed_buffers_of_forged_sizes_are_refused() {
    let case = new_case();
    for (packing, name) in [(CompressionType::LZ4_FRAME, "lz4"), (CompressionType::ZSTD, "zstd")] {
        for (batch, what) in [(record_batch(), "plain"), (dictionary_batch(), "dictionary")] {
            for (end, content) in encode_both(&batch, Some(packing)) {
                check_loaded(&case, &format!("{what}_{name}.{end}"), &content, 1);
                for stated in [4 << 40, i64::MAX, i64::from(i32::MAX), -2, i64::MIN] {
                    let content = replace_number(&content, TEXT_BYTES, stated);
                    let name = format!("{what}_{name}{stated}.{end}");
                    let states = format!("states {stated} bytes");
                    check_refused(
                        &case,
                        &name,
                        content,
                        &["could not decode the Arrow data", &states],
                    );
                }
            }
        }
    }
}

#[test]
fn buffers_beyond_the_body_are_refused() {
    let case = new_case();
    for (end, content) in encode_both(&record_batch(), None) {
        check_loaded(&case, &format!("whole.{end}"), &content, 1);
        for stated in [4 << 40, i64::MAX, -1] {
            let content = replace_number(&content, TEXT_BYTES, stated);
            let words = format!("states {stated} bytes from byte");
            check_refused(&case, &format!("buffer{stated}.{end}"), content, &[&words]);
        }
    }
}

/// Returns the offset of each message of a stream and the length of its description.
fn find_messages(stream: &[u8]) -> Vec<(usize, i32)> {
    let number = |at: usize| i32::from_le_bytes(stream[at..at + 4].try_into().unwrap());
    let marks = (0..stream.len() - 8).filter(|at| number(*at) == -1 && number(*at + 4) > 0);
    marks.map(|at| (at, number(at + 4))).collect()
}

#[test]
fn messages_of_forged_lengths_are_refused() {
    let case = new_case();
    let content = encode_stream(&record_batch(), None);
    for (nth, (at, _)) in find_messages(&content).into_iter().enumerate() {
        for (stated, words) in [
            (i32::MAX, "states a description of 2147483647 bytes"),
            (200 << 20, "a message states 209715200 bytes, but"),
            (-7, "states a description of -7 bytes"),
        ] {
            let mut content = content.clone();
            content[at + 4..at + 8].copy_from_slice(&stated.to_le_bytes());
            check_refused(&case, &format!("message{nth}_{stated}.arrows"), content, &[words]);
        }
    }
    // The number of the body's length occurs only in the message that states the length.
    let (at, len) = find_messages(&content)[1];
    let body = content.len() - 8 - at - 8 - len as usize;
    for (stated, words) in [
        (4_i64 << 40, "a message states 4398046511104 bytes, but"),
        (i64::MAX, "a message states 9223372036854775807 bytes, but"),
        (-1, "states a body of -1 bytes"),
    ] {
        let content = replace_number(&content, body as i64, stated);
        check_refused(&case, &format!("body{stated}.arrows"), content, &[words]);
    }
    let content = encode_file(&record_batch(), None);
    for stated in [4_i64 << 40, i64::MAX, -1] {
        let content = replace_number(&content, body as i64, stated);
        let words = format!("a body of {stated} bytes, but the file has");
        check_refused(&case, &format!("body{stated}.arrow"), content, &[&words]);
    }
    let end = content.len() - 10;
    for stated in [i32::MAX, content.len() as i32] {
        let mut content = content.clone();
        content[end..end + 4].copy_from_slice(&stated.to_le_bytes());
        let words = format!("the footer states {stated} bytes");
        check_refused(&case, &format!("footer{stated}.arrow"), content, &[&words]);
    }
}

#[test]
fn a_stream_truncated_anywhere_is_refused() {
    let case = new_case();
    let content = encode_stream(&dictionary_batch(), Some(CompressionType::ZSTD));
    let edges: Vec<usize> = find_messages(&content).iter().map(|(at, _)| *at).collect();
    for edge in edges {
        for len in [edge + 1, edge + 3, edge + 4, edge + 7, edge + 9] {
            let name = format!("cut{len}.arrows");
            check_refused(&case, &name, &content[..len], &["the Arrow data is truncated"]);
        }
    }
}

/// A stated size may be false, so pgspate does not allocate the stated memory at once.
#[test]
fn a_message_over_http_of_forged_size_is_refused() {
    let case = new_case();
    let content = encode_stream(&record_batch(), None);
    let (at, len) = find_messages(&content)[1];
    let body = content.len() - 8 - at - 8 - len as usize;
    let web =
        BodyServer::start(BodyFraming::Chunked, replace_number(&content, body as i64, 3 << 30));
    let run = web.load(&case, "--format arrow");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("a message states 3221225472 bytes, but"), "{}", run.stderr);
}
