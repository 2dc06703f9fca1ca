//! Names of inputs: which kind they are, how they are shown, what their suffixes say.
//!
//! A name that is shown never carries a password or a signature.

use url::Url;

/// What a name on the command line is.
#[derive(Debug, PartialEq)]
pub(super) enum Spec<'a> {
    Stdin,
    /// A path, a folder or a pattern.
    Local(&'a str),
    /// `scheme`, and what follows `://`.
    Url(&'a str, &'a str),
}

impl<'a> Spec<'a> {
    pub(super) fn parse(spec: &'a str) -> Spec<'a> {
        if spec == "-" {
            return Spec::Stdin;
        }
        let is_scheme = |scheme: &str| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c))
        };
        match spec.split_once("://") {
            Some((scheme, rest)) if is_scheme(scheme) => Spec::Url(scheme, rest),
            _ => Spec::Local(spec),
        }
    }
}

/// `url` as it may be shown: without a password, and with the values of signing parameters
/// replaced.
pub(super) fn shown(url: &Url) -> String {
    const SECRET: [&str; 9] =
        ["sig", "token", "secret", "password", "passwd", "credential", "auth", "key", "policy"];
    let mut shown = url.clone();
    if !url.username().is_empty() || url.password().is_some() {
        // Neither fails for a URL with a host, and without one it had no user.
        let _ = shown.set_username("");
        let _ = shown.set_password(None);
    }
    if let Some(query) = url.query() {
        let parts = query.split('&').map(|part| {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let lower = key.to_ascii_lowercase();
            match !value.is_empty() && SECRET.iter().any(|secret| lower.contains(secret)) {
                true => format!("{key}=..."),
                false => part.to_owned(),
            }
        });
        let query = parts.collect::<Vec<_>>().join("&");
        shown.set_query(Some(&query));
    }
    shown.set_fragment(None);
    shown.into()
}

/// The suffix that tells the format: lower case, what a compression added left out. `csv` for
/// `a/B.CSV.gz`.
pub(super) fn extension(name: &str) -> Option<String> {
    const COMPRESSIONS: [&str; 9] = ["gz", "gzip", "bgz", "z", "zst", "zstd", "bz2", "bz", "xz"];
    let path = if name.contains("://") { name.split(['?', '#']).next()? } else { name };
    let file = path.rsplit('/').next()?;
    let mut parts: Vec<String> = file.split('.').skip(1).map(str::to_ascii_lowercase).collect();
    if parts.last().is_some_and(|last| COMPRESSIONS.contains(&last.as_str())) {
        parts.pop();
    }
    parts.pop().filter(|extension| !extension.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_names() {
        assert_eq!(Spec::parse("-"), Spec::Stdin);
        assert_eq!(Spec::parse("s3://b/k://x"), Spec::Url("s3", "b/k://x"));
        assert_eq!(Spec::parse("a b://c"), Spec::Local("a b://c"));
        assert_eq!(Spec::parse("./-"), Spec::Local("./-"));
    }

    #[test]
    fn secrets_are_not_shown() {
        let show = |url: &str| shown(&Url::parse(url).unwrap());
        assert_eq!(show("https://u:p@h/a.csv"), "https://h/a.csv");
        assert_eq!(
            show("https://h/a.csv?X-Amz-Signature=abc&part=1&sig=d&Token=e#f"),
            "https://h/a.csv?X-Amz-Signature=...&part=1&sig=...&Token=..."
        );
    }

    #[test]
    fn suffixes() {
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
