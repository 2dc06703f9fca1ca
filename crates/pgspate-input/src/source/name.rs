//! Parses the names of inputs, formats URLs without secrets, and finds the suffix of the format.
//!
//! A displayed name never contains a secret. [`identifying_url`] distinguishes sources whose
//! displayed names are equal.

use url::Url;

use crate::Secret;

/// A source as named on the command line.
#[derive(Debug, PartialEq)]
pub(super) enum SourceSpec<'a> {
    Stdin,
    /// A path, a folder or a pattern.
    Local(&'a str),
    /// A URL: its scheme, and the text after `://`.
    Url(&'a str, &'a str),
}

impl<'a> SourceSpec<'a> {
    pub(super) fn parse(spec: &'a str) -> SourceSpec<'a> {
        if spec == "-" {
            return SourceSpec::Stdin;
        }
        let is_scheme = |scheme: &str| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c))
        };
        match spec.split_once("://") {
            Some((scheme, rest)) if is_scheme(scheme) => SourceSpec::Url(scheme, rest),
            _ => SourceSpec::Local(spec),
        }
    }
}

/// Returns a URL for display: without user, password, fragment, a store's signature, and the values
/// of its query. Any value may be a secret of some server, so no value is shown.
pub(super) fn shown_url(url: &Url) -> String {
    let mut shown = without_credentials(url);
    let query = url.query().and_then(without_signature).map(|query| {
        let part = |part: &str| match part.split_once('=') {
            Some((_, "")) => part.to_owned(),
            Some((name, _)) => format!("{name}=..."),
            // A part without `=` may be a secret.
            None => "...".to_owned(),
        };
        query.split('&').map(part).collect::<Vec<_>>().join("&")
    });
    shown.set_query(query.as_deref());
    shown.into()
}

/// Returns the full URL if the displayed URL omits a part of it, else `None`. The password and a
/// store's signature are left out: they may change from run to run while the object stays the same.
pub(super) fn identifying_url(url: &Url) -> Option<Secret> {
    let mut full = without_credentials(url);
    // Fails only for a URL without a host, which has no user.
    let _ = full.set_username(url.username());
    let rest = url.query().and_then(without_signature);
    full.set_query(rest.as_deref());
    let has_omitted_part = rest.is_some() || !url.username().is_empty();
    has_omitted_part.then(|| Secret::new(String::from(full)))
}

/// Returns a URL without user, password and fragment.
fn without_credentials(url: &Url) -> Url {
    let mut bare = url.clone();
    let _ = bare.set_username("");
    let _ = bare.set_password(None);
    bare.set_fragment(None);
    bare
}

/// How stores sign URLs. The first list has the parameters that together identify a way of signing.
/// The second list has the other parameters of the signature. A name that ends with `-` is a
/// prefix.
const SIGNATURES: [(&[&str], &[&str]); 6] = [
    (&["x-amz-signature"], &["x-amz-"]),
    (&["x-goog-signature"], &["x-goog-"]),
    (&["awsaccesskeyid", "signature"], &["expires", "x-amz-security-token"]),
    (&["googleaccessid", "signature"], &["expires"]),
    (&["key-pair-id", "signature"], &["expires", "policy"]),
    (
        &["sv", "sig"],
        &[
            "ss", "srt", "sp", "st", "se", "sr", "si", "sip", "spr", "sdd", "skoid", "sktid",
            "skt", "ske", "sks", "skv", "saoid", "suoid", "scid",
        ],
    ),
];

/// Returns a query without a store's signature, or `None` if nothing remains.
fn without_signature(query: &str) -> Option<String> {
    let name = |part: &str| part.split_once('=').map_or(part, |(name, _)| name).to_lowercase();
    let names: Vec<String> = query.split('&').map(name).collect();
    let signed = SIGNATURES
        .iter()
        .find(|(marks, _)| marks.iter().all(|mark| names.iter().any(|name| name == mark)));
    let is_signature_parameter = |name: &str| {
        let Some((marks, more)) = signed else { return false };
        marks
            .iter()
            .chain(*more)
            .any(|known| name == *known || (known.ends_with('-') && name.starts_with(known)))
    };
    let rest: Vec<&str> = query
        .split('&')
        .zip(&names)
        .filter(|(part, name)| !part.is_empty() && !is_signature_parameter(name))
        .map(|(part, _)| part)
        .collect();
    (!rest.is_empty()).then(|| rest.join("&"))
}

/// Returns the suffix that indicates the format, in lower case: `csv` for `a/B.CSV.gz`. A suffix of
/// a compression is skipped.
pub(super) fn extension(name: &str) -> Option<String> {
    let mut suffixes = suffixes(name);
    if suffixes.last().is_some_and(|last| is_compression(last)) {
        suffixes.pop();
    }
    suffixes.pop().filter(|extension| !extension.is_empty())
}

/// Returns whether the name ends with the suffix of a compression.
pub(super) fn is_compressed(name: &str) -> bool {
    suffixes(name).last().is_some_and(|last| is_compression(last))
}

/// Returns the suffixes of the file's name, in lower case: `csv` and `gz` for `a/B.CSV.gz`.
fn suffixes(name: &str) -> Vec<String> {
    let path = if name.contains("://") { name.split(['?', '#']).next() } else { Some(name) };
    let file = path.and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    file.split('.').skip(1).map(str::to_ascii_lowercase).collect()
}

fn is_compression(suffix: &str) -> bool {
    const COMPRESSIONS: [&str; 9] = ["gz", "gzip", "bgz", "z", "zst", "zstd", "bz2", "bz", "xz"];
    COMPRESSIONS.contains(&suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_parsed() {
        assert_eq!(SourceSpec::parse("-"), SourceSpec::Stdin);
        assert_eq!(SourceSpec::parse("s3://b/k://x"), SourceSpec::Url("s3", "b/k://x"));
        assert_eq!(SourceSpec::parse("a b://c"), SourceSpec::Local("a b://c"));
        assert_eq!(SourceSpec::parse("./-"), SourceSpec::Local("./-"));
    }

    #[test]
    fn displayed_urls_have_no_secrets() {
        let show = |url: &str| shown_url(&Url::parse(url).unwrap());
        assert_eq!(show("https://u:p@h/a.csv"), "https://h/a.csv");
        assert_eq!(
            show("https://h/a.csv?X-Amz-Signature=abc&part=1&pwd=d&code=e&Token=&jwt&&s=f=g#h"),
            "https://h/a.csv?part=...&pwd=...&code=...&Token=&...&s=..."
        );
    }

    #[test]
    fn identifying_urls_keep_everything_but_passwords_and_signatures() {
        let identifying = |url: &str| {
            identifying_url(&Url::parse(url).unwrap()).map(|whole| whole.expose().to_owned())
        };
        for (url, expected) in [
            ("https://h/a.csv", None),
            ("https://h/a.csv?", None),
            ("https://h/a.csv#part", None),
            ("https://:p@h/a.csv", None),
            ("https://h/a?key=jan", Some("https://h/a?key=jan")),
            ("https://u:p@h/a#b", Some("https://u@h/a")),
            ("https://h/a?x-amz-date=1", Some("https://h/a?x-amz-date=1")),
            ("https://h/a?X-Amz-Date=1&X-Amz-Signature=2&X-Amz-Expires=3", None),
            ("https://h/a?X-Amz-Signature=2&versionId=4", Some("https://h/a?versionId=4")),
            ("https://h/a?GoogleAccessId=1&Expires=2&Signature=3", None),
            ("https://h/a?sv=1&se=2&sig=3&snapshot=4", Some("https://h/a?snapshot=4")),
            ("https://h/a?se=2&sig=3", Some("https://h/a?se=2&sig=3")),
            ("https://h/a?Expires=2&Key-Pair-Id=3&Signature=4", None),
        ] {
            assert_eq!(identifying(url).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn extensions_skip_compressions() {
        for (name, expected) in [
            ("a/b.csv", Some("csv")),
            ("a/B.CSV.gz", Some("csv")),
            ("s3://b/x.tar.parquet", Some("parquet")),
            ("https://h/a.json.zst?v=1.2", Some("json")),
            ("a.d/b", None),
            ("a.gz", None),
            ("-", None),
        ] {
            assert_eq!(extension(name).as_deref(), expected, "{name}");
        }
    }
}
