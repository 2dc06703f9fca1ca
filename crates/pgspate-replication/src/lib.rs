//! Sources of change events that have no end: replication slots of PostgreSQL, topics of Kafka.
//!
//! - [`EventSource`] reads events on its own thread; [`SourcePosition`] tracks how far it has read.
//! - [`postgres`]: the stream of a slot, and the snapshot of the published tables where it begins.
//! - [`slot`]: a slot as the source of a run: where the run begins, and reconnecting.
//! - [`kafka`]: topics as the source of a run, with the feature `kafka`.
//! - [`LagMeter`]: how far the target is behind the source.
//!
//! Every event comes once, in the source's order, even if connections are lost. Only events that
//! the caller has committed are confirmed to the source. Events that can no longer be read are an
//! error, never a silent gap. This crate knows nothing of batches, or of how events are written.

pub mod kafka;
mod lag;
pub mod postgres;
pub mod slot;
mod source;
mod source_names;
mod stream_digest;

pub use lag::{LagMeter, SourcePoint, StreamLag};
pub use source::{EventSender, EventSource, ReceiverGone, SourcePosition};
pub use source_names::SourceNames;
pub use stream_digest::{DigestedPosition, StreamDigest};

pub(crate) use pgspate_base::{Error, ErrorKind, InputPlace, Result};

/// Decodes a part of a URL. A plus sign stays a plus sign.
fn decode_url_part(value: &str) -> String {
    let pair = format!("v={}", value.replace('+', "%2B").replace('&', "%26"));
    url::form_urlencoded::parse(pair.as_bytes()).map(|(_, value)| value.into_owned()).collect()
}
