//! Authorities that issue certificates and revocation lists for one test run.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, DnValue, IsCa,
    Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SignatureAlgorithm, date_time_ymd,
};

/// A certificate and its key, both in PEM.
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// An authority that issues certificates.
pub(crate) struct Authority {
    pub(crate) certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = params(&[], name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Authority { certificate, issuer: Issuer::new(params, key) }
    }

    /// Issues a certificate with these alternative names and this common name.
    pub(crate) fn issue(&self, names: &[&str], common_name: &str) -> Issued {
        self.sign(&params(names, common_name))
    }

    /// Issues a certificate with a serial number. A revocation list names certificates by this
    /// number.
    #[allow(dead_code, reason = "one suite revokes")]
    pub(crate) fn issue_numbered(&self, number: u64, names: &[&str], common_name: &str) -> Issued {
        let mut params = params(names, common_name);
        params.serial_number = Some(number.into());
        self.sign(&params)
    }

    /// Issues a certificate that is valid from the first year to the second.
    #[allow(dead_code, reason = "one suite has certificates out of date")]
    pub(crate) fn issue_valid(&self, years: (i32, i32), names: &[&str], common: &str) -> Issued {
        let mut params = params(names, common);
        params.not_before = date_time_ymd(years.0, 1, 1);
        params.not_after = date_time_ymd(years.1, 1, 1);
        self.sign(&params)
    }

    /// Issues a list of revoked certificates, in PEM. `numbers` are the certificates' serial
    /// numbers. `years` are the year of this list and the year in which the next list is due.
    #[allow(dead_code, reason = "one suite revokes")]
    pub(crate) fn revoke(&self, years: (i32, i32), numbers: &[u64]) -> String {
        let revoked = |number: &u64| RevokedCertParams {
            serial_number: (*number).into(),
            revocation_time: date_time_ymd(years.0, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(years.0, 1, 1),
            next_update: date_time_ymd(years.1, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: numbers.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    fn sign(&self, params: &CertificateParams) -> Issued {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

/// Returns a certificate that is signed with its own key, by this algorithm.
pub(crate) fn self_signed(algorithm: &'static SignatureAlgorithm, name: &str) -> Issued {
    let mut params = params(&[name], name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate_for(algorithm).unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    Issued { certificate, key: key.serialize_pem() }
}

fn params(names: &[&str], common_name: &str) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, DnValue::Utf8String(common_name.to_owned()));
    params
}
