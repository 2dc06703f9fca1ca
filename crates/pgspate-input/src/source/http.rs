//! Objects on web servers, named by `http://` and `https://` URLs.
//!
//! The first response shows whether the server supports range requests. If so, a failed range is
//! requested again until `retry` has passed. If not, the body is read once from its start, and a
//! lost connection is an error. Ranges are joined only if a strong entity tag proves that they
//! belong to one version.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use reqwest::header::{
    CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, LAST_MODIFIED, LOCATION, RANGE,
    TRANSFER_ENCODING,
};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url, Version};

use super::headers::RequestHeaders;
use super::remote::{is_weak, object_changed_error, same_tag, wrong_length_error};
use super::{SourceOptions, name, root_cause, source_error};
use crate::{Error, ErrorKind, Result, Secret};

const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The option that allows or refuses a body that ends with the connection.
pub(super) const UNFRAMED_OPTION: &str = "unframed";

/// The number of redirects that one request follows.
const REDIRECTS_MAX: usize = 10;

/// Returns a client for all URLs of one command. The client does not follow redirects: pgspate
/// decides which headers the next server gets. The client sends no `Referer` header, because the
/// URL in this header may be signed.
///
/// # Errors
/// [`ErrorKind::Source`] if TLS cannot be set up.
pub(super) fn client(options: &SourceOptions) -> Result<Client> {
    super::install_crypto();
    Client::builder()
        .user_agent(concat!("pgspate/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .referer(false)
        .connect_timeout(options.stall.min(CONNECT_MAX))
        .build()
        .map_err(|e| {
            Error::new(ErrorKind::Source, "could not set up an HTTP client")
                .hint("Install the system's CA certificates, or set SSL_CERT_FILE to a bundle.")
                .because(root_cause(&e))
        })
}

/// A URL, with the credentials and headers for its server only.
pub(super) struct HttpTarget {
    /// The URL, including user and password.
    url: Url,
    headers: HeaderMap,
}

impl HttpTarget {
    pub(super) fn new(url: Url, headers: &RequestHeaders) -> HttpTarget {
        let headers = headers.for_server(&url);
        HttpTarget { url, headers }
    }

    /// Returns a request for `url`, which is the target or a redirect from it.
    fn request(&self, client: &Client, mut url: Url) -> RequestBuilder {
        if url.origin() != self.url.origin() {
            return client.get(url);
        }
        // Neither call fails for a URL with a host.
        let _ = url.set_username(self.url.username());
        let _ = url.set_password(self.url.password());
        client.get(url).headers(self.headers.clone())
    }
}

impl fmt::Debug for HttpTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The most memory that is reserved for a range before its bytes arrive. Most ranges are smaller.
const RESERVED_BYTES_MAX: u64 = 16 << 20;

/// An object on a web server, with its properties at the time it was resolved.
#[derive(Debug)]
pub(super) struct HttpObject {
    client: Client,
    target: HttpTarget,
    pub(super) name: Arc<str>,
    pub(super) size: Option<u64>,
    pub(super) has_ranges: bool,
    pub(super) etag: Option<String>,
    pub(super) modified: Option<String>,
    /// Whether the body has neither a length nor chunks: the end of the connection ends the body.
    pub(super) is_unframed: bool,
    pub(super) allows_unframed: bool,
    stall: Duration,
    retry: Duration,
}

/// The error of one attempt, and whether another attempt may succeed.
struct FailedAttempt {
    error: Error,
    is_retryable: bool,
}

/// Growing pauses between attempts, until the time limit for retries.
struct RetryBackoff {
    start: Instant,
    pause: Duration,
    limit: Duration,
}

impl RetryBackoff {
    fn new(limit: Duration) -> RetryBackoff {
        RetryBackoff { start: Instant::now(), pause: PAUSE_FIRST, limit }
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The error of `failed`, if it is not retryable or the time for retries is over.
    async fn wait_after(&mut self, failed: FailedAttempt) -> Result<()> {
        if !failed.is_retryable || self.start.elapsed() + self.pause >= self.limit {
            return Err(failed.error);
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }
}

impl HttpObject {
    /// Returns the full URL if the name omits a part of it.
    pub(super) fn identifying_url(&self) -> Option<Secret> {
        name::identifying_url(&self.target.url)
    }

    /// Requests the first byte, to learn the object's size and version and whether the server
    /// supports ranges.
    ///
    /// # Errors
    /// [`ErrorKind::Source`] if the server cannot be reached or refuses the request.
    /// [`ErrorKind::Usage`] if the value of the option `unframed` is invalid.
    pub(super) async fn probe(
        client: Client,
        target: HttpTarget,
        name: Arc<str>,
        options: &SourceOptions,
    ) -> Result<HttpObject> {
        let mut object = HttpObject {
            client,
            target,
            name,
            size: None,
            has_ranges: false,
            etag: None,
            modified: None,
            is_unframed: false,
            allows_unframed: unframed_is_allowed(options)?,
            stall: options.stall,
            retry: options.retry,
        };
        let response = object.request_with_retries(Some(0..1)).await?;
        let headers = response.headers();
        object.etag = header_text(headers, ETAG);
        object.modified = header_text(headers, LAST_MODIFIED);
        let total = content_range(headers).and_then(|(_, total)| total);
        match response.status() {
            StatusCode::PARTIAL_CONTENT => (object.size, object.has_ranges) = (total, true),
            StatusCode::RANGE_NOT_SATISFIABLE if total == Some(0) => object.size = total,
            StatusCode::RANGE_NOT_SATISFIABLE => return Err(object.status_error(response.status())),
            _ => {
                object.size = header_text(headers, CONTENT_LENGTH).and_then(|len| len.parse().ok());
                object.is_unframed = !is_framed(&response);
            }
        }
        Ok(object)
    }

    /// Fetches exactly the bytes of `range`, with retries.
    pub(super) async fn range(&self, range: Range<u64>) -> Result<Bytes> {
        let mut backoff = RetryBackoff::new(self.retry);
        loop {
            match self.range_once(range.clone()).await {
                Ok(bytes) => return Ok(bytes),
                Err(failed) => backoff.wait_after(failed).await?,
            }
        }
    }

    async fn range_once(&self, range: Range<u64>) -> Result<Bytes, FailedAttempt> {
        let response = self.send_following_redirects(Some(range.clone())).await?;
        let is_requested_range =
            content_range(response.headers()) == Some((Some(range.clone()), self.size));
        if response.status() != StatusCode::PARTIAL_CONTENT
            || !is_requested_range
            || !self.is_same_version(&response)
            || self.has_strong_tag() && header_text(response.headers(), ETAG) != self.etag
        {
            return Err(FailedAttempt {
                error: object_changed_error(&self.name),
                is_retryable: false,
            });
        }
        let expected = range.end - range.start;
        // The buffer grows as bytes arrive: the size is only what the server claims.
        let mut bytes = BytesMut::with_capacity(expected.min(RESERVED_BYTES_MAX) as usize);
        let mut body = self.start_body(response);
        while let Some(piece) =
            body.next().await.map_err(|error| FailedAttempt { error, is_retryable: true })?
        {
            bytes.extend_from_slice(&piece);
            if bytes.len() as u64 > expected {
                break;
            }
        }
        if bytes.len() as u64 != expected {
            let error = wrong_length_error(&self.name, bytes.len() as u64, expected);
            return Err(FailedAttempt { error, is_retryable: true });
        }
        Ok(bytes.freeze())
    }

    /// Requests the whole body. A failed request is retried. A failed read of the body is not.
    pub(super) async fn stream(&self) -> Result<HttpBody> {
        if self.size == Some(0) {
            return Ok(self.empty_body());
        }
        let response = self.request_with_retries(None).await?;
        let len: Option<u64> =
            header_text(response.headers(), CONTENT_LENGTH).and_then(|len| len.parse().ok());
        if !self.is_same_version(&response) || self.size.zip(len).is_some_and(|(was, is)| was != is)
        {
            return Err(object_changed_error(&self.name));
        }
        let is_framed = self.allows_unframed || self.size.is_some() || is_framed(&response);
        Ok(HttpBody { is_framed, size: self.size, ..self.start_body(response) })
    }

    /// Sends a request and follows redirects. A status that does not stand for the object's bytes
    /// is an error. For a range, 206 is none, nor is 416, which the probe needs.
    async fn send_following_redirects(
        &self,
        range: Option<Range<u64>>,
    ) -> Result<Response, FailedAttempt> {
        let mut url = self.target.url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let response = self.send_once(&url, range.clone()).await?;
            match self.redirect_target(&url, &response)? {
                Some(next) => url = next,
                None => return self.check_status(response, range.is_some()),
            }
        }
        let message =
            format!("the server of \"{}\" sent more than {REDIRECTS_MAX} redirects", self.name);
        Err(FailedAttempt { error: source_error(&self.name, message), is_retryable: false })
    }

    /// Sends one request and returns the response, whatever its status is.
    async fn send_once(
        &self,
        url: &Url,
        range: Option<Range<u64>>,
    ) -> Result<Response, FailedAttempt> {
        let mut request = self.target.request(&self.client, url.clone());
        if let Some(range) = range {
            request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
        }
        let fetch_failure = |why: String| {
            let error = source_error(&self.name, format!("could not fetch \"{}\"", self.name));
            FailedAttempt { error: error.because(why), is_retryable: true }
        };
        match tokio::time::timeout(self.stall, request.send()).await {
            Err(_) => Err(fetch_failure(self.silence_message())),
            Ok(Err(error)) => Err(fetch_failure(root_cause(&error.without_url()))),
            Ok(Ok(response)) => Ok(response),
        }
    }

    /// Returns the URL that `response` redirects to, or `None` if `response` is no redirect.
    fn redirect_target(
        &self,
        url: &Url,
        response: &Response,
    ) -> Result<Option<Url>, FailedAttempt> {
        const MOVED: [u16; 5] = [301, 302, 303, 307, 308];
        if !MOVED.contains(&response.status().as_u16()) {
            return Ok(None);
        }
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let next = location.and_then(|location| url.join(location).ok());
        match next.filter(|next| matches!(next.scheme(), "http" | "https")) {
            Some(next) => Ok(Some(next)),
            None => {
                let message = format!(
                    "the server of \"{}\" sent a redirect without a valid http:// or https:// URL",
                    self.name
                );
                Err(FailedAttempt { error: source_error(&self.name, message), is_retryable: false })
            }
        }
    }

    /// Turns other statuses into an error: a 202, for example, comes before the data is ready.
    fn check_status(&self, response: Response, of_range: bool) -> Result<Response, FailedAttempt> {
        let status = response.status();
        let whole = [StatusCode::OK, StatusCode::NON_AUTHORITATIVE_INFORMATION];
        let part = [StatusCode::PARTIAL_CONTENT, StatusCode::RANGE_NOT_SATISFIABLE];
        if whole.contains(&status) || of_range && part.contains(&status) {
            return Ok(response);
        }
        let is_retryable = status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        Err(FailedAttempt { error: self.status_error(status), is_retryable })
    }

    /// Returns the response to a request, with retries.
    async fn request_with_retries(&self, range: Option<Range<u64>>) -> Result<Response> {
        let mut backoff = RetryBackoff::new(self.retry);
        loop {
            match self.send_following_redirects(range.clone()).await {
                Ok(response) => return Ok(response),
                Err(failed) => backoff.wait_after(failed).await?,
            }
        }
    }

    /// Returns whether a response may belong to the version of the object that was resolved.
    fn is_same_version(&self, response: &Response) -> bool {
        let headers = response.headers();
        let modified = header_text(headers, LAST_MODIFIED);
        same_tag(&self.etag, &header_text(headers, ETAG))
            && (self.etag.is_some() || same_tag(&self.modified, &modified))
    }

    /// Returns whether an equal entity tag proves equal bytes.
    fn has_strong_tag(&self) -> bool {
        self.etag.as_deref().is_some_and(|tag| !is_weak(tag))
    }

    fn status_error(&self, status: StatusCode) -> Error {
        let name = &self.name;
        match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => source_error(
                name,
                format!("\"{name}\" does not exist (HTTP status {})", status.as_u16()),
            ),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => source_error(
                name,
                format!("access to \"{name}\" was denied (HTTP status {})", status.as_u16()),
            )
            .hint(
                "Put the credentials into a file that holds `Bearer ...`, and name the file with \
                 `--source-option header.authorization=@FILE`; a signed URL may have expired.",
            ),
            _ => {
                let reason = status.canonical_reason().unwrap_or("unknown");
                source_error(
                    name,
                    format!("the server refused \"{name}\": {} {reason}", status.as_u16()),
                )
            }
        }
    }

    fn silence_message(&self) -> String {
        format!("the server sent nothing for {} s", self.stall.as_secs_f32())
    }

    fn start_body(&self, response: Response) -> HttpBody {
        let silence_message = self.silence_message();
        HttpBody {
            response: Some(response),
            name: Arc::clone(&self.name),
            stall: self.stall,
            silence_message,
            read: 0,
            size: None,
            is_framed: true,
        }
    }

    fn empty_body(&self) -> HttpBody {
        let silence_message = self.silence_message();
        let name = Arc::clone(&self.name);
        HttpBody {
            response: None,
            name,
            stall: self.stall,
            silence_message,
            read: 0,
            size: None,
            is_framed: true,
        }
    }
}

/// The body of a response, from the next unread byte on.
pub(super) struct HttpBody {
    response: Option<Response>,
    name: Arc<str>,
    stall: Duration,
    silence_message: String,
    /// The number of bytes that were read.
    read: u64,
    /// The expected number of bytes, if it is known.
    size: Option<u64>,
    /// Whether the server announces the end of the body, by a length or by chunks. Also true if the
    /// user allows a body without an announced end.
    pub(super) is_framed: bool,
}

impl HttpBody {
    /// Returns the next bytes, or `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        let Some(response) = &mut self.response else { return Ok(None) };
        let why = match tokio::time::timeout(self.stall, response.chunk()).await {
            Ok(Ok(piece)) => {
                self.read += piece.as_ref().map_or(0, |bytes| bytes.len() as u64);
                return match self.size {
                    Some(size) if piece.is_none() && self.read != size => {
                        Err(wrong_length_error(&self.name, self.read, size))
                    }
                    _ => Ok(piece),
                };
            }
            Ok(Err(error)) => root_cause(&error),
            Err(_) => self.silence_message.clone(),
        };
        let message = format!(
            "lost the connection while reading \"{}\", after {} bytes",
            self.name, self.read
        );
        Err(source_error(&self.name, message)
            .hint("Run the command again, or download the file first and load it from disk.")
            .because(why))
    }
}

/// Returns whether the user allows bodies without an announced end.
fn unframed_is_allowed(options: &SourceOptions) -> Result<bool> {
    let mut values =
        options.store.iter().filter(|(key, _)| key.eq_ignore_ascii_case(UNFRAMED_OPTION));
    match values.next_back().map(|(_, value)| value.as_str()) {
        None | Some("refuse") => Ok(false),
        Some("allow") => Ok(true),
        Some(other) => {
            let message =
                format!("invalid value for source option \"{UNFRAMED_OPTION}\": \"{other}\"");
            Err(Error::new(ErrorKind::Usage, message)
                .hint("Write `unframed=allow` or `unframed=refuse`."))
        }
    }
}

/// Returns whether a response announces the end of its body.
fn is_framed(response: &Response) -> bool {
    let headers = response.headers();
    let coding = header_text(headers, TRANSFER_ENCODING).unwrap_or_default().to_ascii_lowercase();
    response.version() > Version::HTTP_11
        || headers.contains_key(CONTENT_LENGTH)
        || coding.split(',').any(|coding| coding.trim() == "chunked")
}

/// Returns the value of a header.
fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Returns the range and the total size of a `Content-Range` header.
fn content_range(headers: &HeaderMap) -> Option<(Option<Range<u64>>, Option<u64>)> {
    let value = header_text(headers, CONTENT_RANGE)?;
    let (range, total) = value.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    let range = range.split_once('-').and_then(|(first, last)| {
        Some(first.trim().parse().ok()?..last.trim().parse::<u64>().ok()?.checked_add(1)?)
    });
    Some((range, total.trim().parse().ok()))
}
