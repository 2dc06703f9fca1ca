//! Lists of revoked certificates (CRLs), where libpq has them: `sslcrl`, `sslcrldir`, and the
//! user's `root.crl`.
//!
//! If a list that is given cannot be read, no connection is made. Where lists count, each
//! certificate below the root must be covered by a list of its own authority that has not expired.
//! A certificate without such a list is refused, like one that is revoked.

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

use super::certificate::list_made_at;
use super::environment::Environment;
use super::settings::Settings;
use super::tls::pem_words;
use super::tls_settings::Roots;
use super::verify::Distrust;
use crate::{Error, ErrorKind, Result};

/// Where the lists are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lists {
    file: Option<PathBuf>,
    /// With files named by the hash of their issuer, as `openssl rehash` makes them.
    dir: Option<PathBuf>,
}

impl Lists {
    /// The lists that the parameters name, or the user's own. `None` where there are none.
    ///
    /// # Errors
    /// Of [`ErrorKind::Usage`] when lists are named and the server's certificate is not verified:
    /// then nothing could come of them.
    pub(super) fn of(
        settings: &Settings,
        env: &Environment,
        roots: &Roots,
    ) -> Result<Option<Lists>> {
        let named = |name| settings.get(name).map(PathBuf::from);
        let lists = Lists { file: named("sslcrl"), dir: named("sslcrldir") };
        if lists == Lists::default() {
            // As in libpq, the system's authorities have no list by default.
            let home = env.home.as_ref().filter(|_| matches!(roots, Roots::File(_)));
            let own = home.map(|home| home.join(".postgresql").join("root.crl"));
            let file = own.filter(|own| is_there(own));
            return Ok(file.map(|file| Lists { file: Some(file), dir: None }));
        }
        if *roots == Roots::Unchecked {
            let name = if lists.file.is_some() { "sslcrl" } else { "sslcrldir" };
            let message = format!(
                "{name} cannot be used: without a root certificate the server's is not verified"
            );
            return Err(settings.wrong(name, message).hint(
                "Name the file of the authority's certificate with sslrootcert=, or leave the list \
                 of revoked certificates out.",
            ));
        }
        Ok(Some(lists))
    }

    /// What checks a server's chain by the lists and these roots.
    ///
    /// # Errors
    /// Of [`ErrorKind::Usage`] when a list cannot be read or understood, or there is none.
    pub(super) fn checker(
        &self,
        roots: &RootCertStore,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<WebPkiServerVerifier>> {
        let mut found = Vec::new();
        if let Some(file) = &self.file {
            found.extend(read(file)?);
        }
        if let Some(dir) = &self.dir {
            for file in hashed_files(dir)? {
                found.extend(read(&file)?);
            }
        }
        // The first one of an authority counts, which must be the newest.
        found.sort_by_key(|(made, _)| Reverse(*made));
        let roots = Arc::new(roots.clone());
        WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
            .with_crls(found.into_iter().map(|(_, list)| list))
            .enforce_revocation_expiration()
            .build()
            .map_err(|error| {
                let shown = self.file.as_ref().or(self.dir.as_ref());
                let shown = shown.map_or(String::new(), |path| path.display().to_string());
                unusable(&shown, error.to_string())
            })
    }
}

/// Whether something is there, also what cannot be read.
fn is_there(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    !found.is_err_and(|error| {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
    })
}

/// The lists in a file, each with the second in which it was made.
fn read(path: &Path) -> Result<Vec<(u64, CertificateRevocationListDer<'static>)>> {
    let shown = path.display().to_string();
    let lists: Vec<_> = CertificateRevocationListDer::pem_file_iter(path)
        .and_then(|lists| lists.collect::<Result<_, _>>())
        .map_err(|error| {
            let message = format!("could not read certificate revocation list \"{shown}\"");
            Error::new(ErrorKind::Usage, message).because(pem_words(&error)).hint(
                "Name a file that is there and can be read, or leave sslcrl= and sslcrldir= out.",
            )
        })?;
    if lists.is_empty() {
        return Err(unusable(&shown, "nothing of the kind is in it in PEM format".to_owned()));
    }
    lists
        .into_iter()
        .map(|list| match list_made_at(&list) {
            Some(made) => Ok((made, list)),
            None => Err(unusable(&shown, "it is not a list as X.509 has them".to_owned())),
        })
        .collect()
}

fn unusable(shown: &str, why: String) -> Error {
    Error::new(ErrorKind::Usage, format!("could not use certificate revocation list \"{shown}\""))
        .because(why)
        .hint("It must hold lists of version 2 in PEM format, as `openssl ca -gencrl` makes them.")
}

/// The files of a folder that OpenSSL would find by the hash of an issuer.
fn hashed_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let shown = dir.display();
    let failed = |error: io::Error| {
        let message = format!("could not read folder \"{shown}\" of certificate revocation lists");
        Error::new(ErrorKind::Usage, message)
            .because(error)
            .hint("Name a folder that can be read with sslcrldir=, or a file with sslcrl=.")
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
        let message = format!("folder \"{shown}\" holds no certificate revocation list");
        return Err(Error::new(ErrorKind::Usage, message).hint(format!(
            "Files in it are found by names such as 1a2b3c4d.r0: `openssl rehash {shown}` makes \
             them."
        )));
    }
    files.sort();
    Ok(files)
}

/// Checks a chain by lists. The name is not checked.
pub(super) fn check(
    checker: &WebPkiServerVerifier,
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<(), TlsError> {
    match checker.verify_server_cert(leaf, intermediates, name, &[], now) {
        // The name is looked at last, when everything else was found right.
        Err(TlsError::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => Ok(()),
        checked => checked.map(drop),
    }
}

/// For a certificate that is trusted as it stands, of which no list of an authority says anything.
pub(super) fn not_listed() -> TlsError {
    let distrust = Distrust {
        reason: "no revocation list tells whether the server certificate is revoked".to_owned(),
        hint: "It is trusted by itself and not by an authority. Leave sslcrl= and sslcrldir= out, \
               or let an authority issue it.",
    };
    CertificateError::Other(OtherError(Arc::new(distrust))).into()
}
