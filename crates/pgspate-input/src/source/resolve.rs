//! Resolves the source names that the user wrote into inputs that exist.
//!
//! Inputs keep the user's order, and are sorted by path within a folder or pattern. Every input
//! exists, is readable, and is named once.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use object_store::{ObjectMeta, ObjectStore};
use reqwest::Client;
use tokio::runtime::Handle;
use url::Url;

use super::fetch::FetchLimits;
use super::headers::{self, RequestHeaders};
use super::http::{self, HttpObject, HttpTarget};
use super::name::{self, SourceSpec};
use super::remote::{RemoteObject, StoreObject};
use super::store::list::ListingRequest;
use super::store::{self, Scheme};
use super::{Input, SourceOptions, local, run_and_wait};
use crate::{Error, ErrorKind, Result};

const SCHEMES: &str = "Sources are paths, patterns, folders, - for standard input, and s3://, \
     gs://, az://, abfss://, https:// and http:// URLs.";

/// Returns the inputs that `specs` name. A spec is a path, a folder (every file below it), a
/// pattern, `-`, or a URL of an object store or web server. Blocks on work of `runtime`, so tasks
/// of `runtime` must not call it.
///
/// # Errors
/// - [`ErrorKind::Usage`]: an unknown scheme or option, an invalid pattern, or an input named
///   twice.
/// - [`ErrorKind::Source`]: an input does not exist or must not be read, or a folder or pattern has
///   no files.
pub fn resolve(specs: &[String], options: &SourceOptions, runtime: Handle) -> Result<Vec<Input>> {
    check_options(specs, options)?;
    let headers = RequestHeaders::of(specs, options)?;
    let mut resolver =
        SourceResolver { options, headers, runtime, stores: HashMap::new(), client: None };
    let mut inputs = Vec::new();
    for spec in specs {
        let known = inputs.len();
        resolver.resolve_spec(spec, &mut inputs)?;
        if options.needs_order {
            check_number_order(&inputs[known..])?;
        }
    }
    check_named_once(&inputs)?;
    Ok(inputs)
}

/// Checks that every input is named once. Paths that lead to the same file are the same name.
fn check_named_once(inputs: &[Input]) -> Result<()> {
    let mut names = HashSet::new();
    for input in inputs {
        let path = input.local_path().and_then(|path| path.canonicalize().ok());
        let name = path.unwrap_or_else(|| PathBuf::from(input.name()));
        if !names.insert((name, input.identifying_url())) {
            let message = match input.name() {
                "-" => "standard input is named more than once".to_owned(),
                name => format!("\"{name}\" is named more than once"),
            };
            return Err(Error::new(ErrorKind::Usage, message).hint(
                "Name each input once. A pattern or folder may already include it, and two paths \
                 may lead to the same file.",
            ));
        }
    }
    Ok(())
}

/// Checks that the inputs of a folder or pattern are in the order of the numbers in their names.
/// They are sorted by the bytes of their names, so `c-10` comes before `c-2`.
fn check_number_order(inputs: &[Input]) -> Result<()> {
    let names = || inputs.iter().map(Input::name);
    let is_out_of_order =
        |(a, b): &(&str, &str)| differ_in_numbers(a, b) && by_numbers(a, b) == Ordering::Greater;
    let Some((first, second)) = names().zip(names().skip(1)).find(is_out_of_order) else {
        return Ok(());
    };
    let message = format!(
        "\"{first}\" would be read before \"{second}\", although its number is higher: files are \
         sorted by the bytes of their names"
    );
    Err(Error::new(ErrorKind::Usage, message).hint(
        "Name the files themselves, in the order in which they are to be read. Or pad the numbers \
         with zeros.",
    ))
}

/// Returns whether the names are equal but for their numbers. Names with hexadecimal digits, such
/// as UUIDs, have no order by numbers.
fn differ_in_numbers(mut a: &str, mut b: &str) -> bool {
    let digits = |byte: char| byte.is_ascii_digit();
    loop {
        let (end_of_a, end_of_b) = (a.find(digits), b.find(digits));
        let (Some(end_of_a), Some(end_of_b)) = (end_of_a, end_of_b) else { return a == b };
        if a[..end_of_a] != b[..end_of_b] {
            return false;
        }
        a = a[end_of_a..].trim_start_matches(digits);
        b = b[end_of_b..].trim_start_matches(digits);
    }
}

/// Compares two names by their bytes, and runs of digits in them as numbers.
fn by_numbers(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        let order = match (a, b) {
            ([x, ..], [y, ..]) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let (of_a, of_b) = (take_number(&mut a), take_number(&mut b));
                (of_a.len(), of_a).cmp(&(of_b.len(), of_b))
            }
            ([x, rest_of_a @ ..], [y, rest_of_b @ ..]) => {
                (a, b) = (rest_of_a, rest_of_b);
                x.cmp(y)
            }
            _ => return a.len().cmp(&b.len()),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// Takes the digits off the start of a name. Returns them without leading zeros.
fn take_number<'a>(name: &mut &'a [u8]) -> &'a [u8] {
    let end = name.iter().position(|it| !it.is_ascii_digit()).unwrap_or(name.len());
    let (digits, rest) = name.split_at(end);
    *name = rest;
    let zeros = digits.iter().take_while(|it| **it == b'0').count();
    &digits[zeros..]
}

/// Checks that every option belongs to a source of the command. The user has misspelled any other
/// option.
fn check_options(specs: &[String], options: &SourceOptions) -> Result<()> {
    for (key, _) in &options.store {
        let is_known = specs.iter().any(|spec| match SourceSpec::parse(spec) {
            SourceSpec::Url("http" | "https", _) => {
                headers::is_header(key) || key.eq_ignore_ascii_case(http::UNFRAMED_OPTION)
            }
            SourceSpec::Url(scheme, _) => {
                Scheme::parse(scheme).is_some_and(|service| service.accepts(key))
            }
            _ => false,
        });
        if !is_known {
            let message =
                format!("no source of this command has an option {}", headers::redacted_key(key));
            return Err(Error::new(ErrorKind::Usage, message).hint(
                "Options are for object stores (such as endpoint, region, access_key_id, \
                 skip_signature, and profile for S3) and for HTTP (header.NAME, unframed).",
            ));
        }
    }
    Ok(())
}

/// Resolves the specs of one command, which share clients.
struct SourceResolver<'a> {
    options: &'a SourceOptions,
    headers: RequestHeaders,
    runtime: Handle,
    /// The stores that are already open, by `scheme://bucket/`.
    stores: HashMap<String, Arc<dyn ObjectStore>>,
    client: Option<Client>,
}

impl SourceResolver<'_> {
    fn resolve_spec(&mut self, spec: &str, inputs: &mut Vec<Input>) -> Result<()> {
        match SourceSpec::parse(spec) {
            SourceSpec::Stdin => inputs.push(Input::stdin()),
            SourceSpec::Local("") => {
                return Err(Error::new(ErrorKind::Usage, "a source has an empty name"));
            }
            SourceSpec::Local(path) => inputs.extend(self.local_inputs(path)?),
            SourceSpec::Url("file", _) => inputs.extend(self.local_inputs(&file_path(spec)?)?),
            SourceSpec::Url("http" | "https", _) => inputs.push(self.http_input(spec)?),
            SourceSpec::Url(scheme, rest) => match Scheme::parse(scheme) {
                Some(known) => self.store_inputs(known, scheme, rest, inputs)?,
                None => {
                    let message = format!("sources of kind \"{scheme}://\" are not supported");
                    return Err(Error::new(ErrorKind::Usage, message).hint(SCHEMES));
                }
            },
        }
        Ok(())
    }

    fn local_inputs(&self, spec: &str) -> Result<impl Iterator<Item = Input>> {
        let may_grow = self.options.may_grow;
        let found = local::expand(spec)?;
        found.iter().try_for_each(|file| local::check_name(&file.path))?;
        Ok(found.into_iter().map(move |found| Input::local(found, may_grow)))
    }

    fn fetch_limits(&self) -> FetchLimits {
        let (range_bytes, in_flight_max) =
            (self.options.range_bytes, self.options.ranges_in_flight);
        FetchLimits { range_bytes, in_flight_max }
    }

    fn store_inputs(
        &mut self,
        scheme: Scheme,
        prefix: &str,
        rest: &str,
        inputs: &mut Vec<Input>,
    ) -> Result<()> {
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            let message = format!("\"{prefix}://{rest}\" has no bucket");
            return Err(
                Error::new(ErrorKind::Usage, message).hint(format!("Write {prefix}://BUCKET/KEY."))
            );
        }
        // Only in Azure's URLs may `@` follow the container's name. In other URLs the text before
        // `@` would be a key and its secret.
        if bucket.contains(':') || (bucket.contains('@') && scheme != Scheme::Azure) {
            let message = format!("a {prefix}:// URL must not have a user or password");
            return Err(Error::new(ErrorKind::Usage, message).hint(format!(
                "Write {prefix}://BUCKET/KEY. Give credentials in environment variables, or with \
                 `--source-option NAME=@FILE`."
            )));
        }
        // The name becomes part of a URL, so other characters are refused. Azure's names contain
        // the account too.
        if !bucket.chars().all(|c| c.is_ascii_alphanumeric() || "._-@$".contains(c)) {
            let message = format!("\"{bucket}\" is not a valid bucket name");
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
        let request = ListingRequest { scheme, root: root.clone(), key: key.to_owned() };
        let listed =
            run_and_wait(&self.runtime, store::list::expand(Arc::clone(&store), request))??;
        inputs.extend(listed.into_iter().map(|meta| self.store_input(scheme, &store, &root, meta)));
        Ok(())
    }

    fn store_input(
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
        Input::remote(
            RemoteObject::Store(object),
            Some(modified),
            self.runtime.clone(),
            self.fetch_limits(),
        )
    }

    fn http_input(&mut self, spec: &str) -> Result<Input> {
        let url = Url::parse(spec).map_err(|e| {
            // The text may contain a password, so the message omits it.
            Error::new(ErrorKind::Usage, "an http:// or https:// source is not a valid URL")
                .because(e)
        })?;
        let client = match &self.client {
            Some(client) => client.clone(),
            None => self.client.insert(http::client(self.options)?).clone(),
        };
        let shown_name = name::shown_url(&url).into();
        let (target, options) = (HttpTarget::new(url, &self.headers), self.options.clone());
        let probe = async move { HttpObject::probe(client, target, shown_name, &options).await };
        let object = run_and_wait(&self.runtime, probe)??;
        Ok(Input::remote(
            RemoteObject::Http(object),
            None,
            self.runtime.clone(),
            self.fetch_limits(),
        ))
    }
}

/// Returns the path of a `file://` URL.
pub(super) fn file_path(spec: &str) -> Result<String> {
    let path = Url::parse(spec).ok().and_then(|url| url.to_file_path().ok());
    let path = path.and_then(|path: PathBuf| path.into_os_string().into_string().ok());
    path.ok_or_else(|| {
        Error::new(ErrorKind::Usage, "a file:// source is not a valid file URL")
            .hint("Write file:///PATH, or only the path.")
    })
}

#[cfg(test)]
mod tests {
    use super::differ_in_numbers;

    #[test]
    fn names_have_an_order_by_numbers_if_nothing_else_differs() {
        for (one, other) in [("c-2", "c-10"), ("d1/c-2.json", "d2/c-10.json"), ("1", "2")] {
            assert!(differ_in_numbers(one, other), "{one} {other}");
        }
        for (one, other) in [("10ab.json", "3f2e.json"), ("a", "b"), ("c-2", "c-2x"), ("c", "c-1")]
        {
            assert!(!differ_in_numbers(one, other), "{one} {other}");
        }
    }
}
