//! Numbers for people, as the engine writes them in its own words.

pub(crate) use pgspate::numbers::{bytes, clock, dollars, rate, seconds, short, thousands};
