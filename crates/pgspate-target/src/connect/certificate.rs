//! Reads the few facts of an X.509 certificate that PostgreSQL's rules need in addition to a valid
//! chain.
//!
//! The reader accepts any bytes. Unexpected bytes give `None`, never a panic.

use ring::digest;

/// Facts that a certificate states.
#[derive(Debug)]
pub(super) struct CertificateFacts<'a> {
    /// The subject's public key with its algorithm, as DER.
    pub(super) public_key: &'a [u8],
    /// The subject's common name; the last if there are several.
    pub(super) common_name: Option<String>,
    /// Whether the certificate lists DNS names as alternative names.
    pub(super) has_dns_names: bool,
    /// Whether the certificate lists IP addresses as alternative names.
    pub(super) has_ip_addresses: bool,
    /// First and last second of validity, since 1970; `None` if unreadable.
    pub(super) validity: Option<(u64, u64)>,
    signature_algorithm: Der<'a>,
}

impl<'a> CertificateFacts<'a> {
    /// Reads a certificate in DER format.
    pub(super) fn read(der: &'a [u8]) -> Option<CertificateFacts<'a>> {
        let mut certificate = Der(Der(der).take(SEQUENCE)?);
        let mut body = Der(certificate.take(SEQUENCE)?);
        let signature_algorithm = Der(certificate.take(SEQUENCE)?);
        body.take(CONTEXT_0);
        body.take(INTEGER)?;
        body.take(SEQUENCE)?;
        body.take(SEQUENCE)?;
        let mut validity = Der(body.take(SEQUENCE)?);
        let validity = validity.time().and_then(|from| Some((from, validity.time()?)));
        let common_name = common_name(Der(body.take(SEQUENCE)?));
        let before = body.0;
        body.take(SEQUENCE)?;
        let public_key = &before[..before.len() - body.0.len()];
        let (mut has_dns_names, mut has_ip_addresses) = (false, false);
        while let Some((tag, content)) = body.next() {
            if tag == CONTEXT_3 {
                (has_dns_names, has_ip_addresses) = alternative_names(Der(content));
            }
        }
        Some(CertificateFacts {
            public_key,
            common_name,
            has_dns_names,
            has_ip_addresses,
            validity,
            signature_algorithm,
        })
    }

    /// Returns the certificate's hash for channel binding of the type `tls-server-end-point` (RFC
    /// 5929). The hash function is that of the certificate's signature, but SHA-256 instead of MD5
    /// and SHA-1. `None` if the signature has no known hash function. `der` is the whole
    /// certificate.
    pub(super) fn channel_binding_hash(&self, der: &[u8]) -> Option<Vec<u8>> {
        let mut algorithm = self.signature_algorithm;
        let hash = match algorithm.take(OID)? {
            [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, last] => match last {
                4 | 5 | 11 => &digest::SHA256,
                12 => &digest::SHA384,
                13 => &digest::SHA512,
                10 => pss_hash(algorithm)?,
                _ => return None,
            },
            [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01] => &digest::SHA256,
            [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, last] => match last {
                2 => &digest::SHA256,
                3 => &digest::SHA384,
                4 => &digest::SHA512,
                _ => return None,
            },
            _ => return None,
        };
        Some(digest::digest(hash, der).as_ref().to_vec())
    }

    /// Returns whether the common name is `host`, or a wildcard that matches `host`.
    pub(super) fn common_name_matches(&self, host: &str) -> bool {
        let Some(name) = &self.common_name else { return false };
        if name.eq_ignore_ascii_case(host) {
            return true;
        }
        let is_address = host.parse::<std::net::IpAddr>().is_ok();
        match (name.strip_prefix("*."), host.split_once('.')) {
            (Some(domain), Some((label, rest))) => {
                !is_address && !label.is_empty() && domain.eq_ignore_ascii_case(rest)
            }
            _ => false,
        }
    }
}

/// Returns when a list of revoked certificates was issued, in seconds since 1970.
pub(super) fn list_issued_at(der: &[u8]) -> Option<u64> {
    let mut body = Der(Der(Der(der).take(SEQUENCE)?).take(SEQUENCE)?);
    body.take(INTEGER);
    body.take(SEQUENCE)?;
    body.take(SEQUENCE)?;
    body.time()
}

/// Returns the hash function in RSASSA-PSS parameters. If the parameters name none, the default is
/// SHA-1, which channel binding replaces with SHA-256.
fn pss_hash(mut algorithm: Der<'_>) -> Option<&'static digest::Algorithm> {
    let mut params = Der(algorithm.take(SEQUENCE)?);
    let Some(hash) = params.take(CONTEXT_0) else { return Some(&digest::SHA256) };
    match Der(Der(hash).take(SEQUENCE)?).take(OID)? {
        [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, last] => match last {
            1 => Some(&digest::SHA256),
            2 => Some(&digest::SHA384),
            3 => Some(&digest::SHA512),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the last common name of a subject.
fn common_name(mut subject: Der<'_>) -> Option<String> {
    let mut found = None;
    while let Some(set) = subject.take(SET) {
        let mut attribute = Der(Der(set).take(SEQUENCE)?);
        let is_common_name = attribute.take(OID)? == [0x55, 0x04, 0x03];
        let (_, value) = attribute.next()?;
        if is_common_name {
            // Attackers used a zero byte to make a name look shorter.
            found = String::from_utf8(value.to_vec()).ok().filter(|name| !name.contains('\0'));
        }
    }
    found
}

/// Returns whether the extensions list DNS names, and whether they list IP addresses.
fn alternative_names(mut extensions: Der<'_>) -> (bool, bool) {
    let (mut dns, mut ip) = (false, false);
    let Some(list) = extensions.take(SEQUENCE) else { return (false, false) };
    let mut list = Der(list);
    while let Some(extension) = list.take(SEQUENCE) {
        let mut extension = Der(extension);
        if extension.take(OID) != Some(&[0x55, 0x1d, 0x11]) {
            continue;
        }
        extension.take(BOOLEAN);
        let names = extension.take(OCTETS).and_then(|value| Der(value).take(SEQUENCE));
        let mut names = Der(names.unwrap_or_default());
        while let Some((tag, _)) = names.next() {
            dns |= tag == 0x82;
            ip |= tag == 0x87;
        }
    }
    (dns, ip)
}

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OID: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// The tag of a certificate's version, and of the hash function in RSASSA-PSS parameters.
const CONTEXT_0: u8 = 0xa0;
/// The tag of a certificate's extensions.
const CONTEXT_3: u8 = 0xa3;

/// DER bytes, read from the front.
#[derive(Debug, Clone, Copy)]
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Reads tag and content of the next value.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut length = usize::from(first);
        if first >= 0x80 {
            let count = usize::from(first & 0x7f);
            if !(1..=4).contains(&count) {
                return None;
            }
            let bytes = rest.get(..count)?;
            length = bytes.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
            rest = &rest[count..];
        }
        let content = rest.get(..length)?;
        self.0 = &rest[length..];
        Some((tag, content))
    }

    /// Reads the content of the next value if it has this tag. Otherwise reads nothing.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let before = self.0;
        match self.next() {
            Some((found, content)) if found == tag => Some(content),
            _ => {
                self.0 = before;
                None
            }
        }
    }

    /// Reads a time, in seconds since 1970.
    fn time(&mut self) -> Option<u64> {
        let (tag, text) = self.next()?;
        let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
        let year_digits = match tag {
            UTC_TIME => 2,
            GENERALIZED_TIME => 4,
            _ => return None,
        };
        if text.len() != year_digits + 10 || !text.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let field = |at: usize| text.get(at..at + 2)?.parse::<u64>().ok();
        let year = match (tag, text[..year_digits].parse::<u64>().ok()?) {
            (UTC_TIME, year @ 50..) => year + 1900,
            (UTC_TIME, year) => year + 2000,
            (_, year) => year,
        };
        let at = year_digits;
        let days = days_since_1970(year, field(at)?, field(at + 2)?)?;
        Some(days * 86_400 + field(at + 4)? * 3600 + field(at + 6)? * 60 + field(at + 8)?)
    }
}

fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // If years begin in March, the leap day is the last day.
    let (y, m) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1;
    days.checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    fn create_certificate(names: &[&str], common_name: &str) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.not_before = rcgen::date_time_ymd(2024, 2, 29);
        params.not_after = rcgen::date_time_ymd(2051, 1, 1);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn facts_of_a_certificate_are_read() {
        let der = create_certificate(&["db.example", "127.0.0.1"], "*.old.example");
        let facts = CertificateFacts::read(&der).unwrap();
        assert!(facts.has_dns_names && facts.has_ip_addresses);
        assert_eq!(facts.validity, Some((1_709_164_800, 2_556_144_000)));
        assert!(facts.common_name_matches("DB.old.example"));
        assert!(!facts.common_name_matches("a.db.old.example"));
        assert!(!facts.common_name_matches(".old.example"));
        assert!(!facts.common_name_matches("old.example"));
        let hash = digest::digest(&digest::SHA256, &der);
        assert_eq!(facts.channel_binding_hash(&der).as_deref(), Some(hash.as_ref()));
    }

    #[test]
    fn damaged_bytes_never_panic() {
        let der = create_certificate(&["db.example"], "x");
        for cut in 0..der.len() {
            assert!(CertificateFacts::read(&der[..cut]).is_none());
        }
        for at in 0..der.len() {
            for value in [0x00, 0x30, 0x7f, 0x80, 0x84, 0xff] {
                let mut damaged = der.clone();
                damaged[at] = value;
                if let Some(facts) = CertificateFacts::read(&damaged) {
                    facts.channel_binding_hash(&damaged);
                }
            }
        }
    }
}
