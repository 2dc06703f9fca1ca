//! Connection parameters as text, each with where it came from; sources in libpq's precedence.
//!
//! An earlier source wins. An empty value means the default and still hides later sources. No
//! value of a secret parameter becomes part of a message.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::environment::Environment;
use super::keyword::{self, KEYWORDS, Usage};
use super::{conninfo, service, uri};
use crate::{Error, ErrorKind, Result};

/// Where a parameter's value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// The connection string.
    Conninfo,
    /// A service, with the file that defines it.
    Service(String, PathBuf),
    /// An environment variable.
    Variable(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Conninfo => f.write_str("the connection string"),
            Origin::Service(name, path) => {
                write!(f, "service \"{name}\" in \"{}\"", path.display())
            }
            Origin::Variable(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// A parameter's value and where it came from.
#[derive(Clone)]
struct Setting {
    value: String,
    origin: Origin,
}

/// Parameters by name, as text.
#[derive(Clone, Default)]
pub(super) struct Settings {
    values: BTreeMap<&'static str, Setting>,
}

impl Settings {
    /// The parameters that `conninfo`, a service and the environment give together.
    pub(super) fn gather(conninfo: Option<&str>, env: &Environment) -> Result<Settings> {
        let mut settings = Settings::default();
        match conninfo {
            Some(text) if uri::is_uri(text) => uri::parse(text, &mut settings)?,
            Some(text) => conninfo::parse(text, &mut settings)?,
            None => {}
        }
        let own = settings.get("service");
        if let Some(name) = own.or_else(|| env.variable("PGSERVICE")).map(str::to_owned) {
            service::read(&name, &mut settings, env)?;
        }
        for known in KEYWORDS {
            let Some(variable) = known.variable else { continue };
            if let Some(value) = env.variable(variable) {
                settings.add(known.name, value.to_owned(), Origin::Variable(variable));
            }
        }
        if env.variable("PGREQUIRESSL").is_some_and(|value| value.starts_with('1')) {
            settings.add("sslmode", "require".to_owned(), Origin::Variable("PGREQUIRESSL"));
        }
        settings.refuse_unsupported()?;
        Ok(settings)
    }

    /// Sets a known parameter, replacing what it had: in a connection string the last one counts.
    pub(super) fn set(&mut self, name: &'static str, value: String) {
        self.values.insert(name, Setting { value, origin: Origin::Conninfo });
    }

    /// Sets a known parameter unless an earlier source has.
    pub(super) fn add(&mut self, name: &'static str, value: String, origin: Origin) {
        self.values.entry(name).or_insert(Setting { value, origin });
    }

    /// A parameter's value; none where it is unset or empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.values
            .get(name)
            .map(|setting| setting.value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// Where a parameter's value came from.
    pub(super) fn origin(&self, name: &str) -> Option<&Origin> {
        self.values.get(name).map(|setting| &setting.origin)
    }

    /// Names and values of all parameters that are set, secret ones left out.
    pub(super) fn public(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = self.values.iter().map(|(name, setting)| (*name, setting.value.as_str()));
        all.filter(|(name, value)| !keyword::is_secret(name) && !value.is_empty())
    }

    /// The error for a value that a parameter cannot have. `allowed` completes "expected ...".
    pub(super) fn invalid(&self, name: &str, allowed: &str) -> Error {
        let shown = match self.get(name) {
            Some(value) if !keyword::is_secret(name) => format!(" \"{value}\""),
            _ => String::new(),
        };
        self.wrong(name, format!("invalid {name} value{shown}, expected {allowed}"))
    }

    /// A usage error about a parameter, with a hint that says where its value came from.
    pub(super) fn wrong(&self, name: &str, message: impl Into<String>) -> Error {
        let error = Error::new(ErrorKind::Usage, message);
        match self.origin(name) {
            Some(origin) => error.hint(format!("The value of {name} comes from {origin}.")),
            None => error,
        }
    }

    /// A switch: `0` or `1`.
    pub(super) fn switch(&self, name: &str, default: bool) -> Result<bool> {
        match self.get(name).map(str::trim) {
            None => Ok(default),
            Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(_) => Err(self.invalid(name, "0 or 1")),
        }
    }

    /// A whole number; none where it is unset, zero or negative, which all mean the default.
    pub(super) fn number(&self, name: &str) -> Result<Option<u32>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.trim().parse::<i64>().ok().filter(|n| *n <= i64::from(i32::MAX));
        let number = number.ok_or_else(|| self.invalid(name, "a whole number"))?;
        Ok(u32::try_from(number).ok().filter(|number| *number > 0))
    }

    /// One of several words.
    pub(super) fn choice<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<Option<T>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                Err(self.invalid(name, &format!("one of {}", words.join(", "))))
            }
        }
    }

    fn refuse_unsupported(&self) -> Result<()> {
        for known in KEYWORDS {
            if let (Usage::Refused(why), Some(_)) = (known.usage, self.get(known.name)) {
                return Err(self.wrong(known.name, format!("{} cannot be used: {why}", known.name)));
            }
        }
        if self.get("gssencmode") == Some("require") {
            return Err(self.wrong("gssencmode", "GSSAPI encryption is not supported").hint(
                "Leave gssencmode out, and use sslmode=verify-full for an encrypted connection.",
            ));
        }
        match self.get("min_protocol_version") {
            None | Some("3.0") => Ok(()),
            Some(_) => Err(self.invalid("min_protocol_version", "3.0, the only one spoken here")),
        }
    }
}

/// The error for a parameter nobody knows. `name` is repeated only where `may_show` and it looks
/// like a name, since what stands there may be a piece of a password with a space in it.
pub(super) fn unknown(name: &str, may_show: bool, place: &str) -> Error {
    if !may_show || !keyword::looks_like_one(name) {
        return Error::new(ErrorKind::Usage, format!("unknown connection parameter in {place}"))
            .hint(
                "Write a URL, postgres://user@host:port/dbname, with special characters \
             percent-encoded, or `key=value` pairs with values that contain spaces in single \
             quotes.",
            );
    }
    let error = Error::new(ErrorKind::Usage, format!("unknown connection parameter \"{name}\""));
    error.hint(match keyword::nearest(name) {
        Some(known) => format!("Did you mean \"{known}\"? It stands in {place}."),
        None => format!("It stands in {place}; libpq has no such parameter."),
    })
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.values.iter().map(|(name, setting)| {
            (*name, if keyword::is_secret(name) { "***" } else { setting.value.as_str() })
        });
        f.debug_map().entries(shown).finish()
    }
}
