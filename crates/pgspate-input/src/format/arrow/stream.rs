//! The stream format of Arrow IPC, read message by message.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_ipc::{MessageHeader, root_as_message};
use arrow_schema::{ArrowError, Schema, SchemaRef};

use super::message::check_body;
use super::{DESCRIPTION_BYTES_MAX, cut_short, damaged, guarded, read_error};
use crate::{Error, Result};

/// Bytes for which room is made before they have come. More is made as they come.
const STEP_BYTES: usize = 16 << 20;

/// A stream of record batches whose schema has been read.
pub(super) struct ArrowStream {
    name: String,
    reader: Box<dyn Read + Send>,
    schema: SchemaRef,
    dictionaries: HashMap<i64, ArrayRef>,
    is_over: bool,
}

/// A message: its description, without the length before it, and its body.
struct Parts {
    description: Vec<u8>,
    body: Buffer,
}

impl ArrowStream {
    /// Reads the schema.
    pub(super) fn open(name: &str, reader: Box<dyn Read + Send>) -> Result<ArrowStream> {
        let mut stream = ArrowStream {
            name: name.to_owned(),
            reader,
            schema: Arc::new(Schema::empty()),
            dictionaries: HashMap::new(),
            is_over: false,
        };
        let Some(parts) = stream.message()? else {
            return Err(damaged(name).because("it has no schema"));
        };
        let schema = guarded(name, || {
            let schema = message(&parts)?.header_as_schema();
            let schema = schema.ok_or_else(|| bad("it does not begin with a schema"))?;
            if !schema.endianness().equals_to_target_endianness() {
                return Err(ArrowError::NotYetImplemented("big-endian Arrow data".to_owned()));
            }
            try_fb_to_schema(schema)
        })?;
        stream.schema = Arc::new(schema);
        Ok(stream)
    }

    pub(super) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn batch(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(parts) = self.message()? {
            let name = self.name.clone();
            if let Some(batch) = guarded(&name, || self.decode(&parts))? {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// The rows of a message; a dictionary has none.
    fn decode(&mut self, parts: &Parts) -> Result<Option<RecordBatch>, ArrowError> {
        let message = message(parts)?;
        check_body(&message, &parts.body)?;
        let version = message.version();
        match message.header_type() {
            MessageHeader::RecordBatch => {
                let batch = message.header_as_record_batch().ok_or_else(|| bad("no batch"))?;
                let (schema, dictionaries) = (self.schema(), &self.dictionaries);
                read_record_batch(&parts.body, batch, schema, dictionaries, None, &version)
                    .map(Some)
            }
            MessageHeader::DictionaryBatch => {
                let batch =
                    message.header_as_dictionary_batch().ok_or_else(|| bad("no dictionary"))?;
                let dictionaries = &mut self.dictionaries;
                read_dictionary(&parts.body, batch, &self.schema, dictionaries, &version)?;
                Ok(None)
            }
            other => Err(bad(&format!("expected a record batch, found {other:?}"))),
        }
    }

    /// The next message. `None` at the end of the stream.
    fn message(&mut self) -> Result<Option<Parts>> {
        let mut len = [0; 4];
        if self.is_over || !self.fill(&mut len)? {
            return Ok(None);
        }
        // Streams of old have no mark before the length.
        if len == [0xFF; 4] && !self.fill(&mut len)? {
            return Err(cut_short(&self.name));
        }
        let len = i32::from_le_bytes(len);
        if len == 0 {
            return Ok(None);
        }
        let len = u64::try_from(len).ok().filter(|len| *len <= DESCRIPTION_BYTES_MAX).ok_or_else(
            || damaged(&self.name).because(format!("a message states {len} bytes of description")),
        )?;
        let description = self.bytes(len as usize)?;
        let body = guarded(&self.name, || {
            let message = root_as_message(&description);
            Ok(message.map_err(|error| bad(&error.to_string()))?.bodyLength())
        })?;
        let len = usize::try_from(body).map_err(|_| {
            damaged(&self.name).because(format!("a message states {body} bytes of body"))
        })?;
        let body = Buffer::from_vec(self.bytes(len)?);
        Ok(Some(Parts { description, body }))
    }

    /// Fills `buf`; false where the stream is at its end.
    fn fill(&mut self, buf: &mut [u8]) -> Result<bool> {
        let mut filled = Vec::with_capacity(buf.len());
        let part = self.reader.by_ref().take(buf.len() as u64).read_to_end(&mut filled);
        match part.map_err(|error| read_error(&self.name, error))? {
            0 => Ok(false),
            len if len < buf.len() => Err(cut_short(&self.name)),
            _ => {
                buf.copy_from_slice(&filled);
                Ok(true)
            }
        }
    }

    /// As many bytes, for which room is made as they come.
    fn bytes(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let step = (len - bytes.len()).min(bytes.len().max(STEP_BYTES));
            bytes.try_reserve_exact(step).map_err(|_| self.without_room(len))?;
            let part = self.reader.by_ref().take(step as u64).read_to_end(&mut bytes);
            if part.map_err(|error| read_error(&self.name, error))? < step {
                let there = bytes.len();
                let why = format!("a message states {len} bytes, but {there} follow");
                return Err(cut_short(&self.name).because(why));
            }
        }
        Ok(bytes)
    }

    fn without_room(&self, len: usize) -> Error {
        let why = format!("a message states {len} bytes, for which memory could not be had");
        damaged(&self.name).because(why)
    }
}

impl Iterator for ArrowStream {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.batch().transpose();
        // Whatever follows the end, or an error, is not read.
        self.is_over = !matches!(batch, Some(Ok(_)));
        batch
    }
}

fn message(parts: &Parts) -> Result<arrow_ipc::Message<'_>, ArrowError> {
    root_as_message(&parts.description).map_err(|error| bad(&error.to_string()))
}

fn bad(what: &str) -> ArrowError {
    ArrowError::ParseError(what.to_owned())
}
