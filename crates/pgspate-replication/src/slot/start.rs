//! Decides how a run begins: at the ledger's position, or by creating a slot.

use super::Slot;
use super::tables_being_copied::TablesBeingCopied;
use super::timeline::parse;
use crate::{Error, ErrorKind, Result};
use pgspate_events::Lsn;
use pgspate_target::ledger::StreamPosition;
use pgspate_target::quote_ident;

/// The first step of a run that reads a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotStart {
    /// Read the stream after this position.
    ContinueStream(Lsn),
    /// Create the slot, then read its stream.
    CreateSlot,
    /// Create the slot and copy the rows of its snapshot, then read its stream.
    InitialCopy {
        /// Whether an earlier copy was not completed. Its rows are removed first.
        again: bool,
    },
}

impl SlotStart {
    /// Chooses the first step by the ledger's position and the slot. `creates` tells that the run
    /// may create the slot, and `copies` that the run shall copy the rows first.
    ///
    /// # Errors
    /// When the position does not belong to the slot, or the slot does not exist and shall not be
    /// created.
    pub fn choose(
        slot: &Slot,
        mark: &StreamPosition,
        creates: bool,
        copies: bool,
    ) -> Result<SlotStart> {
        let name = &slot.name;
        let (identity, timeline) = parse(&mark.digest);
        if !identity.is_empty() {
            slot.check_identity(identity)?;
        }
        if TablesBeingCopied::parse(&mark.source).is_some() {
            return if copies {
                Ok(SlotStart::InitialCopy { again: true })
            } else {
                Err(copy_unfinished_error())
            };
        }
        let Some(found) = &slot.found else {
            return match (mark.source.is_empty(), creates || copies) {
                (true, true) if copies => Ok(SlotStart::InitialCopy { again: false }),
                (true, true) => Ok(SlotStart::CreateSlot),
                (true, false) => Err(no_slot_error(name)),
                (false, _) => Err(slot_gone_error(name, &mark.source)),
            };
        };
        if mark.source.is_empty() {
            if copies {
                return Err(slot_not_new_error(name));
            }
            return Ok(SlotStart::ContinueStream(found.confirmed));
        }
        let at: Lsn = mark.source.parse().map_err(|error: Error| {
            let message = "the stream in the ledger is not the stream of a replication slot";
            Error::new(ErrorKind::Ledger, message)
                .hint("Begin a new stream with `--stream NAME`.")
                .because(error)
        })?;
        slot.timeline.check(timeline, at, name)?;
        // Another session that reads the slot may confirm later positions meanwhile. The slot is
        // checked again when the other session has ended.
        if found.reader.is_none() {
            slot.check(at, at)?;
        }
        Ok(SlotStart::ContinueStream(at))
    }
}

impl Slot {
    /// Checks that the slot can send everything after `received`, the last position that the source
    /// has sent. Also checks that no session has confirmed more than `upto`, the applied position.
    /// The caller runs this check before each start of the stream, because the server would skip
    /// lost events without an error.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] or [`ErrorKind::Server`] if events are lost. [`ErrorKind::Connect`] if
    /// the source is a standby that has not received the events yet.
    pub(crate) fn check(&self, received: Lsn, upto: Lsn) -> Result<()> {
        let name = &self.name;
        match &self.found {
            None => Err(slot_gone_error(name, &upto.to_string())),
            Some(found) if found.confirmed > upto => {
                Err(slot_ahead_error(name, found.confirmed, upto))
            }
            Some(_) if received > self.log_end => Err(self.source_behind_error(received)),
            Some(_) => Ok(()),
        }
    }

    /// Checks that this is the slot of the stream in the ledger.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if the stream in the ledger belongs to another slot.
    pub(crate) fn check_identity(&self, known: &str) -> Result<()> {
        if self.identity == known {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Ledger, "the stream in the ledger belongs to another source")
            .hint("Begin a new stream with `--stream NAME`."))
    }

    fn source_behind_error(&self, at: Lsn) -> Error {
        let end = self.log_end;
        if self.is_standby {
            let message = format!(
                "the source is a standby with WAL up to {end}, but the stream is applied up to {at}"
            );
            return Error::new(ErrorKind::Connect, message);
        }
        let message = format!(
            "the source's WAL ends at {end}, but the stream is applied up to {at}: the source has \
             gone back, and its transactions up to that position would be skipped"
        );
        Error::new(ErrorKind::Ledger, message).hint(format!(
            "The source was restored to an older state, or failed over to a server that was \
             behind. Empty the tables, drop slot {}, and begin a new stream with `--stream NAME \
             --snapshot`.",
            quote_ident(&self.name)
        ))
    }
}

fn no_slot_error(name: &str) -> Error {
    Error::new(ErrorKind::Server, format!("replication slot \"{name}\" does not exist")).hint(
        "Create it with `--create-slot`, or with `--snapshot`, which also copies the existing \
         rows.",
    )
}

fn copy_unfinished_error() -> Error {
    let message = "the initial copy of the rows is not complete";
    Error::new(ErrorKind::Ledger, message).hint(
        "Run the command with `--snapshot` again. It empties the tables that were being filled, \
         and starts the copy over.",
    )
}

fn slot_gone_error(name: &str, at: &str) -> Error {
    let message = format!(
        "replication slot \"{name}\" does not exist any more: what was committed after {at} cannot \
         be read"
    );
    Error::new(ErrorKind::Server, message)
        .hint("Empty the tables, and begin a new stream with `--stream NAME --snapshot`.")
}

fn slot_not_new_error(name: &str) -> Error {
    let message =
        format!("replication slot \"{name}\" exists, and the copy of rows needs a new slot");
    Error::new(ErrorKind::Usage, message).hint(format!(
        "Leave `--snapshot` out, name another slot, or drop this one: `select \
         pg_drop_replication_slot('{}')`.",
        name.replace('\'', "''")
    ))
}

fn slot_ahead_error(name: &str, confirmed: Lsn, at: Lsn) -> Error {
    let message = format!(
        "replication slot \"{name}\" was read up to {confirmed}, but the stream is applied up to \
         {at}: transactions in between cannot be read any more"
    );
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "Another program reads the slot, or the target was restored to an older state. Empty the \
         tables, drop slot {}, and begin a new stream with `--stream NAME --snapshot`.",
        quote_ident(name)
    ))
}

#[cfg(test)]
mod tests {
    use super::super::ExistingSlot;
    use super::super::timeline::{CurrentTimeline, Timeline};
    use super::*;
    use pgspate_target::connect::{Dsn, Environment};

    fn slot(confirmed: Option<u64>) -> Slot {
        let env = Environment { user: Some("u".to_owned()), ..Environment::default() };
        Slot {
            dsn: Dsn::resolve(Some("host=h"), &env).unwrap().unwrap(),
            name: "s".to_owned(),
            publication: "p".to_owned(),
            identity: "1/d/s".to_owned(),
            timeline: Timeline::new(2, Some("1\t0/600\tpromoted")),
            read_from: CurrentTimeline::default(),
            log_end: Lsn(0x900),
            is_standby: false,
            found: confirmed.map(|at| ExistingSlot { confirmed: Lsn(at), reader: None }),
        }
    }

    fn mark(source: &str) -> StreamPosition {
        let digest = if source.is_empty() { "" } else { "1/d/s" };
        StreamPosition { ordinal: 0, source: source.to_owned(), digest: digest.to_owned() }
    }

    #[test]
    fn the_ledger_and_the_slot_decide_how_a_run_begins() {
        let begin = |confirmed, source: &str, creates, copies| {
            SlotStart::choose(&slot(confirmed), &mark(source), creates, copies)
                .map_err(|error| error.to_string())
        };
        assert_eq!(begin(Some(5), "", false, false), Ok(SlotStart::ContinueStream(Lsn(5))));
        assert_eq!(begin(Some(5), "", true, false), Ok(SlotStart::ContinueStream(Lsn(5))));
        assert_eq!(begin(Some(5), "0/7", true, true), Ok(SlotStart::ContinueStream(Lsn(7))));
        assert_eq!(begin(None, "", true, false), Ok(SlotStart::CreateSlot));
        assert_eq!(begin(None, "", true, true), Ok(SlotStart::InitialCopy { again: false }));
        let copying = TablesBeingCopied::default().position();
        for confirmed in [None, Some(5)] {
            let again = begin(confirmed, &copying, false, true);
            assert_eq!(again, Ok(SlotStart::InitialCopy { again: true }));
        }
        for (confirmed, source, creates, copies, says) in [
            (None, "", false, false, "does not exist"),
            (None, "0/7", true, true, "cannot be read"),
            (Some(8), "0/7", true, true, "cannot be read any more"),
            (Some(5), &copying, true, false, "is not complete"),
            (Some(8), "0/901", true, true, "has gone back"),
            (Some(5), "", true, true, "needs a new slot"),
            (Some(5), "a.ndjson, line 7", false, false, "not the stream of a replication slot"),
        ] {
            let error = begin(confirmed, source, creates, copies).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        // The position of a slot is not checked while another session reads the slot.
        let mut read = slot(Some(8));
        read.found.as_mut().unwrap().reader = Some(7);
        assert_eq!(
            SlotStart::choose(&read, &mark("0/7"), false, false).unwrap(),
            SlotStart::ContinueStream(Lsn(7))
        );
        let mut standby = slot(Some(5));
        standby.is_standby = true;
        assert!(standby.check(Lsn(0x901), Lsn(7)).unwrap_err().is_retryable());
        let of = |timeline: u32| StreamPosition {
            digest: format!("1/d/s timeline {timeline}"),
            ..mark("0/7")
        };
        let begin = |mark| SlotStart::choose(&slot(Some(5)), &mark, false, false);
        assert_eq!(begin(of(1)).unwrap(), SlotStart::ContinueStream(Lsn(7)));
        let further = StreamPosition { source: "0/601".to_owned(), ..of(2) };
        assert_eq!(begin(further.clone()).unwrap(), SlotStart::ContinueStream(Lsn(0x601)));
        let lost = StreamPosition { digest: of(1).digest, ..further };
        assert!(begin(lost).unwrap_err().to_string().contains("failed over"));
        let other = StreamPosition { digest: "2/d/s".to_owned(), ..mark("0/7") };
        let error = SlotStart::choose(&slot(Some(5)), &other, false, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ledger);
    }
}
