//! Refused requests: status, headers and the body `{code, message, details, hint}`.
//!
//! An error of the server has its SQLSTATE as code and PostgREST's status. Any other error has a
//! word as code. A request with status 429 or 503 was not written and may be sent again. A request
//! with code `outcome_unknown` may have been written.

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Response, StatusCode};
use pgspate::ledger::KEYS_DROPPED;
use pgspate::writer::has_outdated_types;
use pgspate::{Error, ErrorKind};
use serde::Serialize;

/// How long a client waits before it sends a refused request again, in seconds.
const RETRY_SECONDS: u32 = 1;

/// The code of records that were encoded for types which their columns no longer have.
pub(crate) const TABLE_CHANGED: &str = "table_changed";

/// Why a request was refused.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RequestFault {
    #[serde(skip)]
    pub(crate) status: StatusCode,
    /// An SQLSTATE, or a word.
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) details: Option<String>,
    pub(crate) hint: Option<String>,
    /// Whether the client may send the request again after a while.
    #[serde(skip)]
    pub(crate) may_retry: bool,
    /// Whether the connection is closed, because the request's body was not read.
    #[serde(skip)]
    pub(crate) closes: bool,
}

impl RequestFault {
    pub(crate) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> RequestFault {
        RequestFault {
            status,
            code: code.to_owned(),
            message: message.into(),
            details: None,
            hint: None,
            may_retry: false,
            closes: false,
        }
    }

    /// Returns a fault with status 400.
    pub(crate) fn bad(code: &str, message: impl Into<String>) -> RequestFault {
        RequestFault::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// Returns a fault with status 503. The request was not written.
    pub(crate) fn unavailable(code: &str, message: impl Into<String>) -> RequestFault {
        let fault = RequestFault::new(StatusCode::SERVICE_UNAVAILABLE, code, message);
        RequestFault { may_retry: true, ..fault }
    }

    /// Returns the fault of a request for which the queue has no room: status 429, as the server is
    /// well and the clients are too fast. The request was not written.
    pub(crate) fn full_queue() -> RequestFault {
        let message = "too many records are waiting";
        let fault = RequestFault::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message);
        RequestFault { may_retry: true, ..fault }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> RequestFault {
        RequestFault { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn details(self, details: impl Into<String>) -> RequestFault {
        RequestFault { details: Some(details.into()), ..self }
    }

    /// Closes the connection after the answer.
    pub(crate) fn closing(self) -> RequestFault {
        RequestFault { closes: true, ..self }
    }

    /// Converts an error of the engine. `has_key` says whether the call has an idempotency key.
    pub(crate) fn of_error(error: &Error, has_key: bool) -> RequestFault {
        match error.kind() {
            ErrorKind::OutcomeUnknown => return unknown_outcome(error, has_key),
            ErrorKind::QueueFull => return RequestFault::full_queue(),
            ErrorKind::Connect => {
                let message = "the server cannot be reached; nothing was written";
                let fault = RequestFault::unavailable("server_away", message);
                return fault.details(error.messages().join(": "));
            }
            _ if has_outdated_types(error) => {
                return RequestFault::unavailable(TABLE_CHANGED, error.to_string());
            }
            _ => {}
        }
        let hint = error.hint_text().and_then(without_flags);
        if let Some(refusal) = error.refusal() {
            let code = refusal.code().code();
            let fault = RequestFault::new(status_of(code), code, refusal.message());
            let details = refusal.detail().map(str::to_owned);
            let may_retry = fault.status == StatusCode::SERVICE_UNAVAILABLE;
            return RequestFault { details, hint, may_retry, ..fault };
        }
        let messages = error.messages();
        let message = messages.first().cloned().unwrap_or_default();
        let causes = messages.get(1..).unwrap_or_default().join(": ");
        let details = (!causes.is_empty()).then_some(causes);
        let fault = match error.sqlstate() {
            // A load has dropped keys of the table, and will put them back.
            Some(code) if error.kind() == ErrorKind::Ledger && *code == KEYS_DROPPED => {
                RequestFault::unavailable(code.code(), message)
            }
            Some(code) => RequestFault::new(status_of(code.code()), code.code(), message),
            None => match error.kind() {
                ErrorKind::KeyReused => {
                    RequestFault::new(StatusCode::UNPROCESSABLE_ENTITY, "key_reused", message)
                }
                // The ledger has another version, or belongs to another role.
                ErrorKind::Ledger => {
                    RequestFault::new(StatusCode::INTERNAL_SERVER_ERROR, "ledger", message)
                }
                ErrorKind::Bug => {
                    RequestFault::new(StatusCode::INTERNAL_SERVER_ERROR, "bug", message)
                }
                ErrorKind::Plan => RequestFault::bad("not_possible", message),
                ErrorKind::Usage => RequestFault::bad("invalid_request", message),
                _ => RequestFault::bad("invalid_body", message),
            },
        };
        let place = error.place().map(ToString::to_string).filter(|place| !place.is_empty());
        RequestFault { details: details.or(place), hint, ..fault }
    }

    /// Returns the answer.
    pub(crate) fn into_response(self) -> Response<Body> {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/json; charset=utf-8");
        headers.insert(CONTENT_TYPE, json);
        if self.may_retry {
            headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        }
        if self.closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Returns a hint without its sentences about flags, which a client of the server does not have.
fn without_flags(hint: &str) -> Option<String> {
    let sentences = hint.split_inclusive(". ").filter(|sentence| !sentence.contains("`--"));
    let hint: String = sentences.collect();
    Some(hint.trim_end().to_owned()).filter(|hint| !hint.is_empty())
}

/// Returns the fault of a call that was sent and not answered.
fn unknown_outcome(error: &Error, has_key: bool) -> RequestFault {
    let status = StatusCode::GATEWAY_TIMEOUT;
    let fault = RequestFault::new(status, "outcome_unknown", error.to_string());
    let hint = match has_key {
        true => "Send the request again with the same Idempotency-Key: it is written once.",
        false => {
            "The records were written or not. Look for them by their key before you send them \
             again. With an Idempotency-Key, the request could be sent again."
        }
    };
    RequestFault { may_retry: has_key, ..fault.hint(hint) }
}

/// Returns the status that PostgREST has for an SQLSTATE.
pub(crate) fn status_of(sqlstate: &str) -> StatusCode {
    let status = match sqlstate {
        "23503" | "23505" => 409,
        "25006" => 405,
        "42501" => 403,
        "42883" | "42P01" => 404,
        "42P17" | "53400" => 500,
        "57P01" | "57P02" | "57P03" => 503,
        "P0001" => 400,
        _ => match sqlstate.get(..2).unwrap_or_default() {
            "08" | "53" => 503,
            "0L" | "0P" | "28" => 403,
            "09" | "25" | "2D" | "38" | "39" | "3B" | "40" | "54" | "55" | "57" | "58" | "F0"
            | "HV" | "P0" | "XX" => 500,
            _ => 400,
        },
    };
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_cannot_be_opened_is_no_fault_of_the_records() {
        let error = Error::new(ErrorKind::Connect, "could not connect");
        let fault = RequestFault::of_error(&error, false);
        assert_eq!((fault.status.as_u16(), fault.code.as_str()), (503, "server_away"));
        assert!(fault.may_retry);
    }

    #[test]
    fn records_of_a_table_without_its_keys_may_be_sent_again() {
        let error = Error::new(ErrorKind::Ledger, "job 1 has dropped keys");
        let error = error.with_sqlstate(KEYS_DROPPED);
        let fault = RequestFault::of_error(&error, false);
        assert_eq!((fault.status.as_u16(), fault.code.as_str()), (503, "55006"));
        assert_eq!(fault.into_response().headers()[RETRY_AFTER], "1");
        let other = Error::new(ErrorKind::Ledger, "the ledger's version is 9, expected 6");
        let fault = RequestFault::of_error(&other, false);
        assert_eq!((fault.status.as_u16(), fault.may_retry), (500, false));
    }

    #[test]
    fn sqlstates_have_the_statuses_of_postgrest() {
        let expected = [
            ("23505", 409),
            ("23503", 409),
            ("23502", 400),
            ("23514", 400),
            ("22P02", 400),
            ("42501", 403),
            ("42P01", 404),
            ("42703", 400),
            ("08006", 503),
            ("53300", 503),
            ("57014", 500),
            ("55P03", 500),
            ("P0001", 400),
            ("40001", 500),
            ("28000", 403),
            ("", 400),
            ("é", 400),
        ];
        for (code, status) in expected {
            assert_eq!(status_of(code).as_u16(), status, "{code}");
        }
    }
}
