//! A fault, and the message at which the fault happens. Both have a text form, with which a failed
//! trial can be run again.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::protocol::MessageSide;

/// A fault at one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The connection is closed on both sides before the message is passed on.
    Cut,
    /// Half of the message is passed on, and then the connection is closed.
    CutInside,
    /// The whole message is passed on, and then the connection is closed.
    CutAfter,
    /// The message is passed on, and then the client's side is closed. The server's side stays open
    /// until the test releases the connection, so the server continues with the bytes that it has.
    Lose,
    /// The connection stays open, but the proxy passes nothing on until the test releases it.
    Stall,
    /// The commit is passed on. The server's reply is dropped and the connection closed.
    SwallowCommit,
}

/// The message at which the fault happens. Numbers start at 1 and count over all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultPlace {
    /// The nth message of either side.
    Message(u64),
    /// The nth message that commits.
    Commit(u64),
    /// The nth message of one side and type.
    Kind(MessageSide, u8, u64),
    /// Every nth message, repeatedly.
    Every(u64),
}

/// One fault of one load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FaultPlan {
    pub(crate) fault: Fault,
    pub(crate) at: FaultPlace,
    /// How long the server refuses connections after the fault. The fault also cuts all
    /// connections.
    pub(crate) away: Option<Duration>,
}

impl FaultPlan {
    pub(crate) fn new(fault: Fault, at: FaultPlace) -> FaultPlan {
        FaultPlan { fault, at, away: None }
    }

    /// Returns the plan with a server that refuses connections for this time after the fault.
    pub(crate) fn away(self, time: Duration) -> FaultPlan {
        FaultPlan { away: Some(time), ..self }
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

/// Writes a plan as `cut@137`, `cut-after@commit:2` or `stall@server:G:1`. Adds `+away:500` if the
/// server refuses connections for 500 ms after the fault.
impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@", self.fault)?;
        match self.at {
            FaultPlace::Message(nth) => write!(f, "{nth}")?,
            FaultPlace::Commit(nth) => write!(f, "commit:{nth}")?,
            FaultPlace::Every(count) => write!(f, "every:{count}")?,
            FaultPlace::Kind(MessageSide::Client, kind, nth) => {
                write!(f, "client:{}:{nth}", char::from(kind))?
            }
            FaultPlace::Kind(MessageSide::Server, kind, nth) => {
                write!(f, "server:{}:{nth}", char::from(kind))?
            }
        }
        match self.away {
            Some(time) => write!(f, "+away:{}", time.as_millis()),
            None => Ok(()),
        }
    }
}

impl FromStr for FaultPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<FaultPlan, String> {
        let wrong = || {
            format!("\"{text}\" is not a fault; expected for example cut@137 or stall@server:G:1")
        };
        let (fault, rest) = text.split_once('@').ok_or_else(wrong)?;
        let fault = FAULTS.iter().find(|(_, name)| *name == fault).ok_or_else(wrong)?.0;
        let (at, away) = match rest.split_once("+away:") {
            Some((at, millis)) => (at, Some(Duration::from_millis(parse_number(millis, wrong)?))),
            None => (rest, None),
        };
        let at = match *at.split(':').collect::<Vec<_>>() {
            [nth] => FaultPlace::Message(parse_number(nth, wrong)?),
            ["commit", nth] => FaultPlace::Commit(parse_number(nth, wrong)?),
            ["every", count] => FaultPlace::Every(parse_number(count, wrong)?),
            [side @ ("client" | "server"), kind, nth] if kind.len() == 1 => {
                let side = if side == "client" { MessageSide::Client } else { MessageSide::Server };
                FaultPlace::Kind(side, kind.as_bytes()[0], parse_number(nth, wrong)?)
            }
            _ => return Err(wrong()),
        };
        Ok(FaultPlan { fault, at, away })
    }
}

fn parse_number(text: &str, wrong: impl Fn() -> String) -> Result<u64, String> {
    text.parse().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_fault_parses_to_the_same_fault() {
        for text in [
            "cut@137",
            "cut-inside@client:d:3",
            "stall@server:G:1+away:500",
            "swallow-commit@commit:2",
            "cut@every:97",
        ] {
            assert_eq!(text.parse::<FaultPlan>().unwrap().to_string(), text);
        }
        for text in ["", "cut", "cat@1", "cut@x", "cut@client:dd:1", "cut@1+away:"] {
            text.parse::<FaultPlan>().unwrap_err();
        }
    }
}
