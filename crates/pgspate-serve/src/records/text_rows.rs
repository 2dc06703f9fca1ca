//! Records as lines of COPY text, and the fields of such a line.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use axum::http::StatusCode;
use pgspate::Error;
use pgspate::encode::Encoded;
use pgspate::format::{Chunk, ChunkEncoder, EncodeMode, is_row_error};
use pgspate::writer::{EncodedRows, InsertShape};

use crate::fault::RequestFault;
use crate::state::BodyRoom;

/// How many bytes of text an encoder writes at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Encoded records.
pub(crate) struct TextRows {
    text: Vec<u8>,
    rows: Vec<Result<Range<usize>, Box<RequestFault>>>,
    /// The names of the fields of each line.
    pub(super) fields: Vec<String>,
    /// For each column of the shape the number of its field. A column without a field is NULL.
    pub(super) columns: Vec<Option<usize>>,
    /// The most bytes of text, and the most decompressed bytes of Arrow.
    pub(super) bytes_max: usize,
    /// The room of the request, which grows with the text.
    room: Arc<BodyRoom>,
}

impl TextRows {
    pub(super) fn new(bytes_max: usize, room: Arc<BodyRoom>) -> TextRows {
        let (fields, columns) = (Vec::new(), Vec::new());
        TextRows { text: Vec::new(), rows: Vec::new(), fields, columns, bytes_max, room }
    }

    /// Returns the number of records, refused ones included.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Encodes the records of a chunk.
    ///
    /// # Errors
    /// If the chunk cannot be read, or there is too much text.
    pub(super) fn encode(
        &mut self,
        encoder: &mut dyn ChunkEncoder,
        chunk: Chunk,
    ) -> Result<(), RequestFault> {
        let invalid = |error: Error| RequestFault::of_error(&error, false);
        let mut out = Encoded::default();
        let mut refused = Vec::new();
        encoder.begin(Arc::new(chunk), EncodeMode::Text).map_err(invalid)?;
        loop {
            let piece = out.text.len() + PIECE_BYTES;
            let has_more = match encoder.fill(&mut out, piece) {
                Ok(has_more) => has_more,
                Err(error) if is_row_error(&error) => {
                    let number = (out.text_rows.len() + refused.len()) as u64;
                    let column = error.place().and_then(|place| place.column.clone());
                    let details = column.map(|name| format!("column \"{name}\""));
                    let fault = RequestFault { details, ..invalid(error) };
                    refused.push((number, Box::new(fault)));
                    true
                }
                Err(error) => return Err(invalid(error)),
            };
            if self.text.len() + out.text.len() > self.bytes_max {
                let message = format!("the records have more than {} bytes", self.bytes_max);
                let status = StatusCode::PAYLOAD_TOO_LARGE;
                return Err(RequestFault::new(status, "body_too_large", message));
            }
            self.room.grow_to(self.text.len() + out.text.len())?;
            if !has_more {
                break;
            }
        }
        let start = self.text.len();
        self.text.append(&mut out.text);
        let mut at = start;
        let lines = self.text[start..].split_inclusive(|byte| *byte == b'\n').map(|line| {
            let range = at..at + line.len() - 1;
            at += line.len();
            range
        });
        let mut refused = refused.into_iter().peekable();
        for (line, number) in lines.zip(out.text_rows) {
            while let Some((_, fault)) = refused.next_if(|(it, _)| *it < number) {
                self.rows.push(Err(fault));
            }
            self.rows.push(Ok(line));
        }
        self.rows.extend(refused.map(|(_, fault)| Err(fault)));
        Ok(())
    }

    /// Inserts refused records. `faults` has an element for each record: `None` stands for a record
    /// that is encoded.
    pub(super) fn insert_faults<'a>(
        &mut self,
        faults: impl Iterator<Item = Option<&'a Box<RequestFault>>>,
    ) {
        let mut encoded = std::mem::take(&mut self.rows).into_iter();
        for fault in faults {
            match fault {
                Some(fault) => self.rows.push(Err(fault.clone())),
                None => self.rows.extend(encoded.next()),
            }
        }
    }

    /// Appends record number `nth` to `out`.
    ///
    /// # Errors
    /// Why the record is refused.
    pub(crate) fn push_to(
        &self,
        nth: usize,
        shape: &InsertShape,
        out: &mut EncodedRows,
    ) -> Result<(), Box<RequestFault>> {
        let line = &self.text[self.rows[nth].clone()?];
        let fields: Vec<Option<Cow<'_, [u8]>>> =
            line.split(|byte| *byte == b'\t').map(copy_field).collect();
        self.check_count(fields.len())?;
        let value = |place: &Option<usize>| place.and_then(|place| fields.get(place)?.as_deref());
        let values: Vec<Option<&[u8]>> = self.columns.iter().map(value).collect();
        shape
            .push_record(&values, out)
            .map_err(|error| Box::new(RequestFault::of_error(&error, false)))
    }

    /// Refuses a record with too few or too many fields, in COPY's words.
    fn check_count(&self, count: usize) -> Result<(), Box<RequestFault>> {
        let message = match self.fields.get(count) {
            Some(missing) => format!("missing data for column \"{missing}\""),
            None if count > self.fields.len().max(1) => {
                "extra data after last expected column".to_owned()
            }
            None => return Ok(()),
        };
        Err(Box::new(RequestFault::bad("22P04", message)))
    }
}

/// Returns the value of a field of COPY text. `None` is NULL.
fn copy_field(field: &[u8]) -> Option<Cow<'_, [u8]>> {
    if field == b"\\N" {
        return None;
    }
    if !field.contains(&b'\\') {
        return Some(Cow::Borrowed(field));
    }
    let mut value = Vec::with_capacity(field.len());
    let mut bytes = field.iter();
    while let Some(&byte) = bytes.next() {
        value.push(match byte {
            b'\\' => match bytes.next() {
                Some(b't') => b'\t',
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                other => *other.unwrap_or(&b'\\'),
            },
            byte => byte,
        });
    }
    Some(Cow::Owned(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgspate::encode::text;

    #[test]
    fn fields_are_read_as_they_were_written() {
        let values: [&[u8]; 7] = [b"", b"a", b"\\", b"\\N", b"a\tb\nc\rd\\t", b"\xff\\", b"n"];
        for value in values {
            let mut field = Vec::new();
            text::append(Some(value), &mut field);
            assert_eq!(copy_field(&field).as_deref(), Some(value));
        }
        let mut field = Vec::new();
        text::append(None, &mut field);
        assert_eq!(copy_field(&field), None);
    }
}
