//! Connection parameters as text, each with its origin, in libpq's order of precedence.
//!
//! An earlier source wins. An empty value selects the default, and still hides the values of later
//! sources. Messages never contain the value of a secret parameter.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::environment::Environment;
use super::keyword::{self, KEYWORDS, KeywordSupport};
use super::{conninfo, service, uri};
use crate::{Error, ErrorKind, Result};

/// Where a parameter's value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ParameterOrigin {
    /// The connection string.
    Conninfo,
    /// A service: its name, and the file that defines it.
    Service(String, PathBuf),
    /// An environment variable.
    Variable(&'static str),
}

impl fmt::Display for ParameterOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterOrigin::Conninfo => f.write_str("the connection string"),
            ParameterOrigin::Service(name, path) => {
                write!(f, "service \"{name}\" in \"{}\"", path.display())
            }
            ParameterOrigin::Variable(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// A parameter's value and its origin.
#[derive(Clone)]
struct ParameterValue {
    value: String,
    origin: ParameterOrigin,
}

/// Parameters by name, as text.
#[derive(Clone, Default)]
pub(super) struct ConnectionParameters {
    values: BTreeMap<&'static str, ParameterValue>,
}

impl ConnectionParameters {
    /// Collects the parameters from `conninfo`, a service file and the environment.
    pub(super) fn gather(
        conninfo: Option<&str>,
        env: &Environment,
    ) -> Result<ConnectionParameters> {
        let mut settings = ConnectionParameters::default();
        match conninfo {
            Some(text) if uri::is_uri(text) => uri::parse(text, &mut settings)?,
            Some(text) => conninfo::parse(text, &mut settings)?,
            None => {}
        }
        let named = settings.get("service");
        if let Some(name) = named.or_else(|| env.variable("PGSERVICE")).map(str::to_owned) {
            service::read(&name, &mut settings, env)?;
        }
        for known in KEYWORDS {
            let Some(variable) = known.variable else { continue };
            if let Some(value) = env.variable(variable) {
                settings.add(known.name, value.to_owned(), ParameterOrigin::Variable(variable));
            }
        }
        if env.variable("PGREQUIRESSL").is_some_and(|value| value.starts_with('1')) {
            settings.add(
                "sslmode",
                "require".to_owned(),
                ParameterOrigin::Variable("PGREQUIRESSL"),
            );
        }
        settings.refuse_unsupported()?;
        Ok(settings)
    }

    /// Sets a known parameter, and replaces an earlier value: in a connection string the last value
    /// wins.
    pub(super) fn set(&mut self, name: &'static str, value: String) {
        self.values.insert(name, ParameterValue { value, origin: ParameterOrigin::Conninfo });
    }

    /// Sets a known parameter, unless an earlier source has set it.
    pub(super) fn add(&mut self, name: &'static str, value: String, origin: ParameterOrigin) {
        self.values.entry(name).or_insert(ParameterValue { value, origin });
    }

    /// Returns a parameter's value. `None` if it is unset or empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.values
            .get(name)
            .map(|setting| setting.value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// Returns where a parameter's value came from.
    pub(super) fn origin(&self, name: &str) -> Option<&ParameterOrigin> {
        self.values.get(name).map(|setting| &setting.origin)
    }

    /// Returns names and values of all set parameters, except secret ones.
    pub(super) fn public(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = self.values.iter().map(|(name, setting)| (*name, setting.value.as_str()));
        all.filter(|(name, value)| !keyword::is_secret(name) && !value.is_empty())
    }

    /// Returns the error for an invalid value. `allowed` completes "expected ...".
    pub(super) fn invalid(&self, name: &str, allowed: &str) -> Error {
        let shown = match self.get(name) {
            Some(value) if !keyword::is_secret(name) => format!(" \"{value}\""),
            _ => String::new(),
        };
        self.usage_error(name, format!("invalid {name} value{shown}, expected {allowed}"))
    }

    /// Returns a usage error about a parameter, with a hint that names the value's origin.
    pub(super) fn usage_error(&self, name: &str, message: impl Into<String>) -> Error {
        let error = Error::new(ErrorKind::Usage, message);
        match self.origin(name) {
            Some(origin) => error.hint(format!("The value of {name} comes from {origin}.")),
            None => error,
        }
    }

    /// Returns a boolean parameter: `0` or `1`.
    pub(super) fn switch(&self, name: &str, default: bool) -> Result<bool> {
        match self.get(name).map(str::trim) {
            None => Ok(default),
            Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(_) => Err(self.invalid(name, "0 or 1")),
        }
    }

    /// Returns a parameter's whole number. `None`, which selects the default, if the parameter is
    /// unset, zero or negative.
    pub(super) fn number(&self, name: &str) -> Result<Option<u32>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.trim().parse::<i64>().ok().filter(|n| *n <= i64::from(i32::MAX));
        let number = number.ok_or_else(|| self.invalid(name, "a whole number"))?;
        Ok(u32::try_from(number).ok().filter(|number| *number > 0))
    }

    /// Returns the value in `words` that belongs to the parameter's word.
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
            if let (KeywordSupport::Refused(why), Some(_)) = (known.support, self.get(known.name)) {
                return Err(
                    self.usage_error(known.name, format!("{} cannot be used: {why}", known.name))
                );
            }
        }
        if self.get("gssencmode") == Some("require") {
            return Err(self.usage_error("gssencmode", "GSSAPI encryption is not supported").hint(
                "Leave gssencmode out, and use sslmode=verify-full for an encrypted connection.",
            ));
        }
        match self.get("min_protocol_version") {
            None | Some("3.0") => Ok(()),
            Some(_) => Err(self.invalid("min_protocol_version", "3.0, the only supported version")),
        }
    }
}

/// Returns the error for an unknown parameter. The message repeats `name` only if `may_show` is
/// true and `name` looks like a parameter name. Otherwise `name` may be part of a password.
pub(super) fn unknown_parameter(name: &str, may_show: bool, place: &str) -> Error {
    if !may_show || !keyword::looks_like_keyword(name) {
        return Error::new(ErrorKind::Usage, format!("unknown connection parameter in {place}"))
            .hint(
                "Write a URL, postgres://user@host:port/dbname, with special characters \
             percent-encoded, or `key=value` pairs with values that contain spaces in single \
             quotes.",
            );
    }
    let error = Error::new(ErrorKind::Usage, format!("unknown connection parameter \"{name}\""));
    error.hint(match keyword::nearest(name) {
        Some(known) => format!("Did you mean \"{known}\"? The unknown parameter is in {place}."),
        None => format!("libpq has no parameter of this name. The parameter is in {place}."),
    })
}

impl fmt::Debug for ConnectionParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.values.iter().map(|(name, setting)| {
            (*name, if keyword::is_secret(name) { "***" } else { setting.value.as_str() })
        });
        f.debug_map().entries(shown).finish()
    }
}
