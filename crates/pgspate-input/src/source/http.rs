//! Files behind `http://` and `https://` URLs.
//!
//! The first answer says whether the server knows ranges. If it does, a range that fails is asked
//! for again until `retry` has passed; if not, the body is read once from its start, and a
//! connection that is lost is an error. Ranges are put together only where a strong entity tag
//! says that they are of one version.

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

use super::headers::Headers;
use super::remote::{changed, same_tag, short};
use super::{Options, fault, name, root_cause};
use crate::{Error, ErrorKind, Result, Secret};

const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The key that says whether the end of a connection may be the end of the data.
pub(super) const UNFRAMED_OPTION: &str = "unframed";

/// Redirects that one request follows.
const REDIRECTS_MAX: usize = 10;

/// A client for all URLs of one command. It follows no redirect by itself: what may go with a
/// request depends on the server. It never says where it comes from, as that URL may be signed.
///
/// # Errors
/// When TLS cannot be set up.
pub(super) fn client(options: &Options) -> Result<Client> {
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

/// A URL, and what goes with requests to its server and to no other.
pub(super) struct Target {
    /// With user and password, where it has them.
    url: Url,
    headers: HeaderMap,
}

impl Target {
    pub(super) fn new(url: Url, headers: &Headers) -> Target {
        let headers = headers.for_server(&url);
        Target { url, headers }
    }

    /// A request of `url`, to which this one may have led.
    fn request(&self, client: &Client, mut url: Url) -> RequestBuilder {
        if url.origin() != self.url.origin() {
            return client.get(url);
        }
        // Neither fails for a URL with a host.
        let _ = url.set_username(self.url.username());
        let _ = url.set_password(self.url.password());
        client.get(url).headers(self.headers.clone())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Memory taken for a range before any of it has arrived. Most ranges are smaller.
const RESERVED_BYTES_MAX: u64 = 16 << 20;

/// What is behind a URL, as it was when it was resolved.
#[derive(Debug)]
pub(super) struct HttpObject {
    client: Client,
    target: Target,
    pub(super) name: Arc<str>,
    pub(super) size: Option<u64>,
    pub(super) has_ranges: bool,
    pub(super) etag: Option<String>,
    pub(super) modified: Option<String>,
    /// The body has neither a length nor chunks: it ends where the connection does.
    pub(super) is_unframed: bool,
    pub(super) allows_unframed: bool,
    stall: Duration,
    retry: Duration,
}

/// Why one attempt did not work, and whether another may.
struct Attempt {
    error: Error,
    again: bool,
}

/// Pauses between attempts, longer each time, until the time for them is up.
struct Patience {
    start: Instant,
    pause: Duration,
    limit: Duration,
}

impl Patience {
    fn new(limit: Duration) -> Patience {
        Patience { start: Instant::now(), pause: PAUSE_FIRST, limit }
    }

    /// Waits before the next attempt, or gives the error of the last one.
    async fn after(&mut self, failed: Attempt) -> Result<()> {
        if !failed.again || self.start.elapsed() + self.pause >= self.limit {
            return Err(failed.error);
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }
}

impl HttpObject {
    /// What its name does not show of it.
    pub(super) fn hidden(&self) -> Option<Secret> {
        name::hidden(&self.target.url)
    }

    /// Asks the server for the first byte to learn what is there.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses.
    pub(super) async fn probe(
        client: Client,
        target: Target,
        name: Arc<str>,
        options: &Options,
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
            allows_unframed: allows_unframed(options)?,
            stall: options.stall,
            retry: options.retry,
        };
        let answer = object.request(Some(0..1)).await?;
        let headers = answer.headers();
        object.etag = text(headers, ETAG);
        object.modified = text(headers, LAST_MODIFIED);
        let total = content_range(headers).and_then(|(_, total)| total);
        match answer.status() {
            StatusCode::PARTIAL_CONTENT => (object.size, object.has_ranges) = (total, true),
            StatusCode::RANGE_NOT_SATISFIABLE if total == Some(0) => object.size = total,
            StatusCode::RANGE_NOT_SATISFIABLE => return Err(object.refused(answer.status())),
            _ => {
                object.size = text(headers, CONTENT_LENGTH).and_then(|len| len.parse().ok());
                object.is_unframed = !is_framed(&answer);
            }
        }
        Ok(object)
    }

    /// Exactly the bytes of `range`.
    pub(super) async fn range(&self, range: Range<u64>) -> Result<Bytes> {
        let mut patience = Patience::new(self.retry);
        loop {
            match self.range_once(range.clone()).await {
                Ok(bytes) => return Ok(bytes),
                Err(failed) => patience.after(failed).await?,
            }
        }
    }

    async fn range_once(&self, range: Range<u64>) -> Result<Bytes, Attempt> {
        let answer = self.send(Some(range.clone())).await?;
        let same = content_range(answer.headers()) == Some((Some(range.clone()), self.size));
        if answer.status() != StatusCode::PARTIAL_CONTENT || !same || !self.is_same(&answer) {
            return Err(Attempt { error: changed(&self.name), again: false });
        }
        let expected = range.end - range.start;
        // More is had as it arrives: how much there is is the server's word alone.
        let mut bytes = BytesMut::with_capacity(expected.min(RESERVED_BYTES_MAX) as usize);
        let mut body = self.body(answer);
        while let Some(piece) = body.next().await.map_err(|error| Attempt { error, again: true })? {
            bytes.extend_from_slice(&piece);
            if bytes.len() as u64 > expected {
                break;
            }
        }
        if bytes.len() as u64 != expected {
            let error = short(&self.name, bytes.len() as u64, expected);
            return Err(Attempt { error, again: true });
        }
        Ok(bytes.freeze())
    }

    /// The whole body; the request is tried again, the body is not.
    pub(super) async fn stream(&self) -> Result<Body> {
        if self.size == Some(0) {
            return Ok(self.empty());
        }
        let answer = self.request(None).await?;
        let len: Option<u64> =
            text(answer.headers(), CONTENT_LENGTH).and_then(|len| len.parse().ok());
        if !self.is_same(&answer) || self.size.zip(len).is_some_and(|(was, is)| was != is) {
            return Err(changed(&self.name));
        }
        let is_framed = self.allows_unframed || self.size.is_some() || is_framed(&answer);
        Ok(Body { is_framed, size: self.size, ..self.body(answer) })
    }

    /// One request. Answers other than success, and 416 for the probe's sake, are errors.
    async fn send(&self, range: Option<Range<u64>>) -> Result<Response, Attempt> {
        let mut url = self.target.url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let answer = self.ask(&url, range.clone()).await?;
            match self.redirect(&url, &answer)? {
                Some(next) => url = next,
                None => return self.accept(answer),
            }
        }
        let message = format!("the server of \"{}\" redirects in a circle", self.name);
        Err(Attempt { error: fault(&self.name, message), again: false })
    }

    async fn ask(&self, url: &Url, range: Option<Range<u64>>) -> Result<Response, Attempt> {
        let mut request = self.target.request(&self.client, url.clone());
        if let Some(range) = range {
            request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
        }
        let lost = |why: String| {
            let error = fault(&self.name, format!("could not fetch \"{}\"", self.name));
            Attempt { error: error.because(why), again: true }
        };
        match tokio::time::timeout(self.stall, request.send()).await {
            Err(_) => Err(lost(self.silence())),
            Ok(Err(error)) => Err(lost(root_cause(&error.without_url()))),
            Ok(Ok(answer)) => Ok(answer),
        }
    }

    /// Where an answer says that the body is.
    fn redirect(&self, url: &Url, answer: &Response) -> Result<Option<Url>, Attempt> {
        const MOVED: [u16; 5] = [301, 302, 303, 307, 308];
        if !MOVED.contains(&answer.status().as_u16()) {
            return Ok(None);
        }
        let place = answer.headers().get(LOCATION).and_then(|place| place.to_str().ok());
        let next = place.and_then(|place| url.join(place).ok());
        match next.filter(|next| matches!(next.scheme(), "http" | "https")) {
            Some(next) => Ok(Some(next)),
            None => {
                let message = format!("the server of \"{}\" redirects to no web server", self.name);
                Err(Attempt { error: fault(&self.name, message), again: false })
            }
        }
    }

    fn accept(&self, answer: Response) -> Result<Response, Attempt> {
        let status = answer.status();
        if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Ok(answer);
        }
        let again = status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        Err(Attempt { error: self.refused(status), again })
    }

    /// The answer to one request, asked for again while that may help.
    async fn request(&self, range: Option<Range<u64>>) -> Result<Response> {
        let mut patience = Patience::new(self.retry);
        loop {
            match self.send(range.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => patience.after(failed).await?,
            }
        }
    }

    fn is_same(&self, answer: &Response) -> bool {
        let headers = answer.headers();
        let modified = text(headers, LAST_MODIFIED);
        same_tag(&self.etag, &text(headers, ETAG))
            && (self.etag.is_some() || same_tag(&self.modified, &modified))
    }

    fn refused(&self, status: StatusCode) -> Error {
        let name = &self.name;
        match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                fault(name, format!("\"{name}\" does not exist (HTTP status {})", status.as_u16()))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => fault(
                name,
                format!("access to \"{name}\" was denied (HTTP status {})", status.as_u16()),
            )
            .hint(
                "Put the credentials into a file that holds `Bearer ...`, and name the file with \
                 `--source-option header.authorization=@FILE`; a signed URL may have expired.",
            ),
            _ => {
                let said = status.canonical_reason().unwrap_or("unknown");
                fault(name, format!("the server refused \"{name}\": {} {said}", status.as_u16()))
            }
        }
    }

    fn silence(&self) -> String {
        format!("the server sent nothing for {} s", self.stall.as_secs_f32())
    }

    fn body(&self, answer: Response) -> Body {
        let silence = self.silence();
        Body {
            answer: Some(answer),
            name: Arc::clone(&self.name),
            stall: self.stall,
            silence,
            read: 0,
            size: None,
            is_framed: true,
        }
    }

    fn empty(&self) -> Body {
        let silence = self.silence();
        let name = Arc::clone(&self.name);
        Body {
            answer: None,
            name,
            stall: self.stall,
            silence,
            read: 0,
            size: None,
            is_framed: true,
        }
    }
}

/// The rest of an answer's body.
pub(super) struct Body {
    answer: Option<Response>,
    name: Arc<str>,
    stall: Duration,
    silence: String,
    read: u64,
    /// What it must have in the end, where that is known.
    size: Option<u64>,
    /// Its end is announced, and is no lost connection.
    pub(super) is_framed: bool,
}

impl Body {
    /// The next bytes, `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        let Some(answer) = &mut self.answer else { return Ok(None) };
        let why = match tokio::time::timeout(self.stall, answer.chunk()).await {
            Ok(Ok(piece)) => {
                self.read += piece.as_ref().map_or(0, |bytes| bytes.len() as u64);
                return match self.size {
                    Some(size) if piece.is_none() && self.read != size => {
                        Err(short(&self.name, self.read, size))
                    }
                    _ => Ok(piece),
                };
            }
            Ok(Err(error)) => root_cause(&error),
            Err(_) => self.silence.clone(),
        };
        let message = format!("\"{}\" broke off after {} bytes", self.name, self.read);
        Err(fault(&self.name, message)
            .hint("Try again, or download the file first and load it from disk.")
            .because(why))
    }
}

/// What the option for bodies without a length says.
fn allows_unframed(options: &Options) -> Result<bool> {
    let mut given =
        options.store.iter().filter(|(key, _)| key.eq_ignore_ascii_case(UNFRAMED_OPTION));
    match given.next_back().map(|(_, value)| value.as_str()) {
        None | Some("refuse") => Ok(false),
        Some("allow") => Ok(true),
        Some(other) => {
            let message = format!("source option \"{UNFRAMED_OPTION}\" cannot be \"{other}\"");
            Err(Error::new(ErrorKind::Usage, message).hint("It is `allow` or `refuse`."))
        }
    }
}

/// Whether an answer says where its body ends.
fn is_framed(answer: &Response) -> bool {
    let headers = answer.headers();
    let coding = text(headers, TRANSFER_ENCODING).unwrap_or_default().to_ascii_lowercase();
    answer.version() > Version::HTTP_11
        || headers.contains_key(CONTENT_LENGTH)
        || coding.split(',').any(|coding| coding.trim() == "chunked")
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// The range and the whole size that a `Content-Range` header names.
fn content_range(headers: &HeaderMap) -> Option<(Option<Range<u64>>, Option<u64>)> {
    let value = text(headers, CONTENT_RANGE)?;
    let (range, total) = value.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    let range = range.split_once('-').and_then(|(first, last)| {
        Some(first.trim().parse().ok()?..last.trim().parse::<u64>().ok()?.checked_add(1)?)
    });
    Some((range, total.trim().parse().ok()))
}
