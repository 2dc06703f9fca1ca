//! Turns errors of librdkafka into errors of pgspate.
//!
//! Temporary errors are of [`ErrorKind::Connect`]. Messages do not repeat values of properties that
//! may be secrets.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::address::is_secret;
use crate::{Error, ErrorKind};

/// Returns the error for a refused property, or for a client that cannot be created.
pub(super) fn client_error(error: KafkaError) -> Error {
    let (message, why) = match error {
        KafkaError::ClientConfig(_, _, name, _) if is_secret(&name) => {
            (format!("librdkafka refused property \"{name}\""), String::new())
        }
        KafkaError::ClientConfig(_, why, name, _) => {
            (format!("librdkafka refused property \"{name}\""), why)
        }
        KafkaError::ClientCreation(why) => ("could not set up the client of Kafka".to_owned(), why),
        error => {
            return Error::new(ErrorKind::Bug, "could not set up the client of Kafka")
                .because(error);
        }
    };
    let lacks_tls = ["not supported in this build", "recompile", "not available at build time"];
    let lacks_tls = lacks_tls.iter().any(|words| why.contains(words));
    let error = Error::new(ErrorKind::Usage, message);
    let error = if why.is_empty() { error } else { error.because(why) };
    match lacks_tls && cfg!(not(feature = "kafka-tls")) {
        true => error.hint(WITH_TLS),
        false => error.hint(
            "The parameters of the URL, and the variables PGSPATE_KAFKA_..., must be properties of \
             librdkafka.",
        ),
    }
}

const WITH_TLS: &str = "This pgspate was built without TLS for Kafka: build it with \
                        `cargo build --release -p pgspate-cli --features kafka-tls`.";

/// Returns the error for a failed request. `what` completes "could not ...".
pub(super) fn request_error(what: &str, error: KafkaError, said: Option<String>) -> Error {
    let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
    let message = format!("could not {what}");
    // The text looks like "UnknownTopic (Broker: Unknown topic)".
    let words = code.to_string();
    let words = words.split_once('(').map_or(words.as_str(), |(_, words)| words);
    let words = words.trim_end_matches(')').to_owned();
    let because = said.map_or_else(|| words.clone(), |said| format!("{words}: {said}"));
    let kind = match is_temporary(code) {
        true => ErrorKind::Connect,
        false => ErrorKind::Source,
    };
    let error = Error::new(kind, message).because(because);
    match code {
        _ if is_refusal(code) => error.hint(
            "Look at `security.protocol`, `ssl.ca.location`, `sasl.mechanisms` and `sasl.username` \
             in the URL, and at PGSPATE_KAFKA_SASL_PASSWORD. The brokers must know the user and \
             allow the user to read and describe the topics.",
        ),
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => {
            error.hint("Check the spelling of the topic. pgspate does not create topics.")
        }
        Code::BrokerTransportFailure | Code::OperationTimedOut | Code::AllBrokersDown => error
            .hint(
                "Check the brokers' names and ports. The addresses that the brokers advertise \
                 (`advertised.listeners`) must be reachable, too.",
            ),
        _ => error,
    }
}

/// Returns whether the error is temporary: it occurs when brokers go away and come back.
pub(super) fn is_temporary(code: Code) -> bool {
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::OperationTimedOut
            | Code::Resolve
            | Code::TimedOutQueue
            | Code::NodeUpdate
            | Code::WaitingForCoordinator
            | Code::WaitCache
            | Code::RequestTimedOut
            | Code::BrokerNotAvailable
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::ReplicaNotAvailable
            | Code::NetworkException
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::OffsetNotAvailable
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
    )
}

/// Returns whether the brokers refuse this user.
pub(super) fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::Authentication
            | Code::SSL
            | Code::UnsupportedSASLMechanism
            | Code::SaslAuthenticationFailed
            | Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
    )
}

/// Returns whether the error is about the consumer group, which is never joined.
pub(super) fn is_group_error(code: Code) -> bool {
    matches!(code, Code::GroupAuthorizationFailed | Code::InvalidGroupId)
}
