//! What is read, up to the bytes that COPY takes.
//!
//! - [`source`]: bytes of files, objects, URLs and standard input, decompressed.
//! - [`mod@format`]: these bytes, cut into chunks of whole records.
//! - [`encode`]: records of a chunk as rows of COPY, in binary where that is exact and in text
//!   where only the server can read a value.
//! - [`json`]: the grammar of JSON.
//! - [`types`]: what encoders know of a column's type and of a session's settings.
//!
//! A chunk that is cut again has the same records, and is encoded into the same bytes. Nothing here
//! talks to a database server, and nothing knows of tables but the types of their columns.

pub mod encode;
pub mod format;
pub mod json;
pub mod source;
pub mod types;

pub(crate) use pgspate_base::{Error, ErrorKind, InputPlace, Result, Secret};
