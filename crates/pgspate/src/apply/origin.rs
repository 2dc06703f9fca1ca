//! What a stream is read from.

use tokio::runtime::Handle;

use super::options::ApplyOptions;
use crate::source::{self, Input};
use crate::{Error, ErrorKind, Result};
use pgspate_replication::slot::Slot;
use pgspate_replication::{SourceNames, kafka};

/// What the sources name.
pub(super) enum StreamOrigin {
    Inputs(Vec<Input>),
    Slot(Box<Slot>),
    Topics(Box<kafka::Topics>),
}

/// Finds what the sources of a run name.
///
/// # Errors
/// What is not there, or cannot be read together.
pub(super) fn find(options: &ApplyOptions, runtime: &Handle) -> Result<StreamOrigin> {
    if options.batch_rows == 0 || options.batch_bytes == 0 {
        return Err(Error::new(ErrorKind::Usage, "a batch needs room for an event"));
    }
    let alone = |what: &str| match options.sources.len() {
        1 => Ok(()),
        _ => Err(Error::new(ErrorKind::Usage, format!("{what} is a stream of its own"))
            .hint("Name it alone, and apply files under another `--stream`.")),
    };
    let stall = options.limits.stall_timeout;
    for source in &options.sources {
        let looked = Slot::look(source, stall);
        let Some(slot) = runtime.block_on(looked)? else { continue };
        alone("a replication slot")?;
        return Ok(StreamOrigin::Slot(Box::new(slot)));
    }
    if options.creates_slot || options.copies_rows {
        let message = "no source is a replication slot";
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("Write postgres://user@host/dbname?slot=NAME&publication=NAME."));
    }
    if let Some(source) = options.sources.iter().find(|source| kafka::is_topics(source)) {
        alone("a list of topics")?;
        let topics = kafka::Topics::look(source, options.follows, stall)?;
        return Ok(StreamOrigin::Topics(Box::new(topics)));
    }
    // The stream's position says what of a file that has grown is new.
    let growing = source::Options { may_grow: true, ..options.source.clone() };
    let mut inputs = source::resolve(&options.sources, &growing, runtime.clone())?;
    inputs.extend(options.inputs.iter().cloned());
    Ok(StreamOrigin::Inputs(inputs))
}

/// The stream's name in the ledger.
///
/// # Errors
/// Of [`ErrorKind::Usage`] when the name of its source could be another source's, too.
pub(super) fn name(options: &ApplyOptions, origin: &StreamOrigin) -> Result<String> {
    if let Some(name) = &options.stream {
        return Ok(name.clone());
    }
    Ok(match origin {
        StreamOrigin::Slot(slot) => slot.title(),
        // Topics that are named after the first may come and go.
        StreamOrigin::Topics(topics) => format!("topic {}", topics.names()[0]),
        StreamOrigin::Inputs(inputs) => match inputs.first() {
            Some(first) if first.hidden().is_some() => {
                let message = format!("the stream of \"{}\" has no name of its own", first.name());
                return Err(Error::new(ErrorKind::Usage, message).hint(
                    "What a URL says of its user and behind the question mark is not kept, as it \
                     may be secret. Give the stream a name with `--stream NAME`.",
                ));
            }
            first => first.map_or("-", Input::name).to_owned(),
        },
    })
}

/// What people call the files, or the slot. Partitions get their names as they are read.
pub(super) fn names(origin: &StreamOrigin) -> SourceNames {
    SourceNames::new(match origin {
        StreamOrigin::Inputs(inputs) => inputs.iter().map(|it| it.name().to_owned()).collect(),
        StreamOrigin::Slot(slot) => vec![slot.title()],
        StreamOrigin::Topics(_) => Vec::new(),
    })
}
