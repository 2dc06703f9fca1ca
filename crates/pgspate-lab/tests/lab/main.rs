//! The lab as a whole, on servers that are really there.

mod course;
mod foreign;
mod page;
mod shipped;
mod support;
