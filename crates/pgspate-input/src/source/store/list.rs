//! Lists objects of a store by key, folder or pattern.
//!
//! A folder is the set of objects below `prefix/`. Hidden objects and marker files are ignored, as
//! in local folders. Objects are sorted by key.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::{Scheme, store_error};
use crate::source::{local, source_error, table_formats};
use crate::{Error, ErrorKind, Result};

/// The part of a bucket that a URL names.
#[derive(Debug, Clone)]
pub(in crate::source) struct ListingRequest {
    pub(in crate::source) scheme: Scheme,
    /// `scheme://bucket/` as the user wrote it.
    pub(in crate::source) root: String,
    /// The key, folder or pattern within the bucket.
    pub(in crate::source) key: String,
}

impl ListingRequest {
    fn name(&self) -> String {
        format!("{}{}", self.root, self.key)
    }

    fn error(&self, error: &StoreError) -> Error {
        store_error(self.scheme, &self.name(), error)
    }

    fn path(&self, key: &str) -> Result<Path> {
        Path::parse(key).map_err(|e| {
            Error::new(ErrorKind::Usage, format!("\"{}\" is not a supported key", self.name()))
                .hint("Keys with empty parts (//), `.` or `..` between slashes are not supported.")
                .because(e.to_string())
        })
    }
}

/// Returns the objects that `request` names.
///
/// # Errors
/// [`ErrorKind::Source`] if there are no objects or the store refuses a request.
/// [`ErrorKind::Usage`] if the key or the pattern is not valid.
pub(in crate::source) async fn expand(
    store: Arc<dyn ObjectStore>,
    request: ListingRequest,
) -> Result<Vec<ObjectMeta>> {
    let key = request.key.as_str();
    if key.is_empty() || key.ends_with('/') {
        let found = list_folder(&store, &request, key).await?;
        return if found.is_empty() {
            let name = request.name();
            Err(source_error(&name, format!("no files in folder \"{name}\"")))
        } else {
            Ok(found)
        };
    }
    if local::is_pattern(key) {
        let found = list_pattern(&store, &request).await?;
        if !found.is_empty() {
            return Ok(found);
        }
        // The pattern characters may be part of a key.
        return match store.head(&request.path(key)?).await {
            Ok(meta) => Ok(vec![meta]),
            Err(_) => Err(local::no_files_match_error(&request.name())),
        };
    }
    match store.head(&request.path(key)?).await {
        Ok(meta) => Ok(vec![meta]),
        Err(error @ StoreError::NotFound { .. }) => {
            // The response does not say whether the key or the bucket is missing. The key may also
            // be a folder without its final slash. A listing distinguishes these cases.
            match list_folder(&store, &request, key).await {
                Ok(found) if !found.is_empty() => Ok(found),
                Err(list_error) if list_error.to_string().starts_with("access to") => {
                    Err(request.error(&error))
                }
                Ok(_) => Err(request.error(&error)),
                Err(list_error) => Err(list_error),
            }
        }
        Err(error) => Err(request.error(&error)),
    }
}

/// Returns the objects below the folder `prefix` that are not ignored.
async fn list_folder(
    store: &Arc<dyn ObjectStore>,
    request: &ListingRequest,
    prefix: &str,
) -> Result<Vec<ObjectMeta>> {
    let prefix = request.path(prefix)?;
    let mut found = list_below(store, request, &prefix).await?;
    let keys = found.iter().map(|meta| key_below(&meta.location, &prefix));
    if let Some((folder, format)) = table_formats::find_in_keys(keys) {
        let name = request.name();
        let slash = if name.ends_with('/') || folder.is_empty() { "" } else { "/" };
        return Err(format.error(&format!("{name}{slash}{folder}")));
    }
    found.retain(|meta| !parts_below(&meta.location, &prefix).any(local::is_ignored));
    Ok(found)
}

/// Returns the objects that match the key of `request` as a pattern.
async fn list_pattern(
    store: &Arc<dyn ObjectStore>,
    request: &ListingRequest,
) -> Result<Vec<ObjectMeta>> {
    let key = &request.key;
    let matcher = local::matcher(key)?;
    let start = key.find(['*', '?', '[', '{', '\\']).unwrap_or(key.len());
    let cut = key[..start].rfind('/').map_or(0, |slash| slash + 1);
    let (prefix, rest) = (request.path(&key[..cut])?, &key[cut..]);
    let in_one_folder = !rest.contains(['/', '{']) && !rest.contains("**");
    let mut found = if in_one_folder {
        let listed = store.list_with_delimiter(Some(&prefix)).await;
        without_markers(listed.map_err(|error| request.error(&error))?.objects)
    } else {
        list_below(store, request, &prefix).await?
    };
    let includes_hidden = rest.split('/').any(|part| part.starts_with(['.', '_']));
    found.retain(|meta| {
        matcher.is_match(meta.location.as_ref())
            && (includes_hidden || !parts_below(&meta.location, &prefix).any(local::is_ignored))
    });
    Ok(found)
}

/// Returns all objects below `prefix`.
async fn list_below(
    store: &Arc<dyn ObjectStore>,
    request: &ListingRequest,
    prefix: &Path,
) -> Result<Vec<ObjectMeta>> {
    let listed = store.list(Some(prefix)).try_collect::<Vec<_>>().await;
    Ok(without_markers(listed.map_err(|error| request.error(&error))?))
}

/// Sorts the objects by key, and removes folder markers: empty objects without a suffix, or with
/// objects below them. An empty object has no rows, so no row is lost.
fn without_markers(mut objects: Vec<ObjectMeta>) -> Vec<ObjectMeta> {
    objects.sort_by(|a, b| a.location.as_ref().cmp(b.location.as_ref()));
    let folders: HashSet<String> = objects
        .iter()
        .filter_map(|object| Some(object.location.as_ref().rsplit_once('/')?.0.to_owned()))
        .collect();
    objects.retain(|object| {
        let key = object.location.as_ref();
        let has_suffix = key.rsplit('/').next().is_some_and(|name| name.contains('.'));
        object.size > 0 || (has_suffix && !folders.contains(key))
    });
    objects
}

/// Returns an object's key after `prefix`.
fn key_below<'a>(location: &'a Path, prefix: &Path) -> &'a str {
    let rest = location.as_ref().strip_prefix(prefix.as_ref()).unwrap_or(location.as_ref());
    rest.trim_start_matches('/')
}

/// Returns the parts of an object's key after `prefix`.
fn parts_below<'a>(location: &'a Path, prefix: &Path) -> impl Iterator<Item = &'a str> {
    key_below(location, prefix).split('/').filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    fn request(key: &str) -> ListingRequest {
        ListingRequest { scheme: Scheme::S3, root: "s3://b/".into(), key: key.into() }
    }

    async fn store(keys: &[(&str, usize)]) -> Arc<dyn ObjectStore> {
        let store = InMemory::new();
        for (key, size) in keys {
            store.put(&Path::parse(key).unwrap(), vec![b'x'; *size].into()).await.unwrap();
        }
        Arc::new(store)
    }

    async fn names(store: &Arc<dyn ObjectStore>, key: &str) -> Vec<String> {
        let found = expand(Arc::clone(store), request(key)).await.unwrap();
        found.into_iter().map(|meta| meta.location.to_string()).collect()
    }

    #[tokio::test]
    async fn folders_patterns_and_keys() {
        let store = store(&[
            ("d", 0),
            ("d/lone", 0),
            ("d/e", 0),
            ("d/b.csv", 1),
            ("d/a.csv", 0),
            ("d/_SUCCESS", 0),
            ("d/.hidden/x", 1),
            ("d/e/c.csv", 1),
            ("d/odd[1].csv", 1),
            ("dd/z.csv", 1),
        ])
        .await;
        let all = ["d/a.csv", "d/b.csv", "d/e/c.csv", "d/odd[1].csv"];
        assert_eq!(names(&store, "d/").await, all);
        assert_eq!(names(&store, "d/?.csv").await, ["d/a.csv", "d/b.csv"]);
        assert_eq!(names(&store, "d*/**/*.csv").await.len(), 5);
        assert_eq!(names(&store, "d/*/c.csv").await, ["d/e/c.csv"]);
        assert_eq!(names(&store, "d/{a,b}.csv").await, ["d/a.csv", "d/b.csv"]);
        assert_eq!(names(&store, "d/odd[1].csv").await, ["d/odd[1].csv"]);
        assert_eq!(names(&store, "dd").await, ["dd/z.csv"]);
        assert_eq!(names(&store, "d/b.csv").await, ["d/b.csv"]);
    }

    #[tokio::test]
    async fn nothing_found_is_an_error() {
        let store = store(&[
            ("t/_delta_log/0.json", 1),
            ("t/a.parquet", 1),
            ("h/u/.hoodie/hoodie.properties", 1),
            ("h/u/d=1/.hoodie_partition_metadata", 1),
            ("h/u/d=1/a.parquet", 1),
            ("i/data/a.parquet", 1),
            ("i/metadata/v1.metadata.json", 1),
        ])
        .await;
        for (key, message) in [
            ("no/", "no files in folder \"s3://b/no/\""),
            ("no*.csv", "no files match \"s3://b/no*.csv\""),
            ("no", "\"s3://b/no\" does not exist"),
            ("t/", "\"s3://b/t/\" is a Delta Lake table"),
            ("h", "\"s3://b/h/u\" is a Hudi table"),
            ("h/u/d=1/", "\"s3://b/h/u/d=1/\" is a partition of a Hudi table"),
            ("i", "\"s3://b/i\" is an Iceberg table"),
            ("a//b", "\"s3://b/a//b\" is not a supported key"),
            ("[", "\"[\" is not a valid pattern"),
        ] {
            let error = expand(Arc::clone(&store), request(key)).await.unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
