//! A remote object, read by ranges, or as a stream if the server does not support ranges.
//!
//! The size and entity tag of every response must equal those of the resolved object. An object
//! that has changed is an error, so two versions are never mixed.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};

use super::http::{HttpBody, HttpObject};
use super::store::Scheme;
use super::{source_error, store};
use crate::{Error, ErrorKind, Result, Secret};

/// An object in an object store or on a web server.
#[derive(Debug)]
pub(super) enum RemoteObject {
    Store(StoreObject),
    Http(HttpObject),
}

impl RemoteObject {
    /// Returns the name as the user would write it.
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            RemoteObject::Store(object) => &object.name,
            RemoteObject::Http(object) => &object.name,
        }
    }

    /// Returns the full URL if the name omits a part of it.
    pub(super) fn identifying_url(&self) -> Option<Secret> {
        match self {
            RemoteObject::Store(_) => None,
            RemoteObject::Http(object) => object.identifying_url(),
        }
    }

    /// Returns whether equal size and entity tag prove that two responses have the same content. A
    /// modification time proves nothing: two versions may have the same time.
    pub(super) fn is_versioned(&self) -> bool {
        let is_strong = |tag: &Option<String>| tag.as_deref().is_some_and(|tag| !is_weak(tag));
        match self {
            RemoteObject::Store(object) => is_strong(&object.etag),
            RemoteObject::Http(object) => object.size.is_some() && is_strong(&object.etag),
        }
    }

    /// Returns the size if the whole object can be read by parallel range requests.
    pub(super) fn ranged_size(&self) -> Option<u64> {
        match self {
            RemoteObject::Store(object) => Some(object.size),
            RemoteObject::Http(_) if !self.is_versioned() => None,
            RemoteObject::Http(object) => object.size.filter(|_| object.has_ranges),
        }
    }

    /// Returns the size if ranges can be requested in any order, and each response has an entity
    /// tag or a modification time.
    pub(super) fn random_access_size(&self) -> Option<u64> {
        match self {
            RemoteObject::Store(object) => Some(object.size),
            RemoteObject::Http(object) => {
                let is_marked = object.etag.is_some() || object.modified.is_some();
                object.size.filter(|_| object.has_ranges && is_marked)
            }
        }
    }

    /// Returns whether the body has no announced end and the user has not allowed such a body.
    pub(super) fn refuses_unframed_body(&self) -> bool {
        matches!(self, RemoteObject::Http(object) if object.is_unframed && !object.allows_unframed)
    }

    /// Fetches exactly the bytes of `range`.
    pub(super) async fn range(&self, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        match self {
            RemoteObject::Store(object) => object.range(range).await,
            RemoteObject::Http(object) => object.range(range).await,
        }
    }

    /// Requests the whole body, to be read in order.
    pub(super) async fn stream(&self) -> Result<HttpBody> {
        match self {
            RemoteObject::Store(_) => {
                Err(Error::new(ErrorKind::Bug, "object stores are read by ranges"))
            }
            RemoteObject::Http(object) => object.stream().await,
        }
    }
}

/// An object in an object store, with its properties at the time it was resolved.
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
            if_match: self.etag.as_deref().filter(|tag| !is_weak(tag)).map(quote_tag),
            ..GetOptions::default()
        };
        let request_error = |error| store::store_error(self.scheme, &self.name, &error);
        let response = self.store.get_opts(&self.path, options).await.map_err(request_error)?;
        let has_other_time =
            self.etag.is_none() && SystemTime::from(response.meta.last_modified) != self.modified;
        if response.meta.size != self.size
            || !same_tag(&self.etag, &response.meta.e_tag)
            || has_other_time
        {
            return Err(object_changed_error(&self.name));
        }
        let bytes = response.bytes().await.map_err(request_error)?;
        if bytes.len() as u64 != len {
            return Err(wrong_length_error(&self.name, bytes.len() as u64, len));
        }
        Ok(bytes)
    }
}

/// Returns the error for an object that has changed.
pub(super) fn object_changed_error(name: &str) -> Error {
    source_error(name, format!("\"{name}\" changed while it was being read"))
        .hint("Run the command again when no process writes to the object.")
}

/// Returns the error for a body without an announced end.
pub(super) fn unframed_body_error(name: &str) -> Error {
    let message = format!("the server does not say where \"{name}\" ends");
    source_error(name, message).hint(
        "A lost connection would look like the end of the data. Download the file first, or have \
         the server send a Content-Length header or a compressed file. With `--source-option \
         unframed=allow` the end of the connection counts as the end of the data.",
    )
}

/// Returns the error for a body with fewer or more bytes than requested.
pub(super) fn wrong_length_error(name: &str, found: u64, expected: u64) -> Error {
    source_error(
        name,
        format!("the server sent {found} bytes of \"{name}\"; {expected} were expected"),
    )
}

/// Adds the quotes that an `If-Match` header needs. The listings of some stores omit the quotes.
fn quote_tag(tag: &str) -> String {
    if tag.starts_with('"') { tag.to_owned() } else { format!("\"{tag}\"") }
}

/// Returns whether an entity tag is weak: equal tags do not prove equal bytes.
pub(super) fn is_weak(tag: &str) -> bool {
    tag.starts_with("W/")
}

/// Returns whether two entity tags may name the same version. A missing tag matches every tag.
pub(super) fn same_tag(expected: &Option<String>, found: &Option<String>) -> bool {
    let bare = |tag: &str| tag.trim_start_matches("W/").trim_matches('"').to_owned();
    match (expected, found) {
        (Some(expected), Some(found)) => bare(expected) == bare(found),
        _ => true,
    }
}
