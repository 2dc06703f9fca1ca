//! gzip members and bzip2 streams, one after the other.
//!
//! As gzip(1) does, zeros after the last one are padding; anything else there is an error. The
//! checksum and length of each are verified.

use flate2::FlushDecompress;

use super::{Decoder, Fault, Step};

/// The largest window that gzip has; every file fits it.
const WINDOW_BITS: u8 = 15;

/// Decodes one member.
pub(super) trait Member: Send {
    /// The first byte of a member.
    const FIRST: u8;

    /// Before its first byte.
    fn start() -> Self;

    /// Decodes some of it; whether it has come to its end, or why it is not valid.
    fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<bool, String>;

    /// How many bytes were read, and written.
    fn totals(&self) -> (u64, u64);
}

impl Member for flate2::Decompress {
    const FIRST: u8 = 0x1f;

    fn start() -> Self {
        flate2::Decompress::new_gzip(WINDOW_BITS)
    }

    fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<bool, String> {
        let status = self.decompress(input, output, FlushDecompress::None);
        let status = status.map(|status| status == flate2::Status::StreamEnd);
        status.map_err(|error| error.message().unwrap_or("it is not valid").to_owned())
    }

    fn totals(&self) -> (u64, u64) {
        (self.total_in(), self.total_out())
    }
}

impl Member for bzip2::Decompress {
    const FIRST: u8 = b'B';

    fn start() -> Self {
        bzip2::Decompress::new(false)
    }

    fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<bool, String> {
        let status = self.decompress(input, output);
        let status = status.map(|status| status == bzip2::Status::StreamEnd);
        status.map_err(|error| match error {
            bzip2::Error::Data => "a block or its checksum is not valid".to_owned(),
            bzip2::Error::DataMagic => "a stream does not begin with BZh".to_owned(),
            bzip2::Error::Sequence | bzip2::Error::Param => "it is not valid".to_owned(),
        })
    }

    fn totals(&self) -> (u64, u64) {
        (self.total_in(), self.total_out())
    }
}

/// Decodes members.
pub(super) struct Members<M> {
    member: M,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Inside,
    Between,
    Padding,
    /// The library must not be called again after an error.
    Broken,
}

impl<M: Member> Members<M> {
    pub(super) fn new() -> Members<M> {
        Members { member: M::start(), state: State::Inside }
    }

    fn inside(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        let (read_before, written_before) = self.member.totals();
        let decoded = self.member.decode(input, output);
        let (read, written) = self.member.totals();
        let (read, written) = ((read - read_before) as usize, (written - written_before) as usize);
        match decoded {
            Ok(true) => self.state = State::Between,
            Ok(false) => {}
            Err(why) => {
                self.state = State::Broken;
                return Err(Fault { read, why });
            }
        }
        Ok(Step { read, written })
    }
}

impl<M: Member> Decoder for Members<M> {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        match (self.state, input.first()) {
            (State::Inside, _) => self.inside(input, output),
            (State::Broken, _) => Err(Fault { read: 0, why: "it is not valid".to_owned() }),
            (_, None) => Ok(Step { read: 0, written: 0 }),
            (State::Between, Some(first)) if *first == M::FIRST => {
                *self = Members::new();
                self.inside(input, output)
            }
            _ => {
                self.state = State::Padding;
                match input.iter().position(|&byte| byte != 0) {
                    None => Ok(Step { read: input.len(), written: 0 }),
                    Some(read) => {
                        Err(Fault { read, why: "other bytes follow the end of the data".into() })
                    }
                }
            }
        }
    }

    fn is_whole(&self) -> bool {
        matches!(self.state, State::Between | State::Padding)
    }
}
