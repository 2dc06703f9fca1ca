//! Where a run begins: where the ledger says, or with a slot that is yet to be made.

use super::Slot;
use super::filling::Filling;
use super::timeline::parse;
use crate::{Error, ErrorKind, Result};
use pgspate_events::Lsn;
use pgspate_target::ledger::Mark;
use pgspate_target::quote_ident;

/// What comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// The stream, after this.
    Stream(Lsn),
    /// A slot is made.
    Slot,
    /// A slot is made, and the rows that there are then are copied; `again` after a try that has
    /// not come to its end.
    Copy {
        /// What was copied before goes.
        again: bool,
    },
}

impl Begin {
    /// Chooses by what the ledger and the source say.
    ///
    /// # Errors
    /// A ledger and a slot that do not belong together; no slot, when none is to be made.
    pub fn choose(slot: &Slot, mark: &Mark, creates: bool, copies: bool) -> Result<Begin> {
        let name = &slot.name;
        let (identity, timeline) = parse(&mark.digest);
        if !identity.is_empty() {
            slot.check_identity(identity)?;
        }
        if Filling::parse(&mark.source).is_some() {
            return if copies { Ok(Begin::Copy { again: true }) } else { Err(unfinished()) };
        }
        let Some(found) = &slot.found else {
            return match (mark.source.is_empty(), creates || copies) {
                (true, true) if copies => Ok(Begin::Copy { again: false }),
                (true, true) => Ok(Begin::Slot),
                (true, false) => Err(no_slot(name)),
                (false, _) => Err(is_gone(name, &mark.source)),
            };
        };
        if mark.source.is_empty() {
            if copies {
                return Err(not_new(name));
            }
            return Ok(Begin::Stream(found.confirmed));
        }
        let at: Lsn = mark.source.parse().map_err(|error: Error| {
            let message = "the stream in the ledger is not one of a replication slot";
            Error::new(ErrorKind::Ledger, message)
                .hint("Begin a stream of its own with `--stream NAME`.")
                .because(error)
        })?;
        slot.timeline.check(timeline, at, name)?;
        // Who reads it now may have moved on since; it is looked at again when that one is gone.
        if found.reader.is_none() {
            slot.check(at, at)?;
        }
        Ok(Begin::Stream(at))
    }
}

impl Slot {
    /// That the slot has what comes after `received`, which the source has sent, and that nobody
    /// has confirmed more than `upto`, which is applied. Asked whenever it is about to be read, as
    /// the server does not say so: it goes on in silence wherever it can.
    ///
    /// # Errors
    /// Of [`ErrorKind::Ledger`] or [`ErrorKind::Server`] when events are lost; of
    /// [`ErrorKind::Connect`] when they may still come, on a standby.
    pub(crate) fn check(&self, received: Lsn, upto: Lsn) -> Result<()> {
        let name = &self.name;
        match &self.found {
            None => Err(is_gone(name, &upto.to_string())),
            Some(found) if found.confirmed > upto => Err(is_ahead(name, found.confirmed, upto)),
            Some(_) if received > self.log_end => Err(self.is_behind(received)),
            Some(_) => Ok(()),
        }
    }

    /// That it is the slot of which the ledger speaks.
    ///
    /// # Errors
    /// Of [`ErrorKind::Ledger`].
    pub(crate) fn check_identity(&self, known: &str) -> Result<()> {
        if self.identity == known {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Ledger, "the stream in the ledger is of another source")
            .hint("Begin a stream of its own with `--stream NAME`."))
    }

    fn is_behind(&self, at: Lsn) -> Error {
        let end = self.log_end;
        if self.is_standby {
            let message =
                format!("the source, a standby, has not come as far as the stream: {end} of {at}");
            return Error::new(ErrorKind::Connect, message);
        }
        let message = format!(
            "the source's log ends at {end}, but the stream is applied up to {at}: the source has \
             gone back, and what it commits until it is there again would be passed over"
        );
        Error::new(ErrorKind::Ledger, message).hint(format!(
            "The source was put back to an older state, or has failed over to a server that was \
             behind. Empty the tables, drop slot {}, and begin a new stream with `--stream NAME \
             --snapshot`.",
            quote_ident(&self.name)
        ))
    }
}

fn no_slot(name: &str) -> Error {
    Error::new(ErrorKind::Server, format!("replication slot \"{name}\" does not exist")).hint(
        "Make it with `--create-slot`; or with `--snapshot`, which copies the rows that there are \
         first.",
    )
}

fn unfinished() -> Error {
    let message = "the copy of the rows before the stream has not come to its end";
    Error::new(ErrorKind::Ledger, message).hint(
        "Run it with `--snapshot` again, which empties the tables that were being filled, and \
         begins anew.",
    )
}

fn is_gone(name: &str, at: &str) -> Error {
    let message = format!(
        "replication slot \"{name}\" does not exist any more: what was committed after {at} cannot \
         be read"
    );
    Error::new(ErrorKind::Server, message)
        .hint("Empty the tables, and begin a new stream with `--stream NAME --snapshot`.")
}

fn not_new(name: &str) -> Error {
    let message =
        format!("replication slot \"{name}\" exists, and the copy of rows needs a new one");
    Error::new(ErrorKind::Usage, message).hint(format!(
        "Leave `--snapshot` out, name another slot, or drop this one: `select \
         pg_drop_replication_slot('{}')`.",
        name.replace('\'', "''")
    ))
}

fn is_ahead(name: &str, confirmed: Lsn, at: Lsn) -> Error {
    let message = format!(
        "replication slot \"{name}\" was read up to {confirmed}, but the stream is applied up to \
         {at}: what is in between cannot be read any more"
    );
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "Something else reads the slot, or the target was put back to an older state. Empty the \
         tables, drop slot {}, and begin a new stream with `--stream NAME --snapshot`.",
        quote_ident(name)
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Found;
    use super::super::timeline::Timeline;
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
            read_from: Arc::default(),
            log_end: Lsn(0x900),
            is_standby: false,
            found: confirmed.map(|at| Found { confirmed: Lsn(at), reader: None }),
        }
    }

    fn mark(source: &str) -> Mark {
        let digest = if source.is_empty() { "" } else { "1/d/s" };
        Mark { ordinal: 0, source: source.to_owned(), digest: digest.to_owned() }
    }

    #[test]
    fn the_ledger_and_the_slot_say_where_to_begin() {
        let begin = |confirmed, source: &str, creates, copies| {
            Begin::choose(&slot(confirmed), &mark(source), creates, copies)
                .map_err(|error| error.to_string())
        };
        assert_eq!(begin(Some(5), "", false, false), Ok(Begin::Stream(Lsn(5))));
        assert_eq!(begin(Some(5), "", true, false), Ok(Begin::Stream(Lsn(5))));
        assert_eq!(begin(Some(5), "0/7", true, true), Ok(Begin::Stream(Lsn(7))));
        assert_eq!(begin(None, "", true, false), Ok(Begin::Slot));
        assert_eq!(begin(None, "", true, true), Ok(Begin::Copy { again: false }));
        let copying = Filling::default().position();
        for confirmed in [None, Some(5)] {
            let again = begin(confirmed, &copying, false, true);
            assert_eq!(again, Ok(Begin::Copy { again: true }));
        }
        for (confirmed, source, creates, copies, says) in [
            (None, "", false, false, "does not exist"),
            (None, "0/7", true, true, "cannot be read"),
            (Some(8), "0/7", true, true, "cannot be read any more"),
            (Some(5), &copying, true, false, "has not come to its end"),
            (Some(8), "0/901", true, true, "has gone back"),
            (Some(5), "", true, true, "needs a new one"),
            (Some(5), "a.ndjson, line 7", false, false, "not one of a replication slot"),
        ] {
            let error = begin(confirmed, source, creates, copies).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        // Nobody knows how far a slot is that is being read.
        let mut read = slot(Some(8));
        read.found.as_mut().unwrap().reader = Some(7);
        assert_eq!(
            Begin::choose(&read, &mark("0/7"), false, false).unwrap(),
            Begin::Stream(Lsn(7))
        );
        let mut standby = slot(Some(5));
        standby.is_standby = true;
        assert!(standby.check(Lsn(0x901), Lsn(7)).unwrap_err().is_retryable());
        let of =
            |timeline: u32| Mark { digest: format!("1/d/s timeline {timeline}"), ..mark("0/7") };
        let begin = |mark| Begin::choose(&slot(Some(5)), &mark, false, false);
        assert_eq!(begin(of(1)).unwrap(), Begin::Stream(Lsn(7)));
        let further = Mark { source: "0/601".to_owned(), ..of(2) };
        assert_eq!(begin(further.clone()).unwrap(), Begin::Stream(Lsn(0x601)));
        let lost = Mark { digest: of(1).digest, ..further };
        assert!(begin(lost).unwrap_err().to_string().contains("failed over"));
        let other = Mark { digest: "2/d/s".to_owned(), ..mark("0/7") };
        let error = Begin::choose(&slot(Some(5)), &other, false, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ledger);
    }
}
