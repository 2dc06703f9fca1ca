//! Parses `kafka://broker1:9092,broker2:9092/topic,topic?property=value`, the URL of topics.
//!
//! The parameters are properties of librdkafka. Properties that pgspate sets itself are refused.
//! Secrets may come from the environment, and are never shown.

use std::collections::BTreeMap;

use super::SCHEME;
use crate::{Error, ErrorKind, Result, decode_url_part};

/// The prefix of environment variables that set properties: `PGSPATE_KAFKA_SASL_PASSWORD` sets
/// `sasl.password`.
const VARIABLE_PREFIX: &str = "PGSPATE_KAFKA_";
/// The longest name of a topic.
const NAME_MAX: usize = 249;
/// The property that tells where to begin partitions that the ledger does not know.
const RESET: &str = "auto.offset.reset";
/// The properties that pgspate sets itself, because exactness depends on them.
const RESERVED_PROPERTIES: [&str; 12] = [
    "bootstrap.servers",
    "metadata.broker.list",
    "enable.auto.commit",
    "auto.commit.enable",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "statistics.interval.ms",
    "isolation.level",
    "check.crcs",
    "group.instance.id",
    "partition.assignment.strategy",
    "max.poll.interval.ms",
];

/// The address of topics: brokers, topics and properties.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TopicAddress {
    /// The brokers to connect to first, as librdkafka takes them.
    pub(crate) brokers: String,
    /// The topics, in the order of the URL.
    pub(crate) topics: Vec<String>,
    /// Whether a partition that the ledger does not know begins at its end.
    pub(crate) begins_at_end: bool,
    /// Properties for librdkafka. Some may be secrets.
    pub(crate) properties: BTreeMap<String, String>,
}

impl TopicAddress {
    /// Parses a URL, and adds the properties of the environment. The URL's properties take
    /// precedence.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a malformed URL, and for properties that pgspate sets itself.
    pub(crate) fn parse(
        source: &str,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<TopicAddress> {
        let rest = source.strip_prefix(SCHEME).ok_or_else(address_error)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if place.contains('@') {
            return Err(Error::new(
                ErrorKind::Usage,
                "a kafka:// URL must not have a user or a password",
            )
            .hint(
                "Write `?sasl.mechanisms=PLAIN&sasl.username=NAME`, and set \
                     PGSPATE_KAFKA_SASL_PASSWORD.",
            ));
        }
        let (brokers, path) = place.split_once('/').ok_or_else(address_error)?;
        let topics: Vec<String> =
            path.trim_end_matches('/').split(',').map(decode_url_part).collect();
        if brokers.is_empty() || topics.iter().any(String::is_empty) {
            return Err(address_error());
        }
        for (nth, topic) in topics.iter().enumerate() {
            check_topic(topic)?;
            if topics[..nth].contains(topic) {
                return Err(Error::new(
                    ErrorKind::Usage,
                    format!("topic \"{topic}\" is named twice"),
                ));
            }
        }
        let mut properties = from_environment(environment);
        let mut named: Vec<String> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode_url_part(name);
            if named.contains(&name) {
                return Err(Error::new(ErrorKind::Usage, format!("the URL has \"{name}\" twice")));
            }
            properties.insert(name.clone(), decode_url_part(value));
            named.push(name);
        }
        let begins_at_end = begins_at_end(properties.remove(RESET).as_deref())?;
        if let Some(name) =
            properties.keys().find(|name| RESERVED_PROPERTIES.contains(&name.as_str()))
        {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("property \"{name}\" is set by pgspate itself"),
            )
            .hint("Leave it out of the URL, and out of the environment."));
        }
        Ok(TopicAddress { brokers: brokers.to_owned(), topics, begins_at_end, properties })
    }
}

/// Omits the properties, which may be secrets.
impl std::fmt::Debug for TopicAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TopicAddress")
            .field("brokers", &self.brokers)
            .field("topics", &self.topics)
            .finish_non_exhaustive()
    }
}

/// Returns whether the value of a property may be a secret.
pub(super) fn is_secret(property: &str) -> bool {
    ["password", "secret", "key", "pem", "token", "oauthbearer", "jaas", "pkcs12", "certificate"]
        .iter()
        .any(|part| property.contains(part))
}

fn from_environment(variables: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let property = |(name, value): (String, String)| {
        let name = name.strip_prefix(VARIABLE_PREFIX)?.to_ascii_lowercase().replace('_', ".");
        Some((name, value))
    };
    variables.filter_map(property).collect()
}

fn begins_at_end(value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("earliest" | "smallest" | "beginning") => Ok(false),
        Some("latest" | "largest" | "end") => Ok(true),
        Some(_) => {
            Err(Error::new(ErrorKind::Usage, format!("property \"{RESET}\" has an unknown value"))
                .hint(format!("Write `{RESET}=earliest` or `{RESET}=latest`.")))
        }
    }
}

fn check_topic(topic: &str) -> Result<()> {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if topic.len() <= NAME_MAX && topic.bytes().all(is_usual) && !matches!(topic, "." | "..") {
        return Ok(());
    }
    let message = format!("\"{topic}\" cannot be the name of a topic");
    Err(Error::new(ErrorKind::Usage, message).hint("Name the topics, with commas between them."))
}

fn address_error() -> Error {
    Error::new(ErrorKind::Usage, "the URL names no brokers or no topic")
        .hint("Write kafka://broker1:9092,broker2:9092/topic1,topic2.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(source: &str) -> Result<TopicAddress> {
        TopicAddress::parse(source, std::iter::empty())
    }

    #[test]
    fn brokers_topics_and_properties() {
        let found = parse(
            "kafka://a:9092,[::1]:9093/shop.public.orders,log-1?sasl.username=a%26b+c\
             &security.protocol=SASL_SSL&auto.offset.reset=latest",
        );
        let found = found.unwrap();
        assert_eq!(found.brokers, "a:9092,[::1]:9093");
        assert_eq!(found.topics, ["shop.public.orders", "log-1"]);
        assert!(found.begins_at_end);
        let properties: Vec<_> = found.properties.iter().collect();
        let (user, protocol) = ("sasl.username".to_owned(), "security.protocol".to_owned());
        assert_eq!(
            properties,
            [(&protocol, &"SASL_SSL".to_owned()), (&user, &"a&b+c".to_owned())][..]
                .iter()
                .copied()
                .rev()
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn secrets_come_from_the_environment() {
        let variables = [("PGSPATE_KAFKA_SASL_PASSWORD", "geheim"), ("PGPASSWORD", "x")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let found = TopicAddress::parse("kafka://a/t", variables.clone().into_iter()).unwrap();
        assert_eq!(found.properties["sasl.password"], "geheim");
        assert_eq!(found.properties.len(), 1);
        assert!(!format!("{found:?}").contains("geheim"));
        let named = "kafka://a/t?sasl.password=other";
        let found = TopicAddress::parse(named, variables.into_iter()).unwrap();
        assert_eq!(found.properties["sasl.password"], "other");
    }

    #[test]
    fn malformed_urls_are_refused_without_their_secrets() {
        for source in [
            "kafka://a:9092",
            "kafka://a:9092/",
            "kafka:///t",
            "kafka://a/t,,u",
            "kafka://a/t,t",
            "kafka://a/t*",
            "kafka://user:secret@a/t",
            "kafka://user:pass/secret@a/t",
            "kafka://a/t?x.y=1&x.y=2",
            "kafka://a/t?isolation.level=read_uncommitted",
            "kafka://a/t?auto.offset.reset=none",
        ] {
            let error = parse(source).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{source}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
