//! Records as the parameters of statements: encoded once, by the caller that writes them.

use std::hash::Hasher;

use bytes::{BufMut, BytesMut};
use siphasher::sip128::{Hasher128, SipHasher13};
use tokio_postgres::types::{Format, IsNull, ToSql, Type};

use super::shape::{InsertRequest, InsertShape, OnConflict};
use crate::encode::field::FieldEncoder;
use crate::{Error, ErrorKind, Result};

/// The records of one call, encoded for a shape. They are written together or not at all.
#[derive(Debug, Default)]
pub struct EncodedRows {
    /// The fields one after the other, each with its length before it (int32; -1 for NULL).
    bytes: Vec<u8>,
    rows: usize,
    fields: usize,
    /// The fields that are left to the server as text, by their number among all fields.
    texts: Vec<usize>,
    request: Option<Box<RequestDigest>>,
}

/// The idempotency key of a call, and a digest of what it writes.
#[derive(Debug)]
struct RequestDigest {
    key: String,
    hasher: SipHasher13,
}

impl RequestDigest {
    /// Adds a text to the digest. The bytes depend on no version of Rust.
    fn feed(&mut self, text: Option<&[u8]>) {
        let length = text.map_or(u64::MAX, |text| text.len() as u64);
        self.hasher.write(&length.to_le_bytes());
        self.hasher.write(text.unwrap_or_default());
    }
}

/// An idempotency key with the fingerprint of its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestKey {
    pub(super) key: String,
    pub(super) fingerprint: String,
}

/// The longest idempotency key, in bytes.
pub const KEY_BYTES_MAX: usize = 255;

impl EncodedRows {
    /// Returns no records yet, of a call that is written once, however often it is sent with `key`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the key is empty or has more than 255 bytes.
    pub fn with_key(key: String) -> Result<EncodedRows> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX || key.contains('\0') {
            let message = format!("an idempotency key has 1 to {KEY_BYTES_MAX} bytes and no zero");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let request = Box::new(RequestDigest { key, hasher: SipHasher13::new() });
        Ok(EncodedRows { request: Some(request), ..EncodedRows::default() })
    }

    /// Takes the idempotency key, with the digest of the request and the records.
    pub(super) fn take_key(&mut self, request: &InsertRequest) -> Option<RequestKey> {
        let mut digest = *self.request.take()?;
        if self.fields == 0 && self.rows > 1 {
            // No field tells how many records there are. The digest of one record is that of
            // earlier versions, so that a call is known after an upgrade.
            digest.feed(Some(&(self.rows as u64).to_le_bytes()));
        }
        let mut texts = vec![request.table.as_str()];
        let (word, key): (&str, &[String]) = match &request.on_conflict {
            OnConflict::Refuse => ("refuse", &[]),
            OnConflict::Ignore(key) => ("ignore", key),
            OnConflict::Update(key) => ("update", key),
        };
        texts.push(word);
        for names in [key, &request.columns, &request.returning] {
            texts.extend(names.iter().map(String::as_str));
            texts.push("");
        }
        texts.iter().for_each(|text| digest.feed(Some(text.as_bytes())));
        let RequestDigest { key, hasher } = digest;
        let fingerprint = format!("{:032x}", hasher.finish128().as_u128());
        Some(RequestKey { key, fingerprint })
    }

    /// Appends a field, in binary if the encoder takes it.
    pub(super) fn push_field(&mut self, field: Option<&[u8]>, encoder: Option<&FieldEncoder>) {
        if let Some(request) = &mut self.request {
            // The text, as another version of pgspate may encode it otherwise.
            request.feed(field);
        }
        let start = self.bytes.len();
        match field {
            None => self.bytes.put_i32(-1),
            Some(text) => {
                let is_encoded = encoder.is_some_and(|it| it.encode(text, &mut self.bytes));
                if !is_encoded {
                    self.bytes.truncate(start);
                    self.bytes.put_i32(text.len() as i32);
                    self.bytes.extend_from_slice(text);
                    self.texts.push(self.fields);
                }
            }
        }
        self.fields += 1;
    }

    /// Returns whether the call has an idempotency key.
    pub(super) fn has_key(&self) -> bool {
        self.request.is_some()
    }

    /// Ends a record.
    pub(super) fn end_row(&mut self) {
        self.rows += 1;
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the memory that the records take, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether every field is binary, so that the records may be sent as arrays.
    pub(super) fn is_binary(&self) -> bool {
        self.texts.is_empty()
    }

    /// Returns the parameters of the statement for one record, for each record. `columns` is the
    /// number of columns of the shape.
    pub(super) fn parameters(&self, columns: usize) -> Vec<Vec<FieldParameter<'_>>> {
        let mut rest = &self.bytes[..];
        let mut texts = self.texts.iter().copied().peekable();
        let mut field = 0;
        let mut next_field = || {
            let is_text = texts.next_if_eq(&field).is_some();
            field += 1;
            FieldParameter { value: take_value(&mut rest), is_text }
        };
        (0..self.rows).map(|_| (0..columns).map(|_| next_field()).collect()).collect()
    }
}

/// Takes a field off the bytes. Returns its value, or `None` for NULL.
fn take_value<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(i32::from_be_bytes(*length)).ok();
    let (value, after) = after.split_at_checked(length.unwrap_or(0))?;
    *rest = after;
    length.map(|_| value)
}

/// A field as the parameter of a statement.
#[derive(Debug)]
pub(super) struct FieldParameter<'a> {
    value: Option<&'a [u8]>,
    is_text: bool,
}

type ToSqlResult = Result<IsNull, Box<dyn std::error::Error + Sync + Send>>;

impl ToSql for FieldParameter<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> ToSqlResult {
        match self.value {
            Some(value) => {
                out.extend_from_slice(value);
                Ok(IsNull::No)
            }
            None => Ok(IsNull::Yes),
        }
    }

    fn to_sql_checked(&self, ty: &Type, out: &mut BytesMut) -> ToSqlResult {
        self.to_sql(ty, out)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        if self.is_text { Format::Text } else { Format::Binary }
    }
}

/// A column of the records of several calls as a parameter: an array in PostgreSQL's binary format.
#[derive(Debug)]
pub(super) struct ColumnArray(BytesMut);

impl ColumnArray {
    /// Makes the arrays of all columns of the shape.
    pub(super) fn of_calls<'a>(
        shape: &InsertShape,
        calls: impl Iterator<Item = &'a EncodedRows> + Clone,
    ) -> Vec<ColumnArray> {
        let rows: usize = calls.clone().map(EncodedRows::len).sum();
        let begin = |element: u32| {
            let mut out = BytesMut::new();
            // One dimension, no NULL so far, the element type; then the length and the first index.
            out.put_i32(1);
            out.put_i32(0);
            out.put_u32(element);
            out.put_i32(rows as i32);
            out.put_i32(1);
            ColumnArray(out)
        };
        let mut arrays: Vec<ColumnArray> = shape.elements().map(begin).collect();
        for call in calls {
            let mut rest = &call.bytes[..];
            for _ in 0..call.rows {
                for ColumnArray(out) in &mut arrays {
                    match take_value(&mut rest) {
                        Some(value) => {
                            out.put_i32(value.len() as i32);
                            out.extend_from_slice(value);
                        }
                        None => {
                            out[7] = 1;
                            out.put_i32(-1);
                        }
                    }
                }
            }
        }
        arrays
    }
}

impl ToSql for ColumnArray {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> ToSqlResult {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn to_sql_checked(&self, ty: &Type, out: &mut BytesMut) -> ToSqlResult {
        self.to_sql(ty, out)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}
