//! Lists of revoked certificates (CRLs), in libpq's places: `sslcrl`, `sslcrldir`, and the user's
//! `root.crl`.
//!
//! If a list cannot be read, no connection is made. If lists are used, each certificate below the
//! root needs an unexpired list of the authority that issued it. A certificate without such a list
//! is refused, like a revoked certificate.

use std::cmp::Reverse;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::{CertificateError, Error as TlsError, OtherError, RootCertStore};

use super::certificate::list_issued_at;
use super::environment::Environment;
use super::parameters::ConnectionParameters;
use super::tls::pem_error_text;
use super::tls_settings::TrustedRoots;
use super::verify::TlsProblem;
use crate::{Error, ErrorKind, Result};

/// The places of the lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RevocationLists {
    file: Option<PathBuf>,
    /// A folder with files named by the hash of their issuer, as `openssl rehash` creates them.
    dir: Option<PathBuf>,
}

impl RevocationLists {
    /// Returns the lists that the parameters name, or the user's own list. `None` if there are
    /// none.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if lists are named but the server's certificate is not verified, so
    /// that lists would have no effect.
    pub(super) fn from_parameters(
        settings: &ConnectionParameters,
        env: &Environment,
        roots: &TrustedRoots,
    ) -> Result<Option<RevocationLists>> {
        let named = |name| settings.get(name).map(PathBuf::from);
        let lists = RevocationLists { file: named("sslcrl"), dir: named("sslcrldir") };
        if lists == RevocationLists::default() {
            // As in libpq, the operating system's authorities have no default list.
            let home = env.home.as_ref().filter(|_| matches!(roots, TrustedRoots::File(_)));
            let own = home.map(|home| home.join(".postgresql").join("root.crl"));
            let file = own.filter(|own| exists(own));
            return Ok(file.map(|file| RevocationLists { file: Some(file), dir: None }));
        }
        if *roots == TrustedRoots::Unchecked {
            let name = if lists.file.is_some() { "sslcrl" } else { "sslcrldir" };
            let message = format!(
                "{name} cannot be used: without a root certificate, the server's certificate is \
                 not verified"
            );
            return Err(settings.usage_error(name, message).hint(
                "Name the file of the authority's certificate with sslrootcert=, or omit the list \
                 of revoked certificates.",
            ));
        }
        Ok(Some(lists))
    }

    /// Returns a verifier that checks chains against the lists and these roots.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a list cannot be read or parsed, or if none exists.
    pub(super) fn checker(
        &self,
        roots: &RootCertStore,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<WebPkiServerVerifier>> {
        let mut found = Vec::new();
        if let Some(file) = &self.file {
            found.extend(read_lists(file)?);
        }
        if let Some(dir) = &self.dir {
            for file in hashed_files(dir)? {
                found.extend(read_lists(&file)?);
            }
        }
        // rustls uses the first list of an authority, so the newest list must come first.
        found.sort_by_key(|(issued_at, _)| Reverse(*issued_at));
        let roots = Arc::new(roots.clone());
        WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
            .with_crls(found.into_iter().map(|(_, list)| list))
            .enforce_revocation_expiration()
            .build()
            .map_err(|error| {
                let shown = self.file.as_ref().or(self.dir.as_ref());
                let shown = shown.map_or(String::new(), |path| path.display().to_string());
                unusable_list_error(&shown, error.to_string())
            })
    }
}

/// Returns whether the path exists, even if it cannot be read.
fn exists(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    !found.is_err_and(|error| {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
    })
}

/// Reads the lists in a file, each with its time of issue in seconds since 1970.
fn read_lists(path: &Path) -> Result<Vec<(u64, CertificateRevocationListDer<'static>)>> {
    let shown = path.display().to_string();
    let lists: Vec<_> = CertificateRevocationListDer::pem_file_iter(path)
        .and_then(|lists| lists.collect::<Result<_, _>>())
        .map_err(|error| {
            let message = format!("could not read certificate revocation list \"{shown}\"");
            Error::new(ErrorKind::Usage, message)
                .because(pem_error_text(&error))
                .hint("Name a readable file, or omit sslcrl= and sslcrldir=.")
        })?;
    if lists.is_empty() {
        return Err(unusable_list_error(
            &shown,
            "it has no revocation list in PEM format".to_owned(),
        ));
    }
    lists
        .into_iter()
        .map(|list| match list_issued_at(&list) {
            Some(issued_at) => Ok((issued_at, list)),
            None => {
                Err(unusable_list_error(&shown, "it is not an X.509 revocation list".to_owned()))
            }
        })
        .collect()
}

/// Returns the error for a list that pgspate cannot use. `shown` is the list's path.
fn unusable_list_error(shown: &str, why: String) -> Error {
    Error::new(ErrorKind::Usage, format!("could not use certificate revocation list \"{shown}\""))
        .because(why)
        .hint(
            "The file must contain lists of version 2 in PEM format, as `openssl ca -gencrl` \
             creates them.",
        )
}

/// Returns the files in a folder that OpenSSL would find by the hash of an issuer.
fn hashed_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let shown = dir.display();
    let failed = |error: io::Error| {
        let message = format!("could not read folder \"{shown}\" of certificate revocation lists");
        Error::new(ErrorKind::Usage, message)
            .because(error)
            .hint("With sslcrldir=, name a readable folder; or name a file with sslcrl=.")
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let is_hashed =
            name.to_str().and_then(|name| name.split_once(".r")).is_some_and(|(hash, ordinal)| {
                hash.len() == 8
                    && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
                    && ordinal.parse::<u32>().is_ok()
            });
        if is_hashed {
            files.push(dir.join(name));
        }
    }
    if files.is_empty() {
        let message = format!("folder \"{shown}\" has no certificate revocation list");
        return Err(Error::new(ErrorKind::Usage, message).hint(format!(
            "The list files in the folder need names such as 1a2b3c4d.r0. `openssl rehash {shown}` \
             creates such names."
        )));
    }
    files.sort();
    Ok(files)
}

/// Checks a chain against the lists. The host name is not checked.
pub(super) fn check(
    checker: &WebPkiServerVerifier,
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<(), TlsError> {
    match checker.verify_server_cert(leaf, intermediates, name, &[], now) {
        // rustls checks the name last, so everything else is valid.
        Err(TlsError::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => Ok(()),
        checked => checked.map(drop),
    }
}

/// Returns the error for a certificate that is trusted by itself, so that no authority's list
/// covers it.
pub(super) fn not_listed() -> TlsError {
    let problem = TlsProblem {
        reason: "no revocation list tells whether the server certificate is revoked".to_owned(),
        hint: "The certificate itself is trusted, not an authority. Omit sslcrl= and sslcrldir=, \
               or let an authority issue the certificate.",
    };
    CertificateError::Other(OtherError(Arc::new(problem))).into()
}
