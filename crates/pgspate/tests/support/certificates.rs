//! Certificates made for one test run: authorities, and what they issue.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, DnValue, IsCa, Issuer, KeyPair, SignatureAlgorithm,
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

    /// A certificate for these alternative names and this common name.
    pub(crate) fn issue(&self, names: &[&str], common_name: &str) -> Issued {
        let key = KeyPair::generate().unwrap();
        let certificate = params(names, common_name).signed_by(&key, &self.issuer).unwrap();
        Issued { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

/// A certificate that vouches for itself, as authorities' do, with a signature of this kind.
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
