//! Verifying a server's certificate by libpq's rules.
//!
//! In every mode the server must prove that it holds its certificate's key: channel binding would
//! be worth nothing otherwise. The name falls back to the common name only where the certificate
//! lists no names of the host's kind.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor, verify_server_name,
};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

use super::certificate::Facts;
use super::revocation;

/// A server's certificate that is not what the connection asked for.
#[derive(Debug, Clone)]
pub(super) struct Distrust {
    pub(super) reason: String,
    pub(super) hint: &'static str,
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Distrust {}

/// Certificates that are trusted.
#[derive(Debug)]
pub(super) struct Trust {
    /// As authorities.
    pub(super) store: RootCertStore,
    /// As they stand in the file: a server's own certificate may be among them.
    pub(super) exact: Vec<CertificateDer<'static>>,
    /// Checks chains by lists of revoked certificates, where there are any.
    pub(super) revocation: Option<Arc<WebPkiServerVerifier>>,
}

/// Checks what the mode asks for.
#[derive(Debug)]
pub(super) struct Verifier {
    /// None: the certificate is not checked.
    pub(super) trust: Option<Trust>,
    /// Whether the name is checked too.
    pub(super) checks_name: bool,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn check_chain(
        &self,
        trust: &Trust,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        if let Some(checker) = &trust.revocation {
            return match trust.exact.contains(&leaf.clone().into_owned()) {
                true => Err(revocation::not_listed()),
                false => revocation::check(checker, leaf, intermediates, name, now),
            };
        }
        if trust.exact.iter().any(|known| known == leaf) {
            let validity = Facts::read(leaf).and_then(|facts| facts.validity);
            return match validity {
                Some((from, _)) if now.as_secs() < from => {
                    Err(CertificateError::NotValidYet.into())
                }
                Some((_, to)) if now.as_secs() > to => Err(CertificateError::Expired.into()),
                Some(_) => Ok(()),
                None => Err(CertificateError::BadEncoding.into()),
            };
        }
        let parsed = ParsedCertificate::try_from(leaf)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &trust.store,
            intermediates,
            now,
            algorithms,
        )
    }
}

fn check_name(leaf: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
    let by_list = ParsedCertificate::try_from(leaf)
        .and_then(|parsed| verify_server_name(&parsed, name))
        .is_ok();
    let host = name.to_str();
    let facts = Facts::read(leaf);
    let fits = by_list
        || facts.as_ref().is_some_and(|facts| {
            let lists_its_kind = match name {
                ServerName::IpAddress(_) => facts.has_ip_addresses,
                _ => facts.has_dns_names,
            };
            !lists_its_kind && facts.common_name_fits(&host)
        });
    if fits {
        return Ok(());
    }
    let owner = match facts.and_then(|facts| facts.common_name) {
        Some(owner) => format!(" for \"{owner}\""),
        None => String::new(),
    };
    let distrust = Distrust {
        reason: format!("server certificate{owner} does not match host name \"{host}\""),
        hint: "Connect by a name that the certificate lists, or use sslmode=verify-ca, which does \
               not check the name.",
    };
    Err(CertificateError::Other(OtherError(Arc::new(distrust))).into())
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(trust) = &self.trust {
            self.check_chain(trust, leaf, intermediates, name, now)?;
        }
        if self.checks_name {
            check_name(leaf, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, leaf, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if ParsedCertificate::try_from(leaf).is_ok() {
            return verify_tls13_signature(message, leaf, signed, &self.algorithms);
        }
        // Version 1 certificates, which old recipes for self-signed ones make, are not parsed.
        let facts = Facts::read(leaf).ok_or(CertificateError::BadEncoding)?;
        let key = SubjectPublicKeyInfoDer::from(facts.public_key);
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// A TLS failure in PostgreSQL's words, with what to do about it.
pub(super) fn explain(error: &Error) -> Distrust {
    let (reason, hint) = match error {
        Error::InvalidCertificate(certificate) => return explain_certificate(certificate),
        Error::InvalidCertRevocationList(why) => (
            format!("server certificate cannot be verified: its revocation list is wrong: {why:?}"),
            "The authority that issued the certificate must have signed the list, too. Fetch its \
             newest list into the file that sslcrl= names.",
        ),
        Error::AlertReceived(alert) => (
            format!("the server ended the TLS handshake with alert {alert:?}"),
            "The server's log says why; it may want a client certificate (sslcert= and sslkey=) or \
             another TLS version.",
        ),
        Error::PeerIncompatible(what) => (
            format!("the server's TLS cannot be spoken here: {what:?}"),
            "TLS 1.2 with ECDHE, or TLS 1.3, is needed.",
        ),
        other => (format!("TLS handshake failed: {other}"), ""),
    };
    Distrust { reason, hint }
}

fn explain_certificate(error: &CertificateError) -> Distrust {
    let (reason, hint) = match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => (
            "server certificate was not issued by a trusted authority".to_owned(),
            "Name the file of the authority that issued it with sslrootcert=, or use \
             sslrootcert=system for an authority that the operating system knows.",
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
            "server certificate has expired".to_owned(),
            "The server needs a new certificate, or this machine's clock is wrong.",
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
            "server certificate is not valid yet".to_owned(),
            "This machine's clock or the server's certificate is wrong.",
        ),
        CertificateError::Revoked => (
            "server certificate has been revoked".to_owned(),
            "The server needs a new certificate, or somebody else has taken its place.",
        ),
        CertificateError::UnknownRevocationStatus => (
            "no revocation list is known of the authority that issued the server certificate"
                .to_owned(),
            "Every authority between the server's certificate and the root needs a list in the \
             file that sslcrl= names, or in the folder that sslcrldir= names.",
        ),
        CertificateError::ExpiredRevocationList
        | CertificateError::ExpiredRevocationListContext { .. } => (
            "server certificate cannot be verified: the revocation list of the authority that \
             issued it has expired"
                .to_owned(),
            "Fetch the authority's newest list into the file that sslcrl= names.",
        ),
        CertificateError::BadEncoding => (
            "server certificate could not be read".to_owned(),
            "The server's file ssl_cert_file must hold an X.509 certificate of version 3.",
        ),
        CertificateError::Other(OtherError(inner)) => match inner.downcast_ref::<Distrust>() {
            Some(Distrust { reason, hint }) => (reason.clone(), *hint),
            None if inner.to_string().contains("CaUsedAsEndEntity") => (
                "server certificate is that of an authority".to_owned(),
                "Put the server's own certificate into the file that sslrootcert= names.",
            ),
            None if inner.to_string().contains("UnsupportedCertVersion") => (
                "server certificate is of X.509 version 1".to_owned(),
                "Issue it again as version 3, or put the certificate itself into the file that \
                 sslrootcert= names; both work with TLS 1.3 at least.",
            ),
            None => (format!("server certificate is not valid: {inner}"), ""),
        },
        other => (format!("server certificate is not valid: {other}"), ""),
    };
    Distrust { reason, hint }
}
