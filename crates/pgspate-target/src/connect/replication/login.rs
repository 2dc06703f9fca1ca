//! Opens the replication session: encryption as in the existing connection, and authentication.

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, ScramSha256};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_postgres::config::ChannelBinding;
use tokio_postgres::tls::TlsConnect;

use super::super::dsn::Dsn;
use super::super::failure::os_error_text;
use super::super::host::Host;
use super::super::socket::SocketRoute;
use super::super::tls::ServerTls;
use super::super::tls_settings::TlsMode;
use super::super::traffic::ConnectionTraffic;
use super::wire::{MessageSocket, connect_error, server_refusal, zero_byte_error};
use crate::{Error, ErrorKind, Result};

/// Returns a socket that is ready for the startup message, and the hash for channel binding.
pub(super) async fn open_socket(
    dsn: &Dsn,
    (route, traffic): (&SocketRoute, &ConnectionTraffic),
    tls: Option<&ServerTls>,
) -> Result<(MessageSocket, Option<Vec<u8>>)> {
    let socket = route.open().await.map_err(|error| connect_error(os_error_text(&error)))?;
    let mut socket = socket.tapped(traffic);
    let Some(tls) = tls else { return Ok((MessageSocket::new(Box::new(socket)), None)) };
    if !dsn.tls.direct {
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        let mut reply = [0];
        let tls_request = async {
            socket.write_all(&request).await?;
            // Read exactly one byte. Any byte after it would not be encrypted.
            socket.read_exact(&mut reply).await
        };
        tls_request.await.map_err(|error| connect_error(os_error_text(&error)))?;
        match (reply, dsn.tls.mode) {
            ([b'S'], _) => {}
            (_, TlsMode::Allow | TlsMode::Prefer)
                if dsn.channel_binding != ChannelBinding::Require =>
            {
                return Ok((MessageSocket::new(Box::new(socket)), None));
            }
            _ => return Err(connect_error("server does not support TLS, but TLS was required")),
        }
    }
    let stream =
        tls.clone().connect(socket).await.map_err(|error| connect_error(error.to_string()))?;
    let channel_binding_hash = stream.channel_binding_hash();
    Ok((MessageSocket::new(Box::new(stream)), channel_binding_hash))
}

/// Sends the startup message for replication, authenticates, and waits until the server is ready.
pub(super) async fn log_in(
    socket: &mut MessageSocket,
    dsn: &Dsn,
    host: &Host,
    channel_binding_hash: Option<Vec<u8>>,
    application_name: &str,
) -> Result<()> {
    let mut parameters = vec![
        ("client_encoding", "UTF8"),
        ("user", dsn.user()),
        ("database", dsn.dbname()),
        ("replication", "database"),
        ("application_name", dsn.application_name(application_name)),
    ];
    if let Some(options) = &dsn.options {
        parameters.push(("options", options));
    }
    frontend::startup_message(parameters, &mut socket.output).map_err(zero_byte_error)?;
    socket.flush().await?;
    let password = host.password.as_ref().map(|password| password.expose().as_bytes());
    let require_password = || {
        password.ok_or_else(|| connect_error("the server asks for a password, and none was found"))
    };
    let must_bind = dsn.channel_binding == ChannelBinding::Require;
    let mut is_bound = false;
    loop {
        let message = socket.receive().await?;
        match (message.tag, message.body.split_first_chunk::<4>()) {
            (b'E', _) => return Err(server_refusal(&message.body)),
            (b'Z', _) => return Ok(()),
            (b'R', Some((kind, rest))) => match u32::from_be_bytes(*kind) {
                0 if must_bind && !is_bound => return Err(channel_binding_error()),
                0 => {}
                3 | 5 if must_bind => return Err(channel_binding_error()),
                3 => send_password(socket, require_password()?).await?,
                5 => {
                    let salt = rest.try_into().map_err(|_| {
                        connect_error("the server sent a salt of an unexpected length")
                    })?;
                    let hash = md5_hash(dsn.user().as_bytes(), require_password()?, salt);
                    send_password(socket, hash.as_bytes()).await?;
                }
                10 => {
                    let binding;
                    (binding, is_bound) =
                        choose_channel_binding(dsn, rest, channel_binding_hash.clone())?;
                    authenticate_by_scram(socket, require_password()?, (binding, is_bound)).await?;
                }
                _ => {
                    return Err(connect_error(
                        "the server asks for an unsupported authentication method",
                    ));
                }
            },
            // The key for cancel requests is not needed.
            (b'K' | b'v', _) => {}
            _ => return Err(connect_error("the server does not speak PostgreSQL's protocol")),
        }
    }
}

/// Sends a password or its MD5 hash.
async fn send_password(socket: &mut MessageSocket, password: &[u8]) -> Result<()> {
    frontend::password_message(password, &mut socket.output).map_err(zero_byte_error)?;
    socket.flush().await
}

/// Chooses the channel binding among the mechanisms that the server offers. Also returns whether
/// the login is then bound to the TLS connection.
fn choose_channel_binding(
    dsn: &Dsn,
    mechanisms: &[u8],
    channel_binding_hash: Option<Vec<u8>>,
) -> Result<(sasl::ChannelBinding, bool)> {
    let has =
        |name: &str| mechanisms.split(|byte| *byte == 0).any(|offered| offered == name.as_bytes());
    let channel_binding_hash =
        channel_binding_hash.filter(|_| dsn.channel_binding != ChannelBinding::Disable);
    match channel_binding_hash {
        Some(hash) if has(sasl::SCRAM_SHA_256_PLUS) => {
            Ok((sasl::ChannelBinding::tls_server_end_point(hash), true))
        }
        _ if dsn.channel_binding == ChannelBinding::Require => Err(channel_binding_error()),
        _ if !has(sasl::SCRAM_SHA_256) => {
            Err(connect_error("the server asks for an unsupported authentication method"))
        }
        Some(_) => Ok((sasl::ChannelBinding::unrequested(), false)),
        None => Ok((sasl::ChannelBinding::unsupported(), false)),
    }
}

/// Authenticates with SCRAM-SHA-256.
async fn authenticate_by_scram(
    socket: &mut MessageSocket,
    password: &[u8],
    (binding, is_bound): (sasl::ChannelBinding, bool),
) -> Result<()> {
    let name = if is_bound { sasl::SCRAM_SHA_256_PLUS } else { sasl::SCRAM_SHA_256 };
    let mut scram = ScramSha256::new(password, binding);
    let failed = |error: std::io::Error| connect_error(error.to_string());
    frontend::sasl_initial_response(name, scram.message(), &mut socket.output)
        .map_err(zero_byte_error)?;
    socket.flush().await?;
    let challenge = receive_sasl_message(socket, 11).await?;
    scram.update(&challenge).map_err(failed)?;
    frontend::sasl_response(scram.message(), &mut socket.output).map_err(zero_byte_error)?;
    socket.flush().await?;
    let proof = receive_sasl_message(socket, 12).await?;
    scram.finish(&proof).map_err(failed)
}

/// Waits for an authentication message with this code, and returns its content.
async fn receive_sasl_message(socket: &mut MessageSocket, code: u32) -> Result<Vec<u8>> {
    let message = socket.receive().await?;
    match (message.tag, message.body.split_first_chunk::<4>()) {
        (b'E', _) => Err(server_refusal(&message.body)),
        (b'R', Some((kind, rest))) if u32::from_be_bytes(*kind) == code => Ok(rest.to_vec()),
        _ => Err(connect_error("the server does not speak PostgreSQL's protocol")),
    }
}

fn channel_binding_error() -> Error {
    Error::new(ErrorKind::Usage, "channel binding is required, but the server did not use it")
}
