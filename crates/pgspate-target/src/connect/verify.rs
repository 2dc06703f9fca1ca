//! Verifies a server's certificate by libpq's rules.
//!
//! In every mode the server must prove that it has its certificate's private key, since channel
//! binding depends on the certificate. The host's name or IP address is compared with the common
//! name only if the certificate lists no alternative names of the same kind.

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

use super::certificate::CertificateFacts;
use super::revocation;

/// A TLS problem: usually a certificate that does not meet the connection's requirements.
#[derive(Debug, Clone)]
pub(super) struct TlsProblem {
    pub(super) reason: String,
    pub(super) hint: &'static str,
}

impl fmt::Display for TlsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for TlsProblem {}

/// Certificates that are trusted.
#[derive(Debug)]
pub(super) struct TrustedCertificates {
    /// The trusted certificates as authorities that may issue others.
    pub(super) store: RootCertStore,
    /// All certificates in the user's file. A server's own certificate may be among them.
    pub(super) exact: Vec<CertificateDer<'static>>,
    /// Checks chains against lists of revoked certificates, if lists exist.
    pub(super) revocation: Option<Arc<WebPkiServerVerifier>>,
}

/// Verifies server certificates as strictly as `sslmode` requires.
#[derive(Debug)]
pub(super) struct CertificateVerifier {
    /// `None`: the certificate is not checked.
    pub(super) trust: Option<TrustedCertificates>,
    /// Whether the host name is checked too.
    pub(super) checks_name: bool,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl CertificateVerifier {
    /// Checks that a trusted authority issued the certificate `leaf`, or that `leaf` itself is
    /// trusted.
    fn check_chain(
        &self,
        trust: &TrustedCertificates,
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
        if trust.exact.iter().any(|trusted| trusted == leaf) {
            let validity = CertificateFacts::read(leaf).and_then(|facts| facts.validity);
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

/// Checks that the certificate `leaf` is for this host.
fn check_name(leaf: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
    let matches_listed_name = ParsedCertificate::try_from(leaf)
        .and_then(|parsed| verify_server_name(&parsed, name))
        .is_ok();
    let host = name.to_str();
    let facts = CertificateFacts::read(leaf);
    let is_for_host = matches_listed_name
        || facts.as_ref().is_some_and(|facts| {
            let lists_names_of_this_kind = match name {
                ServerName::IpAddress(_) => facts.has_ip_addresses,
                _ => facts.has_dns_names,
            };
            !lists_names_of_this_kind && facts.common_name_matches(&host)
        });
    if is_for_host {
        return Ok(());
    }
    let owner = match facts.and_then(|facts| facts.common_name) {
        Some(owner) => format!(" for \"{owner}\""),
        None => String::new(),
    };
    let problem = TlsProblem {
        reason: format!("server certificate{owner} does not match host name \"{host}\""),
        hint: "Connect by a name that the certificate lists, or use sslmode=verify-ca, which does \
               not check the name.",
    };
    Err(CertificateError::Other(OtherError(Arc::new(problem))).into())
}

impl ServerCertVerifier for CertificateVerifier {
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
        // rustls cannot parse version 1 certificates, which old instructions for self-signed
        // certificates create.
        let facts = CertificateFacts::read(leaf).ok_or(CertificateError::BadEncoding)?;
        let key = SubjectPublicKeyInfoDer::from(facts.public_key);
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Describes a TLS failure in PostgreSQL's words, with a hint.
pub(super) fn explain(error: &Error) -> TlsProblem {
    let (reason, hint) = match error {
        Error::InvalidCertificate(certificate) => return explain_certificate(certificate),
        Error::InvalidCertRevocationList(why) => (
            format!(
                "server certificate cannot be verified: its revocation list is invalid: {why:?}"
            ),
            "The list must be signed by the authority that issued the certificate. Fetch the \
             authority's newest list into the file that sslcrl= names.",
        ),
        Error::AlertReceived(alert) => (
            format!("the server ended the TLS handshake with alert {alert:?}"),
            "See the server's log for the reason. The server may require a client certificate \
             (sslcert= and sslkey=) or another TLS version.",
        ),
        Error::PeerIncompatible(what) => (
            format!("no common TLS version or cipher with the server: {what:?}"),
            "The server must support TLS 1.2 with ECDHE, or TLS 1.3.",
        ),
        other => (format!("TLS handshake failed: {other}"), ""),
    };
    TlsProblem { reason, hint }
}

fn explain_certificate(error: &CertificateError) -> TlsProblem {
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
            "The server needs a new certificate, or another server impersonates it.",
        ),
        CertificateError::UnknownRevocationStatus => (
            "no revocation list was found for the authority that issued the server certificate"
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
        CertificateError::Other(OtherError(inner)) => match inner.downcast_ref::<TlsProblem>() {
            Some(TlsProblem { reason, hint }) => (reason.clone(), *hint),
            None if inner.to_string().contains("CaUsedAsEndEntity") => (
                "server certificate is the certificate of an authority".to_owned(),
                "Put the server's own certificate into the file that sslrootcert= names.",
            ),
            None if inner.to_string().contains("UnsupportedCertVersion") => (
                "server certificate is of X.509 version 1".to_owned(),
                "Issue it again as version 3, or put the certificate itself into the file that \
                 sslrootcert= names; both work with TLS 1.3.",
            ),
            None => (format!("server certificate is not valid: {inner}"), ""),
        },
        other => (format!("server certificate is not valid: {other}"), ""),
    };
    TlsProblem { reason, hint }
}
