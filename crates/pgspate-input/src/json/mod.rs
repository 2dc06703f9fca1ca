//! The grammar of JSON (RFC 8259), for readers that go from value to value.
//!
//! Until a caller converts a value, the value is a range of the input's bytes. So a number never
//! passes through a float. The readers of JSON rows and of change events use this module.

mod array;
mod hstore;
mod parse;
mod string;

pub use array::{ArrayLiteralStyle, append_array_literal};
pub use hstore::append_hstore;
pub use parse::{JsonKind, JsonSyntaxError, key_end, skip_space, string_end, value_end};
pub use string::{UnsupportedEscape, unescape};
