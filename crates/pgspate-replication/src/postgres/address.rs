//! Parses `postgres://...?slot=...&publication=...`, the URL of a slot as a source.
//!
//! The rest of the URL is an ordinary connection string.

use crate::{Error, ErrorKind, Result, decode_url_part};

/// The address of a slot: connection string, slot and publication.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SlotAddress {
    /// The connection string, without `slot` and `publication`. It may hold a password.
    pub(crate) dsn: String,
    /// The replication slot.
    pub(crate) slot: String,
    /// The publication.
    pub(crate) publication: String,
}

impl SlotAddress {
    /// Parses the name of a source. Returns `None` if the name is not a URL of PostgreSQL.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if `slot` or `publication` is missing, is empty or occurs twice.
    pub(crate) fn parse(source: &str) -> Result<Option<SlotAddress>> {
        let is_url = ["postgres://", "postgresql://"].iter().any(|it| source.starts_with(it));
        if !is_url {
            return Ok(None);
        }
        let (base, query) = source.split_once('?').unwrap_or((source, ""));
        let (mut slot, mut publication, mut rest) = (None, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let found = match name {
                "slot" => &mut slot,
                "publication" => &mut publication,
                _ => {
                    rest.push(pair);
                    continue;
                }
            };
            if found.replace(decode_url_part(value)).is_some() {
                return Err(Error::new(ErrorKind::Usage, format!("the URL has \"{name}\" twice")));
            }
        }
        let require = |value: Option<String>, name: &str| {
            value.filter(|value| !value.is_empty()).ok_or_else(|| {
                Error::new(
                    ErrorKind::Usage,
                    format!("the URL of a stream of changes has no \"{name}\""),
                )
                .hint("Write postgres://user@host/dbname?slot=NAME&publication=NAME.")
            })
        };
        let (slot, publication) = (require(slot, "slot")?, require(publication, "publication")?);
        let dsn = match rest.is_empty() {
            true => base.to_owned(),
            false => format!("{base}?{}", rest.join("&")),
        };
        Ok(Some(SlotAddress { dsn, slot, publication }))
    }
}

/// Omits the connection string, which may have a password.
impl std::fmt::Debug for SlotAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotAddress")
            .field("slot", &self.slot)
            .field("publication", &self.publication)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_parameters_are_removed_from_the_url() {
        let address = |text| SlotAddress::parse(text).unwrap();
        let found = address("postgres://bob:x@h:5433/d?sslmode=require&slot=s&publication=a%20+b");
        let found = found.unwrap();
        assert_eq!(found.dsn, "postgres://bob:x@h:5433/d?sslmode=require");
        assert_eq!((found.slot.as_str(), found.publication.as_str()), ("s", "a +b"));
        assert!(!format!("{found:?}").contains('x'));
        let bare = address("postgresql://h/d?publication=p&slot=s").unwrap();
        assert_eq!(bare.dsn, "postgresql://h/d");
        for text in ["orders.csv?slot=s", "-"] {
            assert_eq!(address(text), None, "{text}");
        }
    }

    #[test]
    fn incomplete_addresses_are_refused() {
        for text in [
            "postgres://h/d",
            "postgres://h/d?sslmode=require",
            "postgres://h/d?slot=s",
            "postgres://h/d?publication=p",
            "postgres://h/d?slot=&publication=p",
            "postgres://h/d?slot=s&slot=t&publication=p",
        ] {
            assert_eq!(SlotAddress::parse(text).unwrap_err().kind(), ErrorKind::Usage, "{text}");
        }
    }
}
