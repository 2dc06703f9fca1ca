//! Messages of Arrow IPC: what they state, checked before the decoder takes memory by it.

use arrow_buffer::Buffer;
use arrow_ipc::{CompressionType, Message, MessageHeader, RecordBatch};
use arrow_schema::ArrowError;

use super::super::stated::{Packing, check, check_room};

/// Bytes of a record batch, at most, when it is decompressed.
const BATCH_BYTES_MAX: u64 = 8 << 30;
/// A buffer that is compressed begins with its decompressed size.
const PREFIX_BYTES: usize = 8;

/// Reads the description at the start of a message as a file has it, its length before it.
///
/// # Errors
/// It is none.
pub(super) fn description(bytes: &[u8]) -> Result<Message<'_>, ArrowError> {
    let skip = if bytes.starts_with(&[0xFF; 4]) { 8 } else { 4 };
    let message = bytes.get(skip..).map(arrow_ipc::root_as_message);
    match message {
        Some(Ok(message)) => Ok(message),
        Some(Err(error)) => Err(ArrowError::ParseError(error.to_string())),
        None => Err(ArrowError::ParseError("a message of no bytes".to_owned())),
    }
}

/// Checks what a message with rows or with a dictionary states of its body.
///
/// # Errors
/// What was stated, and what was found.
pub(super) fn check_body(message: &Message<'_>, body: &Buffer) -> Result<(), ArrowError> {
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        MessageHeader::DictionaryBatch => {
            message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data())
        }
        _ => None,
    };
    match batch {
        Some(batch) => check_batch(&batch, body).map_err(ArrowError::IpcError),
        None => Ok(()),
    }
}

fn check_batch(batch: &RecordBatch<'_>, body: &Buffer) -> Result<(), String> {
    if batch.length() < 0 {
        return Err(format!("a record batch states {} rows", batch.length()));
    }
    for (nth, node) in batch.nodes().iter().flatten().enumerate() {
        let (rows, nulls) = (node.length(), node.null_count());
        if rows < 0 || !(0..=rows).contains(&nulls) {
            return Err(format!("array {nth} states {rows} values, {nulls} of them NULL"));
        }
    }
    let packing = match batch.compression().map(|compression| compression.codec()) {
        None => None,
        Some(CompressionType::LZ4_FRAME) => Some(Packing::Lz4),
        Some(CompressionType::ZSTD) => Some(Packing::Zstd),
        Some(other) => return Err(format!("compression {} is not known", other.0)),
    };
    let mut sum = 0_u64;
    for (nth, buffer) in batch.buffers().iter().flatten().enumerate() {
        let (start, len) = (buffer.offset(), buffer.length());
        let range = usize::try_from(start).ok().zip(usize::try_from(len).ok());
        let bytes = range.and_then(|(start, len)| body.get(start..start.checked_add(len)?));
        let Some(bytes) = bytes else {
            let there = body.len();
            return Err(format!(
                "buffer {nth} states {len} bytes from byte {start} of a body of {there} bytes on"
            ));
        };
        if let Some(packing) = packing {
            let size = check_packed(bytes, packing).map_err(|why| format!("buffer {nth} {why}"))?;
            sum = sum.saturating_add(size);
        }
    }
    if sum > BATCH_BYTES_MAX {
        let most = BATCH_BYTES_MAX;
        return Err(format!("a record batch states {sum} bytes, expected {most} at most"));
    }
    check_room(sum).map_err(|why| format!("a record batch states {sum} bytes, {why}"))
}

/// The decompressed size of a buffer.
fn check_packed(bytes: &[u8], packing: Packing) -> Result<u64, String> {
    let Some((prefix, packed)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        // An empty one is not compressed; the decoder refuses those that are too short.
        return Ok(0);
    };
    match i64::from_le_bytes(*prefix) {
        // It is stored as it is.
        -1 => Ok(0),
        stated => {
            let size = u64::try_from(stated).map_err(|_| format!("states {stated} bytes"))?;
            check(size, packing, packed.len() as u64, BATCH_BYTES_MAX)?;
            Ok(size)
        }
    }
}
