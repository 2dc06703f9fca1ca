//! The grammar of JSON (RFC 8259), for whoever reads it value by value.
//!
//! A value stays the bytes that stand in the input until somebody needs what it means, so a number
//! never passes through a float.

mod array;
mod parse;
mod string;

pub use array::{Shape, literal};
pub use parse::{Scalar, Syntax, key_end, skip_space, string_end, value};
pub use string::{Unfit, unescape};
