//! TLS for tokio-postgres with rustls: certificate files, the handshake, channel binding.
//!
//! Files are read once per [`TlsSetup`]. Errors name files, never their contents.

use std::error::Error as StdError;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect};

use super::certificate::CertificateFacts;
use super::failure::os_error_text;
use super::socket::Socket;
use super::tls_settings::{TlsMode, TlsSettings, TrustedRoots};
use super::traffic::Tap;
use super::verify::{CertificateVerifier, TlsProblem, TrustedCertificates, explain};
use crate::{Error, ErrorKind, Result};

/// The TLS configuration of all connections of a [`Dsn`](super::Dsn).
#[derive(Clone)]
pub(super) struct TlsSetup {
    config: Arc<ClientConfig>,
    checks_name: bool,
}

impl TlsSetup {
    /// Builds the configuration from the settings and the certificate files.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a file cannot be read or used.
    pub(super) fn new(settings: &TlsSettings) -> Result<TlsSetup> {
        let provider = Arc::new(default_provider());
        let mut trust = match &settings.roots {
            TrustedRoots::Unchecked => None,
            TrustedRoots::System => Some(system_roots()?),
            TrustedRoots::File(path) => Some(file_roots(path)?),
        };
        if let (Some(trust), Some(lists)) = (&mut trust, &settings.revocation_lists) {
            trust.revocation = Some(lists.checker(&trust.store, &provider)?);
        }
        let checks_name = settings.mode == TlsMode::VerifyFull;
        let algorithms = provider.signature_verification_algorithms;
        let verifier = CertificateVerifier { trust, checks_name, algorithms };
        let versions: &[_] = match (settings.tls12, settings.tls13) {
            (true, true) => &[&version::TLS13, &version::TLS12],
            (true, false) => &[&version::TLS12],
            (false, _) => &[&version::TLS13],
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|error| Error::new(ErrorKind::Bug, "could not set up TLS").because(error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &settings.client {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = read_certificates(cert)?;
                builder.with_client_auth_cert(chain, read_key(key)?).map_err(|error| {
                    let (cert, key) = (cert.display(), key.display());
                    let message =
                        format!("could not use client certificate \"{cert}\" with key \"{key}\"");
                    Error::new(ErrorKind::Usage, message).because(error)
                })?
            }
        };
        config.enable_sni = settings.sni;
        if settings.direct {
            config.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(TlsSetup { config: Arc::new(config), checks_name })
    }

    /// Returns the TLS connector for one server. `host` is the server's host name, or its address
    /// if the user gave no name.
    pub(super) fn connector(&self, host: &str) -> Result<ServerTls, TlsProblem> {
        let name = match ServerName::try_from(host) {
            Ok(name) => name.to_owned(),
            Err(_) if self.checks_name => {
                return Err(TlsProblem {
                    reason: format!(
                        "could not verify the server certificate: \"{host}\" is not a valid DNS \
                         name or IP address"
                    ),
                    hint: "Connect by a name that the server's certificate lists.",
                });
            }
            // rustls requires a name. This address is a placeholder: the name is not checked, and
            // rustls never sends addresses to the server.
            Err(_) => ServerName::from(std::net::IpAddr::from([0, 0, 0, 0])),
        };
        Ok(ServerTls { config: self.config.clone(), name })
    }
}

/// Loads the operating system's root certificates.
fn system_roots() -> Result<TrustedCertificates> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    // The system's list may contain unusable certificates, which are ignored.
    let (added, _) = store.add_parsable_certificates(found.certs);
    if added == 0 {
        let message = "could not find the operating system's root certificates";
        return Err(Error::new(ErrorKind::Usage, message).hint(
            "Install the operating system's package of root certificates, or name a file with \
             sslrootcert=.",
        ));
    }
    Ok(TrustedCertificates { store, exact: Vec::new(), revocation: None })
}

/// Loads the root certificates in a file.
fn file_roots(path: &Path) -> Result<TrustedCertificates> {
    let exact = read_certificates(path)?;
    let mut store = RootCertStore::empty();
    for certificate in &exact {
        store.add(certificate.clone()).map_err(|error| {
            let message = format!("could not use root certificate file \"{}\"", path.display());
            Error::new(ErrorKind::Usage, message).because(error)
        })?;
    }
    Ok(TrustedCertificates { store, exact, revocation: None })
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let shown = path.display();
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(|certificates| certificates.collect::<Result<_, _>>())
        .map_err(|error| {
            let message = format!("could not read certificate file \"{shown}\"");
            Error::new(ErrorKind::Usage, message).because(pem_error_text(&error))
        })?;
    if certificates.is_empty() {
        let message = format!("certificate file \"{shown}\" has no certificate in PEM format");
        return Err(Error::new(ErrorKind::Usage, message));
    }
    Ok(certificates)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let shown = path.display();
    let facts = std::fs::metadata(path).map_err(|error| {
        let message =
            format!("could not read private key file \"{shown}\" of the client certificate");
        Error::new(ErrorKind::Usage, message)
            .because(error)
            .hint("Name the file of the client certificate's private key with sslkey=.")
    })?;
    let forbidden = if facts.uid() == 0 { 0o037 } else { 0o077 };
    if !facts.is_file() {
        let message = format!("private key file \"{shown}\" is not a plain file");
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("Name the file of the client certificate's private key with sslkey=."));
    }
    if facts.mode() & forbidden != 0 {
        let message = format!("private key file \"{shown}\" has group or world access");
        return Err(Error::new(ErrorKind::Usage, message).hint(
            "The file must have permissions u=rw (0600) or less. If root owns the file, u=rw,g=r \
             (0640) is allowed.",
        ));
    }
    PrivateKeyDer::from_pem_file(path).map_err(|error| {
        let message = format!("could not read private key file \"{shown}\"");
        Error::new(ErrorKind::Usage, message)
            .because(pem_error_text(&error))
            .hint("The file must contain an unencrypted private key in PEM format.")
    })
}

/// Returns why a PEM file cannot be used. The reason quotes nothing from the file.
pub(super) fn pem_error_text(error: &pem::Error) -> Error {
    Error::new(
        ErrorKind::Usage,
        match error {
            pem::Error::Io(error) => os_error_text(error),
            pem::Error::NoItemsFound => "the file has no PEM section of this type".to_owned(),
            _ => "the file is not valid PEM".to_owned(),
        },
    )
}

/// The TLS connector for one server.
#[derive(Clone)]
pub(super) struct ServerTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for ServerTls {
    type Stream = TlsStream;
    type Error = Box<dyn StdError + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<TlsStream, Self::Error>> + Send>>;

    fn connect(self, mut socket: Socket) -> Self::Future {
        Box::pin(async move {
            let connector = tokio_rustls::TlsConnector::from(self.config);
            let tap = socket.take_tap();
            match connector.connect(self.name, socket).await {
                Ok(stream) => Ok(TlsStream { stream, tap }),
                Err(error) => Err(match tls_cause(&error) {
                    Some(problem) => problem.into(),
                    None => BrokenHandshake(error).into(),
                }),
            }
        })
    }
}

/// An I/O error during the TLS handshake.
#[derive(Debug)]
pub(super) struct BrokenHandshake(pub(super) io::Error);

impl std::fmt::Display for BrokenHandshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for BrokenHandshake {}

/// Returns the TLS problem behind an I/O error, if there is one.
pub(super) fn tls_cause(error: &io::Error) -> Option<TlsProblem> {
    error.get_ref()?.downcast_ref::<rustls::Error>().map(explain)
}

/// An encrypted connection.
pub(super) struct TlsStream {
    stream: tokio_rustls::client::TlsStream<Socket>,
    /// Follows the decrypted messages.
    tap: Option<Tap>,
}

impl tokio_postgres::tls::TlsStream for TlsStream {
    fn channel_binding(&self) -> ChannelBinding {
        match self.channel_binding_hash() {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

impl TlsStream {
    /// Returns whether the stall guard has abandoned the connection. Then writes are discarded.
    fn is_abandoned(&self) -> bool {
        self.tap.as_ref().is_some_and(Tap::is_abandoned)
    }

    /// Returns the hash of the server's certificate, for channel binding.
    pub(super) fn channel_binding_hash(&self) -> Option<Vec<u8>> {
        let certificates = self.stream.get_ref().1.peer_certificates();
        let leaf = certificates.and_then(|certificates| certificates.first())?;
        CertificateFacts::read(leaf)?.channel_binding_hash(leaf)
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let TlsStream { stream, tap } = &mut *self;
        match tap {
            Some(tap) => tap.poll_read(cx, buf, |cx, buf| Pin::new(stream).poll_read(cx, buf)),
            None => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match self.is_abandoned() {
            true => Poll::Ready(Ok(buf.len())),
            false => Pin::new(&mut self.stream).poll_write(cx, buf),
        };
        if let Some(tap) = &mut self.tap {
            tap.note_write(&written, [buf]);
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match self.is_abandoned() {
            true => Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum())),
            false => Pin::new(&mut self.stream).poll_write_vectored(cx, bufs),
        };
        if let Some(tap) = &mut self.tap {
            tap.note_write(&written, bufs.iter().map(|buf| &**buf));
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Flushes, and notes whether the network blocks. The TLS layer buffers more than the network
    /// accepts, so only flushing shows that bytes are unsent.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_abandoned() {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if let Some(tap) = &mut self.tap {
            tap.note_blocked(flushed.is_pending());
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_abandoned() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
