//! What goes wrong, where, and what comes after: written so that a failing case can be run again.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::wire::Side;

/// What happens to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Its connection is closed on both sides before it is passed on.
    Cut,
    /// Half of it is passed on, and then the connection is closed.
    CutInside,
    /// It is passed on, and then the connection is closed.
    CutAfter,
    /// It is passed on, and then the connection is closed, of which the server is not told until
    /// the test lets go: it goes on with what it has.
    Lose,
    /// Nothing passes on its connection any more, which stays open, until the test lets go.
    Stall,
    /// The commit is passed on; the server's answer is dropped and the connection closed.
    SwallowCommit,
}

/// Which message it happens to. All count from 1, over all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// So many messages of either side.
    Message(u64),
    /// So many messages that commit.
    Commit(u64),
    /// So many messages of one side and type.
    Kind(Side, u8, u64),
    /// Each time so many messages have passed, again and again.
    Every(u64),
}

/// One fault of one load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) fault: Fault,
    pub(crate) at: At,
    /// How long no server is there afterwards; then all connections are cut, too.
    pub(crate) away: Option<Duration>,
}

impl Plan {
    pub(crate) fn new(fault: Fault, at: At) -> Plan {
        Plan { fault, at, away: None }
    }

    pub(crate) fn away(self, time: Duration) -> Plan {
        Plan { away: Some(time), ..self }
    }
}

const FAULTS: [(Fault, &str); 6] = [
    (Fault::Cut, "cut"),
    (Fault::CutInside, "cut-inside"),
    (Fault::CutAfter, "cut-after"),
    (Fault::Lose, "lose"),
    (Fault::Stall, "stall"),
    (Fault::SwallowCommit, "swallow-commit"),
];

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name) = FAULTS.iter().find(|(fault, _)| fault == self).unwrap();
        f.write_str(name)
    }
}

/// `cut@137`, `cut-after@commit:2`, `stall@server:G:1`, each perhaps with `+away:500`.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@", self.fault)?;
        match self.at {
            At::Message(nth) => write!(f, "{nth}")?,
            At::Commit(nth) => write!(f, "commit:{nth}")?,
            At::Every(count) => write!(f, "every:{count}")?,
            At::Kind(Side::Client, kind, nth) => write!(f, "client:{}:{nth}", char::from(kind))?,
            At::Kind(Side::Server, kind, nth) => write!(f, "server:{}:{nth}", char::from(kind))?,
        }
        match self.away {
            Some(time) => write!(f, "+away:{}", time.as_millis()),
            None => Ok(()),
        }
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Plan, String> {
        let wrong = || format!("\"{text}\" is no fault; one is cut@137 or stall@server:G:1");
        let (fault, rest) = text.split_once('@').ok_or_else(wrong)?;
        let fault = FAULTS.iter().find(|(_, name)| *name == fault).ok_or_else(wrong)?.0;
        let (at, away) = match rest.split_once("+away:") {
            Some((at, millis)) => (at, Some(Duration::from_millis(number(millis, wrong)?))),
            None => (rest, None),
        };
        let at = match *at.split(':').collect::<Vec<_>>() {
            [nth] => At::Message(number(nth, wrong)?),
            ["commit", nth] => At::Commit(number(nth, wrong)?),
            ["every", count] => At::Every(number(count, wrong)?),
            [side @ ("client" | "server"), kind, nth] if kind.len() == 1 => {
                let side = if side == "client" { Side::Client } else { Side::Server };
                At::Kind(side, kind.as_bytes()[0], number(nth, wrong)?)
            }
            _ => return Err(wrong()),
        };
        Ok(Plan { fault, at, away })
    }
}

fn number(text: &str, wrong: impl Fn() -> String) -> Result<u64, String> {
    text.parse().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_run_again() {
        for text in [
            "cut@137",
            "cut-inside@client:d:3",
            "stall@server:G:1+away:500",
            "swallow-commit@commit:2",
            "cut@every:97",
        ] {
            assert_eq!(text.parse::<Plan>().unwrap().to_string(), text);
        }
        for text in ["", "cut", "cat@1", "cut@x", "cut@client:dd:1", "cut@1+away:"] {
            text.parse::<Plan>().unwrap_err();
        }
    }
}
