//! From what the user wrote to inputs that exist.
//!
//! Order is kept: inputs come as they were named, and by name within a folder or pattern. Every
//! input is checked to be there and readable, and none comes twice.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use object_store::{ObjectMeta, ObjectStore};
use reqwest::Client;
use tokio::runtime::Handle;
use url::Url;

use super::fetch::Pace;
use super::headers::{self, Headers};
use super::http::{self, HttpObject, Target};
use super::name::{self, Spec};
use super::remote::{Remote, StoreObject};
use super::store::list::Request;
use super::store::{self, Scheme};
use super::{Input, Options, local, wait};
use crate::{Error, ErrorKind, Result};

const SCHEMES: &str = "Sources are paths, patterns, folders, - for standard input, and s3://, \
     gs://, az://, abfss://, https:// and http:// URLs.";

/// The inputs that `specs` name: paths, folders (every file below them), patterns, `-`, and URLs
/// of object stores and web servers. Blocks while it asks `runtime`, so it must not be called
/// from one of its tasks.
///
/// # Errors
/// - [`ErrorKind::Usage`]: a scheme, pattern or option that does not exist, or an input named
///   twice.
/// - [`ErrorKind::Source`]: something is not there or may not be read, or a folder or pattern has
///   no files.
pub fn resolve(specs: &[String], options: &Options, runtime: Handle) -> Result<Vec<Input>> {
    check_options(specs, options)?;
    let headers = Headers::of(specs, options)?;
    let mut resolver = Resolver { options, headers, runtime, stores: HashMap::new(), client: None };
    let mut inputs = Vec::new();
    for spec in specs {
        resolver.spec(spec, &mut inputs)?;
    }
    let mut names = HashSet::new();
    for input in &inputs {
        if !names.insert((input.name(), input.hidden())) {
            let message = match input.name() {
                "-" => "standard input is named more than once".to_owned(),
                name => format!("\"{name}\" is named more than once"),
            };
            return Err(Error::new(ErrorKind::Usage, message)
                .hint("Name each input once; a pattern or folder may already include it."));
        }
    }
    Ok(inputs)
}

/// An option that no source here understands is a mistake, not something to pass over.
fn check_options(specs: &[String], options: &Options) -> Result<()> {
    for (key, _) in &options.store {
        let is_known = specs.iter().any(|spec| match Spec::parse(spec) {
            Spec::Url("http" | "https", _) => {
                headers::is_header(key) || key.eq_ignore_ascii_case(http::UNFRAMED_OPTION)
            }
            Spec::Url(scheme, _) => Scheme::parse(scheme).is_some_and(|known| known.accepts(key)),
            _ => false,
        });
        if !is_known {
            let message = format!("no source here has an option {}", headers::shown(key));
            return Err(Error::new(ErrorKind::Usage, message).hint(
                "Options are for object stores (such as endpoint, region, access_key_id, \
                 skip_signature, and profile for S3) and for HTTP (header.NAME, unframed).",
            ));
        }
    }
    Ok(())
}

struct Resolver<'a> {
    options: &'a Options,
    headers: Headers,
    runtime: Handle,
    /// By `scheme://bucket/`.
    stores: HashMap<String, Arc<dyn ObjectStore>>,
    client: Option<Client>,
}

impl Resolver<'_> {
    fn spec(&mut self, spec: &str, inputs: &mut Vec<Input>) -> Result<()> {
        match Spec::parse(spec) {
            Spec::Stdin => inputs.push(Input::stdin()),
            Spec::Local("") => {
                return Err(Error::new(ErrorKind::Usage, "a source has an empty name"));
            }
            Spec::Local(path) => inputs.extend(self.files(path)?),
            Spec::Url("file", _) => inputs.extend(self.files(&file_path(spec)?)?),
            Spec::Url("http" | "https", _) => inputs.push(self.url(spec)?),
            Spec::Url(scheme, rest) => match Scheme::parse(scheme) {
                Some(known) => self.objects(known, scheme, rest, inputs)?,
                None => {
                    let message = format!("sources of kind \"{scheme}://\" are not supported");
                    return Err(Error::new(ErrorKind::Usage, message).hint(SCHEMES));
                }
            },
        }
        Ok(())
    }

    fn files(&self, spec: &str) -> Result<impl Iterator<Item = Input>> {
        let may_grow = self.options.may_grow;
        Ok(local::expand(spec)?.into_iter().map(move |found| Input::local(found, may_grow)))
    }

    fn pace(&self) -> Pace {
        let (range_bytes, in_flight) = (self.options.range_bytes, self.options.ranges_in_flight);
        Pace { range_bytes, in_flight }
    }

    fn objects(
        &mut self,
        scheme: Scheme,
        prefix: &str,
        rest: &str,
        inputs: &mut Vec<Input>,
    ) -> Result<()> {
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            let message = format!("\"{prefix}://{rest}\" names no bucket");
            return Err(
                Error::new(ErrorKind::Usage, message).hint(format!("Write {prefix}://BUCKET/KEY."))
            );
        }
        // Only Azure's URLs have a part before the bucket's place, which is not a user. Elsewhere
        // that is a key and its secret.
        if bucket.contains(':') || (bucket.contains('@') && scheme != Scheme::Azure) {
            let message = format!("a {prefix}:// URL has no user and no password");
            return Err(Error::new(ErrorKind::Usage, message).hint(
                "Give keys in the environment, or as `--source-option KEY=@FILE`, and write \
                 SCHEME://BUCKET/KEY.",
            ));
        }
        // What is not a name would end up in the middle of a URL. Azure's hold an account, too.
        if !bucket.chars().all(|c| c.is_ascii_alphanumeric() || "._-@$".contains(c)) {
            let message = format!("\"{bucket}\" is not a name that a bucket can have");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let root = format!("{prefix}://{bucket}/");
        let store = match self.stores.get(&root) {
            Some(store) => Arc::clone(store),
            None => {
                let store = store::open(scheme, &root, bucket, self.options, &self.runtime)?;
                self.stores.insert(root.clone(), Arc::clone(&store));
                store
            }
        };
        let request = Request { scheme, root: root.clone(), key: key.to_owned() };
        let listed = wait(&self.runtime, store::list::expand(Arc::clone(&store), request))??;
        inputs.extend(listed.into_iter().map(|meta| self.object(scheme, &store, &root, meta)));
        Ok(())
    }

    fn object(
        &self,
        scheme: Scheme,
        store: &Arc<dyn ObjectStore>,
        root: &str,
        meta: ObjectMeta,
    ) -> Input {
        let object = StoreObject {
            store: Arc::clone(store),
            scheme,
            name: format!("{root}{}", meta.location).into(),
            path: meta.location,
            size: meta.size,
            etag: meta.e_tag,
            modified: SystemTime::from(meta.last_modified),
        };
        let modified = object.modified;
        Input::remote(Remote::Store(object), Some(modified), self.runtime.clone(), self.pace())
    }

    fn url(&mut self, spec: &str) -> Result<Input> {
        let url = Url::parse(spec).map_err(|e| {
            // The text itself may hold a password.
            Error::new(ErrorKind::Usage, "an http:// or https:// source is not a valid URL")
                .because(e)
        })?;
        let client = match &self.client {
            Some(client) => client.clone(),
            None => self.client.insert(http::client(self.options)?).clone(),
        };
        let shown = name::shown(&url).into();
        let (target, options) = (Target::new(url, &self.headers), self.options.clone());
        let probe = async move { HttpObject::probe(client, target, shown, &options).await };
        let object = wait(&self.runtime, probe)??;
        Ok(Input::remote(Remote::Http(object), None, self.runtime.clone(), self.pace()))
    }
}

fn file_path(spec: &str) -> Result<String> {
    let path = Url::parse(spec).ok().and_then(|url| url.to_file_path().ok());
    let path = path.and_then(|path: PathBuf| path.into_os_string().into_string().ok());
    path.ok_or_else(|| {
        Error::new(ErrorKind::Usage, "a file:// source is not a file's URL")
            .hint("Write file:///PATH, or the path alone.")
    })
}
