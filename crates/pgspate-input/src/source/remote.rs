//! One remote object: ranges of it, or its body as a stream where the server knows no ranges.
//!
//! Every answer is checked to be of the object that was resolved: same size, same entity tag. An
//! object that changed in between is an error, never a mixture of two versions.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};

use super::http::{Body, HttpObject};
use super::store::Scheme;
use super::{fault, store};
use crate::{Error, ErrorKind, Result, Secret};

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

    /// What its name does not show, and what tells it from others of that name.
    pub(super) fn hidden(&self) -> Option<Secret> {
        match self {
            Remote::Store(_) => None,
            Remote::Http(object) => object.hidden(),
        }
    }

    /// Whether its size and the tag of its version prove that two answers are of the same content.
    /// A time of change proves nothing: two versions may have the same.
    pub(super) fn is_versioned(&self) -> bool {
        let is_strong = |tag: &Option<String>| tag.as_deref().is_some_and(|tag| !is_weak(tag));
        match self {
            Remote::Store(object) => is_strong(&object.etag),
            Remote::Http(object) => object.size.is_some() && is_strong(&object.etag),
        }
    }

    /// Its size where it is read by ranges from its start to its end.
    pub(super) fn ranged_size(&self) -> Option<u64> {
        match self {
            Remote::Store(object) => Some(object.size),
            Remote::Http(_) if !self.is_versioned() => None,
            Remote::Http(object) => object.size.filter(|_| object.has_ranges),
        }
    }

    /// Its size where parts of it can be asked for in any order, and each answer says something of
    /// the version that it is of.
    pub(super) fn random_size(&self) -> Option<u64> {
        match self {
            Remote::Store(object) => Some(object.size),
            Remote::Http(object) => {
                let is_marked = object.etag.is_some() || object.modified.is_some();
                object.size.filter(|_| object.has_ranges && is_marked)
            }
        }
    }

    /// Whether a body without a length of its own may end with the connection.
    pub(super) fn may_end_anywhere(&self) -> bool {
        matches!(self, Remote::Http(object) if object.is_unframed && !object.allows_unframed)
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
            Remote::Store(_) => Err(Error::new(ErrorKind::Bug, "object stores are read by ranges")),
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
    pub(super) modified: SystemTime,
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
        let is_later =
            self.etag.is_none() && SystemTime::from(answer.meta.last_modified) != self.modified;
        if answer.meta.size != self.size || !same_tag(&self.etag, &answer.meta.e_tag) || is_later {
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

/// The error for a body of which nobody says where it ends.
pub(super) fn unframed(name: &str) -> Error {
    let message = format!("the server does not say where \"{name}\" ends");
    fault(name, message).hint(
        "A part of it cannot be told from all of it. Download it first and name the file, or have \
         it served with a length or compressed. `--source-option unframed=allow` takes the end of \
         the connection for the end of the data.",
    )
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
