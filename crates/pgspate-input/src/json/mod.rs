//! The grammar of JSON (RFC 8259), for readers that go from value to value.
//!
//! A value stays the bytes of the input until a caller converts it, so a number never passes
//! through a float. JSON rows and change events are read with it.

mod array;
mod parse;
mod string;

pub use array::{ArrayLiteralStyle, append_array_literal};
pub use parse::{JsonKind, JsonSyntaxError, key_end, skip_space, string_end, value_end};
pub use string::{UnsupportedEscape, unescape};
