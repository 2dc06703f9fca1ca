//! `postgres://...?slot=...&publication=...`: a server's changes, named as a source.
//!
//! The rest of the URL is a connection string like any other.

use url::form_urlencoded;

use crate::{Error, Kind, Result};

/// Where changes come from.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// The connection string, without the two parameters. It may hold a password.
    pub dsn: String,
    /// The replication slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
}

impl Address {
    /// Reads a source's name. `None` when it is no URL of PostgreSQL's, or has neither of the two
    /// parameters.
    ///
    /// # Errors
    /// [`Kind::Usage`] when one of the two is missing, empty or there twice.
    pub fn parse(source: &str) -> Result<Option<Address>> {
        let is_url = ["postgres://", "postgresql://"].iter().any(|it| source.starts_with(it));
        let Some((base, query)) = source.split_once('?').filter(|_| is_url) else {
            return Ok(None);
        };
        let (mut slot, mut publication, mut rest) = (None, None, Vec::new());
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let found = match name {
                "slot" => &mut slot,
                "publication" => &mut publication,
                _ => {
                    rest.push(pair);
                    continue;
                }
            };
            if found.replace(decoded(value)).is_some() {
                return Err(Error::new(Kind::Usage, format!("the URL has \"{name}\" twice")));
            }
        }
        if slot.is_none() && publication.is_none() {
            return Ok(None);
        }
        let given = |value: Option<String>, name: &str| {
            value.filter(|value| !value.is_empty()).ok_or_else(|| {
                Error::new(Kind::Usage, format!("the URL of a stream of changes has no \"{name}\""))
                    .hint("Write postgres://user@host/dbname?slot=NAME&publication=NAME.")
            })
        };
        let (slot, publication) = (given(slot, "slot")?, given(publication, "publication")?);
        let dsn = match rest.is_empty() {
            true => base.to_owned(),
            false => format!("{base}?{}", rest.join("&")),
        };
        Ok(Some(Address { dsn, slot, publication }))
    }
}

/// Without the password that the connection string may hold.
impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Address")
            .field("slot", &self.slot)
            .field("publication", &self.publication)
            .finish_non_exhaustive()
    }
}

/// A parameter's value, where a plus is a plus.
fn decoded(value: &str) -> String {
    let pair = format!("v={}", value.replace('+', "%2B"));
    form_urlencoded::parse(pair.as_bytes()).map(|(_, value)| value.into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_parameters_are_taken_out() {
        let address = |text| Address::parse(text).unwrap();
        let found = address("postgres://bob:x@h:5433/d?sslmode=require&slot=s&publication=a%20+b");
        let found = found.unwrap();
        assert_eq!(found.dsn, "postgres://bob:x@h:5433/d?sslmode=require");
        assert_eq!((found.slot.as_str(), found.publication.as_str()), ("s", "a +b"));
        assert!(!format!("{found:?}").contains('x'));
        let bare = address("postgresql://h/d?publication=p&slot=s").unwrap();
        assert_eq!(bare.dsn, "postgresql://h/d");
        for text in ["orders.csv?slot=s", "postgres://h/d", "postgres://h/d?sslmode=require", "-"] {
            assert_eq!(address(text), None, "{text}");
        }
    }

    #[test]
    fn half_an_address_is_none() {
        for text in [
            "postgres://h/d?slot=s",
            "postgres://h/d?publication=p",
            "postgres://h/d?slot=&publication=p",
            "postgres://h/d?slot=s&slot=t&publication=p",
        ] {
            assert_eq!(Address::parse(text).unwrap_err().kind(), Kind::Usage, "{text}");
        }
    }
}
