//! bzip2 streams, one after the other.
//!
//! Zeros after the last stream are padding, as for gzip; anything else there is an error.

use bzip2::{Decompress, Error, Status};

use super::{Decoder, Fault, Step};

pub(super) struct Bzip2 {
    raw: Decompress,
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

impl Bzip2 {
    pub(super) fn new() -> Bzip2 {
        Bzip2 { raw: Decompress::new(false), state: State::Inside }
    }

    fn inside(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        let (read_before, written_before) = (self.raw.total_in(), self.raw.total_out());
        let status = self.raw.decompress(input, output);
        let read = (self.raw.total_in() - read_before) as usize;
        let written = (self.raw.total_out() - written_before) as usize;
        match status {
            Ok(Status::StreamEnd) => self.state = State::Between,
            Ok(_) => {}
            Err(error) => {
                self.state = State::Broken;
                let why = match error {
                    Error::Data => "a block or its checksum is not valid",
                    Error::DataMagic => "a stream does not begin with BZh",
                    Error::Sequence | Error::Param => "it is not valid",
                };
                return Err(Fault { read, why: why.to_owned() });
            }
        }
        Ok(Step { read, written })
    }
}

impl Decoder for Bzip2 {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        match (self.state, input.first()) {
            (State::Inside, _) => self.inside(input, output),
            (State::Broken, _) => Err(Fault { read: 0, why: "it is not valid".to_owned() }),
            (_, None) => Ok(Step { read: 0, written: 0 }),
            (State::Between, Some(b'B')) => {
                *self = Bzip2::new();
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
