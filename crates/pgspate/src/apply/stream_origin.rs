//! Finds the origin of a stream: files, a replication slot, or Kafka topics.

use tokio::runtime::Handle;
use tokio_postgres::Client;

use super::options::ApplyOptions;
use crate::source::{self, Input};
use crate::{Error, ErrorKind, Result};
use pgspate_replication::slot::Slot;
use pgspate_replication::{SourceNames, kafka};
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::{self, StreamPosition};

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
    let growing =
        source::SourceOptions { may_grow: true, needs_order: true, ..options.source.clone() };
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
            // Runs from any folder, with any spelling of the path, are runs of the same stream.
            first => first.map_or_else(|| "-".to_owned(), Input::full_name),
        },
    })
}

/// Reads the ledger's position of the stream. Refuses files and topics of another stream, unless
/// the user has named the stream.
///
/// # Errors
/// [`ErrorKind::Ledger`] if another stream has applied one of the files or topics.
pub(super) async fn find_position(
    options: &ApplyOptions,
    origin: &StreamOrigin,
    stream: &str,
    dsn: &Dsn,
) -> Result<StreamPosition> {
    let connection = dsn.connect("pgspate apply").await?;
    let client = &connection.client;
    let found = async {
        let mark = ledger::read_stream_position(client, stream, "").await?;
        match origin {
            _ if options.stream.is_some() => {}
            StreamOrigin::Inputs(inputs) => {
                if mark == StreamPosition::default() {
                    check_earlier_name(inputs, client).await?;
                }
                check_files_are_new(inputs, stream, client).await?;
            }
            StreamOrigin::KafkaTopics(topics) => {
                check_topics_are_new(topics, stream, client).await?;
            }
            StreamOrigin::Slot(_) => {}
        }
        Ok(mark)
    };
    let found = found.await;
    connection.close().await;
    found
}

/// Refuses topics of another stream. If the topics are named in another order, their stream has
/// another name. All messages would then be applied again.
async fn check_topics_are_new(
    topics: &kafka::KafkaTopics,
    stream: &str,
    client: &Client,
) -> Result<()> {
    let found = ledger::find_stream_of_topics(client, stream, topics.names()).await?;
    let Some((other, topic)) = found else { return Ok(()) };
    let message = format!("topic \"{topic}\" was applied as part of stream \"{other}\"");
    Err(Error::new(ErrorKind::Ledger, message).hint(format!(
        "A stream is named after its first topic. Add `--stream '{other}'`, which continues that \
         stream. `--stream` with another name begins a stream of its own, which applies the topics \
         from their beginning."
    )))
}

/// Refuses files whose stream has another name in the ledger: earlier versions named a stream after
/// the path of its first file, as it was written.
async fn check_earlier_name(inputs: &[Input], client: &Client) -> Result<()> {
    let spelled = inputs.first().map_or("-", Input::name);
    let earlier = ledger::read_stream_position(client, spelled, "").await?;
    if earlier == StreamPosition::default() {
        return Ok(());
    }
    let message = format!("an earlier version applied \"{spelled}\" as a stream of this name");
    Err(Error::new(ErrorKind::Ledger, message).hint(format!(
        "Add `--stream {spelled}`, which continues that stream. Streams are now named after the \
         full path of their first file."
    )))
}

/// Refuses files of another stream. If the first file of a stream is missing, the next file would
/// begin a new stream. The events of all files would then be applied again.
async fn check_files_are_new(inputs: &[Input], stream: &str, client: &Client) -> Result<()> {
    let found = ledger::find_stream_of_files(client, stream, &file_names(inputs)).await?;
    let Some((other, file)) = found else { return Ok(()) };
    let message = format!("\"{file}\" was applied as part of stream \"{other}\"");
    Err(Error::new(ErrorKind::Ledger, message).hint(format!(
        "Name all files of the stream in their order, with those that are applied already, or \
         only files that it has not read yet. `--stream NAME` begins a stream of its own, which \
         applies the files from their beginning. Events of stream \"{other}\" would be applied \
         again then."
    )))
}

/// Returns the full names of the inputs that are files or objects.
pub(super) fn file_names(inputs: &[Input]) -> Vec<String> {
    inputs.iter().filter(|it| it.has_file_name()).map(Input::full_name).collect()
}

/// Returns the names of files or of the slot for messages. Partitions are named when they are read.
pub(super) fn source_names(origin: &StreamOrigin) -> SourceNames {
    match origin {
        StreamOrigin::Inputs(inputs) => SourceNames::of_files(
            inputs.iter().map(|it| it.name().to_owned()).collect(),
            inputs.iter().map(Input::full_name).collect(),
        ),
        StreamOrigin::Slot(slot) => SourceNames::new(vec![slot.title()]),
        StreamOrigin::KafkaTopics(_) => SourceNames::new(Vec::new()),
    }
}
