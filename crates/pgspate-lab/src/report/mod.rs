//! One page of everything that was measured: self-contained, and read without scripts.
//!
//! The page is made of the lines alone, so it can be made again, and by somebody else. Whatever is
//! in a line is escaped.

pub mod figure;
mod scale;
mod svg;
pub mod words;
