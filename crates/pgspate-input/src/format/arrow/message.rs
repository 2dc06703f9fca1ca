//! Checks the sizes that messages of Arrow IPC state, before the decoder allocates memory.

use arrow_buffer::Buffer;
use arrow_ipc::{CompressionType, Message, MessageHeader, RecordBatch};
use arrow_schema::ArrowError;

use super::super::stated_size::{ColumnCodec, check_memory, check_stated_size};

/// The most bytes of a decompressed record batch.
pub(super) const BATCH_BYTES_MAX: u64 = 8 << 30;
/// The length of the decompressed size, which is at the start of each compressed buffer.
const PREFIX_BYTES: usize = 8;

/// Parses the description of a message in a file. The length of the description precedes it.
///
/// # Errors
/// An Arrow error if the bytes are not a description.
pub(super) fn parse_description(bytes: &[u8]) -> Result<Message<'_>, ArrowError> {
    let skip = if bytes.starts_with(&[0xFF; 4]) { 8 } else { 4 };
    let message = bytes.get(skip..).map(arrow_ipc::root_as_message);
    match message {
        Some(Ok(message)) => Ok(message),
        Some(Err(error)) => Err(ArrowError::ParseError(error.to_string())),
        None => Err(ArrowError::ParseError("a message is empty".to_owned())),
    }
}

/// Checks the sizes that a message with rows or with a dictionary states about its body. Returns
/// how many bytes its compressed buffers have after decompression.
///
/// # Errors
/// An Arrow error with the stated and the actual size, if they contradict each other. Also if there
/// would be more than `bytes_max` decompressed bytes.
pub(super) fn check_body(
    message: &Message<'_>,
    body: &Buffer,
    bytes_max: u64,
) -> Result<u64, ArrowError> {
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        MessageHeader::DictionaryBatch => {
            message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data())
        }
        _ => None,
    };
    match batch {
        Some(batch) => check_batch(&batch, body, bytes_max).map_err(ArrowError::IpcError),
        None => Ok(0),
    }
}

fn check_batch(batch: &RecordBatch<'_>, body: &Buffer, bytes_max: u64) -> Result<u64, String> {
    if batch.length() < 0 {
        return Err(format!("a record batch states {} rows", batch.length()));
    }
    for (array_index, node) in batch.nodes().iter().flatten().enumerate() {
        let (rows, nulls) = (node.length(), node.null_count());
        if rows < 0 || !(0..=rows).contains(&nulls) {
            return Err(format!("array {array_index} states {rows} values, {nulls} of them NULL"));
        }
    }
    let codec = match batch.compression().map(|compression| compression.codec()) {
        None => None,
        Some(CompressionType::LZ4_FRAME) => Some(ColumnCodec::Lz4),
        Some(CompressionType::ZSTD) => Some(ColumnCodec::Zstd),
        Some(other) => return Err(format!("unknown compression {}", other.0)),
    };
    let mut sum = 0_u64;
    for (buffer_index, buffer) in batch.buffers().iter().flatten().enumerate() {
        let (start, len) = (buffer.offset(), buffer.length());
        let range = usize::try_from(start).ok().zip(usize::try_from(len).ok());
        let bytes = range.and_then(|(start, len)| body.get(start..start.checked_add(len)?));
        let Some(bytes) = bytes else {
            let body_len = body.len();
            return Err(format!(
                "buffer {buffer_index} states {len} bytes from byte {start} on, \
                 in a body of {body_len} bytes"
            ));
        };
        if let Some(codec) = codec {
            let size = check_compressed(bytes, codec)
                .map_err(|why| format!("buffer {buffer_index} {why}"))?;
            sum = sum.saturating_add(size);
        }
    }
    if sum > bytes_max {
        return Err(format!("a record batch states {sum} bytes, expected at most {bytes_max}"));
    }
    check_memory(sum).map_err(|why| format!("a record batch states {sum} bytes, {why}"))?;
    Ok(sum)
}

/// Checks and returns the decompressed size of a buffer.
fn check_compressed(bytes: &[u8], codec: ColumnCodec) -> Result<u64, String> {
    let Some((prefix, compressed)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        // An empty buffer is not compressed. The decoder refuses a buffer that is too short.
        return Ok(0);
    };
    match i64::from_le_bytes(*prefix) {
        // The buffer is not compressed.
        -1 => Ok(0),
        stated => {
            let size = u64::try_from(stated).map_err(|_| format!("states {stated} bytes"))?;
            check_stated_size(size, codec, compressed.len() as u64, BATCH_BYTES_MAX)?;
            Ok(size)
        }
    }
}
