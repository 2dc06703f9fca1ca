//! Bytes from files, object stores and standard input, decompressed and read ahead.

mod ranges;

pub use ranges::Ranges;
