//! Reads inputs and turns their bytes into the bytes of COPY.
//!
//! - [`source`]: reads and decompresses files, objects, URLs and standard input.
//! - [`mod@format`]: cuts the decompressed bytes into chunks of whole records.
//! - [`encode`]: turns the records of a chunk into rows of COPY. A row is binary if all values have
//!   an exact encoding, and text if only the server can read one of the values.
//! - [`json`]: the grammar of JSON.
//! - [`types`]: the types of columns and the session settings, as encoders need them.
//!
//! The same input always gives the same chunks and the same bytes. Nothing here connects to a
//! database server, or knows more of a table than the types of its columns.

pub mod encode;
pub mod format;
pub mod json;
pub mod source;
pub mod types;

pub(crate) use pgspate_base::{Error, ErrorKind, InputPlace, Result, Secret};
