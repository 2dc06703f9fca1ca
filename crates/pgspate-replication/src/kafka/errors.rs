//! What librdkafka says, as errors of pgspate's.
//!
//! What may be over in a while is of [`ErrorKind::Connect`]. Values of properties are not repeated
//! where they may be secrets.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::address::is_secret;
use crate::{Error, ErrorKind};

/// What a property that is not taken, or a client that cannot be made, comes to.
pub(super) fn of_client(error: KafkaError) -> Error {
    let (message, why) = match error {
        KafkaError::ClientConfig(_, _, name, _) if is_secret(&name) => {
            (format!("property \"{name}\" is not taken"), String::new())
        }
        KafkaError::ClientConfig(_, why, name, _) => {
            (format!("property \"{name}\" is not taken"), why)
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
            "The parameters of the URL, and variables PGSPATE_KAFKA_..., are properties of \
             librdkafka's.",
        ),
    }
}

const WITH_TLS: &str = "This pgspate was built without TLS for Kafka: build it with \
                        `cargo build --release -p pgspate-cli --features kafka-tls`.";

/// A request that failed. `what` completes "could not".
pub(super) fn of_request(what: &str, error: KafkaError, said: Option<String>) -> Error {
    let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
    let message = format!("could not {what}");
    // "UnknownTopic (Broker: Unknown topic)"
    let words = code.to_string();
    let words = words.split_once('(').map_or(words.as_str(), |(_, words)| words);
    let words = words.trim_end_matches(')').to_owned();
    let because = said.map_or_else(|| words.clone(), |said| format!("{words}: {said}"));
    let kind = match is_passing(code) {
        true => ErrorKind::Connect,
        false => ErrorKind::Source,
    };
    let error = Error::new(kind, message).because(because);
    match code {
        _ if is_refusal(code) => error.hint(
            "Look at `security.protocol`, `ssl.ca.location`, `sasl.mechanisms` and `sasl.username` \
             in the URL, and at PGSPATE_KAFKA_SASL_PASSWORD; the user must be known to the \
             brokers, and may read and describe the topics.",
        ),
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => {
            error.hint("Topics are made by whoever writes to them; look how this one is spelled.")
        }
        Code::BrokerTransportFailure | Code::OperationTimedOut | Code::AllBrokersDown => error
            .hint(
                "Look at the brokers' names and ports: those that they give of themselves \
                 (`advertised.listeners`) must be within reach, too.",
            ),
        _ => error,
    }
}

/// Whether it is what a client sees of brokers that go away and come back.
pub(super) fn is_passing(code: Code) -> bool {
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

/// Whether the brokers do not let this user in.
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

/// Whether it is about the group, which is never joined.
pub(super) fn is_of_group(code: Code) -> bool {
    matches!(code, Code::GroupAuthorizationFailed | Code::InvalidGroupId)
}
