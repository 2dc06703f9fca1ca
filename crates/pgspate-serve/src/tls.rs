//! TLS of the clients' connections: the certificate, and the authority of client certificates.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use pgspate::{Error, ErrorKind, Result};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::options::TlsFiles;

/// The configuration of TLS, which can be read again from its files.
pub(crate) struct TlsFront {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
}

impl TlsFront {
    /// Reads the files.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a file cannot be used.
    pub(crate) fn new(files: &TlsFiles) -> Result<TlsFront> {
        let config = RwLock::new(Arc::new(read_config(files)?));
        Ok(TlsFront { files: files.clone(), config })
    }

    /// Reads the files again. Connections that are open keep the old certificate.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a file cannot be used. Then the old certificate stays.
    pub(crate) fn reload(&self) -> Result<()> {
        let config = Arc::new(read_config(&self.files)?);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn read_config(files: &TlsFiles) -> Result<ServerConfig> {
    let provider = Arc::new(default_provider());
    let bug =
        |error: rustls::Error| Error::new(ErrorKind::Bug, "could not set up TLS").because(error);
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(bug)?;
    let builder = match &files.client_authority {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let unusable = || {
                let message =
                    format!("could not use \"{}\" for client certificates", path.display());
                Error::new(ErrorKind::Usage, message)
            };
            let mut roots = RootCertStore::empty();
            for certificate in read_certificates(path, "--client-ca")? {
                roots.add(certificate).map_err(|error| unusable().because(error))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|it| unusable().because(it))?)
        }
    };
    let chain = read_certificates(&files.certificate, "--tls-cert")?;
    let key = read_key(&files.key)?;
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        let (certificate, key) = (files.certificate.display(), files.key.display());
        let message = format!("could not use certificate \"{certificate}\" with key \"{key}\"");
        Error::new(ErrorKind::Usage, message).because(error)
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn read_certificates(path: &Path, flag: &str) -> Result<Vec<CertificateDer<'static>>> {
    let failed = |error: &pem::Error| {
        let message = format!("could not read certificate file \"{}\"", path.display());
        Error::new(ErrorKind::Usage, message)
            .because(pem_reason(error))
            .hint(format!("Name a file with certificates in PEM format with `{flag}`."))
    };
    let certificates = CertificateDer::pem_file_iter(path).map_err(|it| failed(&it))?;
    let certificates: Vec<_> =
        certificates.collect::<std::result::Result<_, _>>().map_err(|it| failed(&it))?;
    match certificates.is_empty() {
        true => Err(failed(&pem::Error::NoItemsFound)),
        false => Ok(certificates),
    }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let shown = path.display();
    let failed = |error: &pem::Error| {
        let message = format!("could not read private key file \"{shown}\"");
        Error::new(ErrorKind::Usage, message)
            .because(pem_reason(error))
            .hint("The file must contain an unencrypted private key in PEM format.")
    };
    let facts = std::fs::metadata(path).map_err(|error| failed(&pem::Error::Io(error)))?;
    let forbidden = if facts.uid() == 0 { 0o037 } else { 0o077 };
    if facts.mode() & forbidden != 0 {
        let message = format!("private key file \"{shown}\" has group or world access");
        return Err(Error::new(ErrorKind::Usage, message).hint(
            "The file must have permissions u=rw (0600) or less. If root owns the file, u=rw,g=r \
             (0640) is allowed.",
        ));
    }
    PrivateKeyDer::from_pem_file(path).map_err(|error| failed(&error))
}

/// Returns why a PEM file cannot be used. The reason quotes nothing from the file.
fn pem_reason(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => "the file has no PEM section of this type".to_owned(),
        _ => "the file is not valid PEM".to_owned(),
    }
}
