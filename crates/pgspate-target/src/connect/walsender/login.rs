//! Opening the session: encryption as the session beside it has it, and the role's password.

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, ScramSha256};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_postgres::config::ChannelBinding;
use tokio_postgres::tls::TlsConnect;

use super::super::dsn::Dsn;
use super::super::failure::os_words;
use super::super::host::Host;
use super::super::socket::Route;
use super::super::tap::Traffic;
use super::super::tls::Connector;
use super::super::tls_settings::Mode;
use super::wire::{Wire, lost, refusal, unsendable};
use crate::{Error, ErrorKind, Result};

/// A socket on which the startup message can be sent, and what a login is bound to.
pub(super) async fn open(
    dsn: &Dsn,
    (route, traffic): (&Route, &Traffic),
    tls: Option<&Connector>,
) -> Result<(Wire, Option<Vec<u8>>)> {
    let socket = route.open().await.map_err(|error| lost(os_words(&error)))?;
    let mut socket = socket.tapped(traffic);
    let Some(tls) = tls else { return Ok((Wire::new(Box::new(socket)), None)) };
    if !dsn.tls.direct {
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        let mut answer = [0];
        let asked = async {
            socket.write_all(&request).await?;
            // No more than this byte: whatever else came with it would not be encrypted.
            socket.read_exact(&mut answer).await
        };
        asked.await.map_err(|error| lost(os_words(&error)))?;
        match (answer, dsn.tls.mode) {
            ([b'S'], _) => {}
            (_, Mode::Allow | Mode::Prefer) if dsn.channel_binding != ChannelBinding::Require => {
                return Ok((Wire::new(Box::new(socket)), None));
            }
            _ => return Err(lost("server does not support TLS, but TLS was required")),
        }
    }
    let stream = tls.clone().connect(socket).await.map_err(|error| lost(error.to_string()))?;
    let end_point = stream.end_point();
    Ok((Wire::new(Box::new(stream)), end_point))
}

/// Says who we are, for replication, and waits until the server is ready.
pub(super) async fn log_in(
    wire: &mut Wire,
    dsn: &Dsn,
    host: &Host,
    end_point: Option<Vec<u8>>,
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
    frontend::startup_message(parameters, &mut wire.output).map_err(unsendable)?;
    wire.flush().await?;
    let password = host.password.as_ref().map(|password| password.expose().as_bytes());
    let asks =
        || password.ok_or_else(|| lost("the server asks for a password, and none was found"));
    let must_bind = dsn.channel_binding == ChannelBinding::Require;
    let mut is_bound = false;
    loop {
        let message = wire.receive().await?;
        match (message.tag, message.body.split_first_chunk::<4>()) {
            (b'E', _) => return Err(refusal(&message.body)),
            (b'Z', _) => return Ok(()),
            (b'R', Some((kind, rest))) => match u32::from_be_bytes(*kind) {
                0 if must_bind && !is_bound => return Err(unbound()),
                0 => {}
                3 | 5 if must_bind => return Err(unbound()),
                3 => answer(wire, asks()?).await?,
                5 => {
                    let salt = rest.try_into().map_err(|_| lost("a salt of another length"))?;
                    let hash = md5_hash(dsn.user().as_bytes(), asks()?, salt);
                    answer(wire, hash.as_bytes()).await?;
                }
                10 => {
                    let binding = binding(dsn, rest, end_point.clone())?;
                    is_bound = binding.1;
                    scram(wire, asks()?, binding).await?;
                }
                _ => {
                    return Err(lost("the server asks for an authentication that is unknown here"));
                }
            },
            // The key for requests to cancel, which is not needed.
            (b'K' | b'v', _) => {}
            _ => return Err(lost("the server does not speak PostgreSQL's protocol")),
        }
    }
}

async fn answer(wire: &mut Wire, password: &[u8]) -> Result<()> {
    frontend::password_message(password, &mut wire.output).map_err(unsendable)?;
    wire.flush().await
}

/// What a login is bound to, by what mechanisms the server has; and whether it is.
fn binding(
    dsn: &Dsn,
    mechanisms: &[u8],
    end_point: Option<Vec<u8>>,
) -> Result<(sasl::ChannelBinding, bool)> {
    let has = |name: &str| mechanisms.split(|byte| *byte == 0).any(|it| it == name.as_bytes());
    let end_point = end_point.filter(|_| dsn.channel_binding != ChannelBinding::Disable);
    match end_point {
        Some(hash) if has(sasl::SCRAM_SHA_256_PLUS) => {
            Ok((sasl::ChannelBinding::tls_server_end_point(hash), true))
        }
        _ if dsn.channel_binding == ChannelBinding::Require => Err(unbound()),
        _ if !has(sasl::SCRAM_SHA_256) => {
            Err(lost("the server asks for an authentication that is unknown here"))
        }
        Some(_) => Ok((sasl::ChannelBinding::unrequested(), false)),
        None => Ok((sasl::ChannelBinding::unsupported(), false)),
    }
}

async fn scram(
    wire: &mut Wire,
    password: &[u8],
    (binding, is_bound): (sasl::ChannelBinding, bool),
) -> Result<()> {
    let name = if is_bound { sasl::SCRAM_SHA_256_PLUS } else { sasl::SCRAM_SHA_256 };
    let mut scram = ScramSha256::new(password, binding);
    let failed = |error: std::io::Error| lost(error.to_string());
    frontend::sasl_initial_response(name, scram.message(), &mut wire.output).map_err(unsendable)?;
    wire.flush().await?;
    let challenge = sasl_body(wire, 11).await?;
    scram.update(&challenge).map_err(failed)?;
    frontend::sasl_response(scram.message(), &mut wire.output).map_err(unsendable)?;
    wire.flush().await?;
    let proof = sasl_body(wire, 12).await?;
    scram.finish(&proof).map_err(failed)
}

async fn sasl_body(wire: &mut Wire, wanted: u32) -> Result<Vec<u8>> {
    let message = wire.receive().await?;
    match (message.tag, message.body.split_first_chunk::<4>()) {
        (b'E', _) => Err(refusal(&message.body)),
        (b'R', Some((kind, rest))) if u32::from_be_bytes(*kind) == wanted => Ok(rest.to_vec()),
        _ => Err(lost("the server does not speak PostgreSQL's protocol")),
    }
}

fn unbound() -> Error {
    Error::new(ErrorKind::Usage, "channel binding is required, but the server did not use it")
}
