//! Finds the origin of a stream: files, a replication slot, or Kafka topics.

use tokio::runtime::Handle;

use super::options::ApplyOptions;
use crate::source::{self, Input};
use crate::{Error, ErrorKind, Result};
use pgspate_replication::slot::Slot;
use pgspate_replication::{SourceNames, kafka};

/// The resolved sources of a stream.
pub(super) enum StreamOrigin {
    Inputs(Vec<Input>),
    Slot(Box<Slot>),
    KafkaTopics(Box<kafka::KafkaTopics>),
}

/// Resolves the sources of a run.
///
/// # Errors
/// [`ErrorKind::Source`] if a source is not found. [`ErrorKind::Usage`] if sources cannot be read
/// in one stream, or if options do not fit the sources. The errors of [`Slot::inspect`] and
/// [`kafka::KafkaTopics::inspect`].
pub(super) fn find_origin(options: &ApplyOptions, runtime: &Handle) -> Result<StreamOrigin> {
    if options.batch_rows == 0 || options.batch_bytes == 0 {
        return Err(Error::new(ErrorKind::Usage, "a batch must have room for at least one event")
            .hint("Give `--batch-rows` and `--batch-bytes` values above 0."));
    }
    let check_is_alone = |what: &str| match options.sources.len() {
        1 => Ok(()),
        _ => Err(Error::new(ErrorKind::Usage, format!("{what} must be the only source"))
            .hint("Name only this source. Apply the other sources with another `--stream`.")),
    };
    let stall = options.limits.stall_timeout;
    for source in &options.sources {
        let looked = Slot::inspect(source, stall);
        let Some(slot) = runtime.block_on(looked)? else { continue };
        check_is_alone("a replication slot")?;
        return Ok(StreamOrigin::Slot(Box::new(slot)));
    }
    if options.creates_slot || options.copies_rows {
        let message = "no source is a replication slot";
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("Write postgres://user@host/dbname?slot=NAME&publication=NAME."));
    }
    if let Some(source) = options.sources.iter().find(|source| kafka::is_topics(source)) {
        check_is_alone("a list of topics")?;
        let topics = kafka::KafkaTopics::inspect(source, options.follows, stall)?;
        return Ok(StreamOrigin::KafkaTopics(Box::new(topics)));
    }
    // The stream's position tells which part of a grown file is new.
    let growing = source::SourceOptions { may_grow: true, ..options.source.clone() };
    let mut inputs = source::resolve(&options.sources, &growing, runtime.clone())?;
    inputs.extend(options.inputs.iter().cloned());
    Ok(StreamOrigin::Inputs(inputs))
}

/// Returns the stream's name in the ledger.
///
/// # Errors
/// [`ErrorKind::Usage`] when another source could have the same name.
pub(super) fn stream_name(options: &ApplyOptions, origin: &StreamOrigin) -> Result<String> {
    if let Some(name) = &options.stream {
        return Ok(name.clone());
    }
    Ok(match origin {
        StreamOrigin::Slot(slot) => slot.title(),
        // Named after the first topic, so that further topics may be added or removed.
        StreamOrigin::KafkaTopics(topics) => format!("topic {}", topics.names()[0]),
        StreamOrigin::Inputs(inputs) => match inputs.first() {
            Some(first) if first.identifying_url().is_some() => {
                let message = format!("the stream of \"{}\" needs a name", first.name());
                return Err(Error::new(ErrorKind::Usage, message).hint(
                    "The user and the query of a URL are not stored, as they may be secret. So \
                     another source could have the same name. Give one with `--stream NAME`.",
                ));
            }
            first => first.map_or("-", Input::name).to_owned(),
        },
    })
}

/// Returns the names of files or of the slot for messages. Partitions are named when they are read.
pub(super) fn source_names(origin: &StreamOrigin) -> SourceNames {
    SourceNames::new(match origin {
        StreamOrigin::Inputs(inputs) => inputs.iter().map(|it| it.name().to_owned()).collect(),
        StreamOrigin::Slot(slot) => vec![slot.title()],
        StreamOrigin::KafkaTopics(_) => Vec::new(),
    })
}
