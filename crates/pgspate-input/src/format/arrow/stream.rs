//! Reads streams of Arrow IPC, message by message.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_ipc::{MessageHeader, root_as_message};
use arrow_schema::{ArrowError, Schema, SchemaRef};

use super::message::{BATCH_BYTES_MAX, check_body};
use super::{DESCRIPTION_BYTES_MAX, damaged_error, read_error, run_decoder, truncated_error};
use crate::{Error, Result};

/// The most bytes that are allocated before they arrive. The buffer grows as bytes arrive.
const STEP_BYTES: usize = 16 << 20;

/// A stream of record batches, after its schema was read.
pub(super) struct ArrowStream {
    name: String,
    reader: Box<dyn Read + Send>,
    schema: SchemaRef,
    dictionaries: HashMap<i64, ArrayRef>,
    is_over: bool,
    /// Set if the stream must be whole: how many decompressed bytes it may still have.
    bytes_left: Option<u64>,
}

/// A message: its description, without the length before the description, and its body.
struct IpcMessage {
    description: Vec<u8>,
    body: Buffer,
}

impl ArrowStream {
    /// Reads the schema at the start of the stream.
    pub(super) fn open(name: &str, reader: Box<dyn Read + Send>) -> Result<ArrowStream> {
        let mut stream = ArrowStream {
            name: name.to_owned(),
            reader,
            schema: Arc::new(Schema::empty()),
            dictionaries: HashMap::new(),
            is_over: false,
            bytes_left: None,
        };
        let Some(message_parts) = stream.read_message()? else {
            return Err(damaged_error(name).because("the stream has no schema"));
        };
        let schema = run_decoder(name, || {
            let schema = parse_message(&message_parts)?.header_as_schema();
            let schema =
                schema.ok_or_else(|| parse_error("the stream does not begin with a schema"))?;
            if !schema.endianness().equals_to_target_endianness() {
                return Err(ArrowError::NotYetImplemented("big-endian Arrow data".to_owned()));
            }
            try_fb_to_schema(schema)
        })?;
        stream.schema = Arc::new(schema);
        Ok(stream)
    }

    /// Demands that the stream has at most `bytes_max` decompressed bytes.
    pub(super) fn limited(self, bytes_max: u64) -> ArrowStream {
        ArrowStream { bytes_left: Some(bytes_max), ..self }
    }

    pub(super) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn read_batch(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(message_parts) = self.read_message()? {
            let name = self.name.clone();
            if let Some(batch) = run_decoder(&name, || self.decode(&message_parts))? {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// Decodes a message. Returns its rows, or `None` for a dictionary.
    fn decode(&mut self, message_parts: &IpcMessage) -> Result<Option<RecordBatch>, ArrowError> {
        let message = parse_message(message_parts)?;
        let bytes_max = self.bytes_left.unwrap_or(BATCH_BYTES_MAX);
        let bytes = check_body(&message, &message_parts.body, bytes_max)?;
        self.bytes_left = self.bytes_left.map(|left| left.saturating_sub(bytes));
        let version = message.version();
        match message.header_type() {
            MessageHeader::RecordBatch => {
                let batch = message
                    .header_as_record_batch()
                    .ok_or_else(|| parse_error("a record batch message has no batch"))?;
                let (schema, dictionaries) = (self.schema(), &self.dictionaries);
                read_record_batch(&message_parts.body, batch, schema, dictionaries, None, &version)
                    .map(Some)
            }
            MessageHeader::DictionaryBatch => {
                let batch = message
                    .header_as_dictionary_batch()
                    .ok_or_else(|| parse_error("a dictionary message has no dictionary"))?;
                let dictionaries = &mut self.dictionaries;
                read_dictionary(&message_parts.body, batch, &self.schema, dictionaries, &version)?;
                Ok(None)
            }
            other => Err(parse_error(&format!("expected a record batch, found {other:?}"))),
        }
    }

    /// Reads the next message. Returns `None` at the end of the stream.
    fn read_message(&mut self) -> Result<Option<IpcMessage>> {
        let mut len = [0; 4];
        if self.is_over {
            return Ok(None);
        }
        if !self.fill(&mut len)? {
            return Err(truncated_error(&self.name).because("the end marker is missing"));
        }
        // Old streams have no marker before the length.
        if len == [0xFF; 4] && !self.fill(&mut len)? {
            return Err(truncated_error(&self.name));
        }
        let len = i32::from_le_bytes(len);
        if len == 0 {
            if self.fill(&mut [0])? {
                let error = damaged_error(&self.name).because("bytes follow the end marker");
                return Err(error.hint("Load streams that were joined as files of their own."));
            }
            return Ok(None);
        }
        let len = u64::try_from(len).ok().filter(|len| *len <= DESCRIPTION_BYTES_MAX).ok_or_else(
            || {
                damaged_error(&self.name)
                    .because(format!("a message states a description of {len} bytes"))
            },
        )?;
        let description = self.read_bytes(len as usize)?;
        let body = run_decoder(&self.name, || {
            let message = root_as_message(&description);
            Ok(message.map_err(|error| parse_error(&error.to_string()))?.bodyLength())
        })?;
        let len = usize::try_from(body).map_err(|_| {
            damaged_error(&self.name).because(format!("a message states a body of {body} bytes"))
        })?;
        let body = Buffer::from_vec(self.read_bytes(len)?);
        Ok(Some(IpcMessage { description, body }))
    }

    /// Fills `buf`. Returns false at the end of the stream.
    fn fill(&mut self, buf: &mut [u8]) -> Result<bool> {
        let mut filled = Vec::with_capacity(buf.len());
        let part = self.reader.by_ref().take(buf.len() as u64).read_to_end(&mut filled);
        match part.map_err(|error| read_error(&self.name, error))? {
            0 => Ok(false),
            len if len < buf.len() => Err(truncated_error(&self.name)),
            _ => {
                buf.copy_from_slice(&filled);
                Ok(true)
            }
        }
    }

    /// Reads `len` bytes. Memory is allocated as the bytes arrive.
    fn read_bytes(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let step = (len - bytes.len()).min(bytes.len().max(STEP_BYTES));
            bytes.try_reserve_exact(step).map_err(|_| self.memory_error(len))?;
            let part = self.reader.by_ref().take(step as u64).read_to_end(&mut bytes);
            if part.map_err(|error| read_error(&self.name, error))? < step {
                let found = bytes.len();
                let why = format!("a message states {len} bytes, but {found} follow");
                return Err(truncated_error(&self.name).because(why));
            }
        }
        Ok(bytes)
    }

    fn memory_error(&self, len: usize) -> Error {
        let why = format!("a message states {len} bytes, but this much memory is not available");
        damaged_error(&self.name).because(why)
    }
}

impl Iterator for ArrowStream {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.read_batch().transpose();
        // Bytes after the end or after an error are not read.
        self.is_over = !matches!(batch, Some(Ok(_)));
        batch
    }
}

fn parse_message(message_parts: &IpcMessage) -> Result<arrow_ipc::Message<'_>, ArrowError> {
    root_as_message(&message_parts.description).map_err(|error| parse_error(&error.to_string()))
}

fn parse_error(what: &str) -> ArrowError {
    ArrowError::ParseError(what.to_owned())
}
