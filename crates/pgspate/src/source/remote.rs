//! One remote object: ranges of it, or its body as a stream where the server knows no ranges.
//!
//! Every answer is checked to be of the object that was resolved: same size, same entity tag. An
//! object that changed in between is an error, never a mixture of two versions.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};

use super::http::{Body, HttpObject};
use super::store::Scheme;
use super::{fault, store};
use crate::{Error, Kind, Result};

/// An object in a store, or behind a URL.
#[derive(Debug)]
pub(super) enum Remote {
    Store(StoreObject),
    Http(HttpObject),
}

impl Remote {
    /// Its name as the user would write it.
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Remote::Store(object) => &object.name,
            Remote::Http(object) => &object.name,
        }
    }

    /// Its size where ranges of it can be asked for.
    pub(super) fn ranged_size(&self) -> Option<u64> {
        match self {
            Remote::Store(object) => Some(object.size),
            Remote::Http(object) => object.size.filter(|_| object.has_ranges),
        }
    }

    /// Exactly the bytes of `range`.
    pub(super) async fn range(&self, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        match self {
            Remote::Store(object) => object.range(range).await,
            Remote::Http(object) => object.range(range).await,
        }
    }

    /// The whole body, in order.
    pub(super) async fn stream(&self) -> Result<Body> {
        match self {
            Remote::Store(_) => Err(Error::new(Kind::Bug, "object stores are read by ranges")),
            Remote::Http(object) => object.stream().await,
        }
    }
}

/// An object in an object store, as it was when it was resolved.
#[derive(Debug)]
pub(super) struct StoreObject {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) scheme: Scheme,
    pub(super) path: Path,
    pub(super) name: Arc<str>,
    pub(super) size: u64,
    pub(super) etag: Option<String>,
}

impl StoreObject {
    async fn range(&self, range: Range<u64>) -> Result<Bytes> {
        let len = range.end - range.start;
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: self.etag.as_deref().filter(|tag| !is_weak(tag)).map(quoted),
            ..GetOptions::default()
        };
        let refused = |error| store::refused(self.scheme, &self.name, &error);
        let answer = self.store.get_opts(&self.path, options).await.map_err(refused)?;
        if answer.meta.size != self.size || !same_tag(&self.etag, &answer.meta.e_tag) {
            return Err(changed(&self.name));
        }
        let bytes = answer.bytes().await.map_err(refused)?;
        if bytes.len() as u64 != len {
            return Err(short(&self.name, bytes.len() as u64, len));
        }
        Ok(bytes)
    }
}

/// The error for an object that is not the one it was.
pub(super) fn changed(name: &str) -> Error {
    fault(name, format!("\"{name}\" changed while it was being read"))
        .hint("Run it again when nothing writes to the object any more.")
}

/// The error for a body that holds less or more than was asked for.
pub(super) fn short(name: &str, found: u64, expected: u64) -> Error {
    fault(name, format!("the server sent {found} bytes of \"{name}\" where {expected} were due"))
}

/// Listings of some stores leave out the quotes that a header needs.
fn quoted(tag: &str) -> String {
    if tag.starts_with('"') { tag.to_owned() } else { format!("\"{tag}\"") }
}

pub(super) fn is_weak(tag: &str) -> bool {
    tag.starts_with("W/")
}

/// Whether two entity tags may name the same version. A tag that is missing says nothing.
pub(super) fn same_tag(expected: &Option<String>, found: &Option<String>) -> bool {
    let bare = |tag: &str| tag.trim_start_matches("W/").trim_matches('"').to_owned();
    match (expected, found) {
        (Some(expected), Some(found)) => bare(expected) == bare(found),
        _ => true,
    }
}
