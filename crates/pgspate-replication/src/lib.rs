//! Sources of change events that have no end: replication slots of PostgreSQL, topics of Kafka.
//!
//! - [`EventSource`] is what reads, on a thread of its own; [`SourcePosition`] is how far that is.
//! - [`postgres`]: a publication's stream and its tables as they were before, over a walsender.
//! - [`slot`]: a slot as the source of a run: where it begins, and over lost connections.
//! - [`kafka`]: topics as the source of a run, where the feature `kafka` is on.
//! - [`LagMeter`]: how far what is applied is behind its source.
//!
//! Every event comes once and in its source's order, over as many connections as that takes. The
//! source is told only of what the caller has committed. Events that can no longer be read are an
//! error, never a gap. Nothing here knows of batches, of rows, or of how events are written.

mod digest;
pub mod kafka;
mod lag;
mod names;
pub mod postgres;
pub mod slot;
mod source;

pub use digest::{Digest, Trail};
pub use lag::{Lag, LagMeter, SourcePoint};
pub use names::SourceNames;
pub use source::{EventSource, Gone, Pieces, SourcePosition};

pub(crate) use pgspate_base::{Error, ErrorKind, InputPlace, Result};

/// Decodes a part of a URL, where a plus is a plus.
fn decode_url_part(value: &str) -> String {
    let pair = format!("v={}", value.replace('+', "%2B").replace('&', "%26"));
    url::form_urlencoded::parse(pair.as_bytes()).map(|(_, value)| value.into_owned()).collect()
}
