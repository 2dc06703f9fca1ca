//! gzip members, one after the other.
//!
//! As gzip(1) does, zeros after the last member are padding; anything else there is an error.
//! Each member's checksum and length are verified.

use flate2::{Decompress, FlushDecompress, Status};

use super::{Decoder, Fault, Step};

/// The largest window there is; every gzip file fits it.
const WINDOW_BITS: u8 = 15;

pub(super) struct Gzip {
    inflate: Decompress,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Inside,
    Between,
    Padding,
}

impl Gzip {
    pub(super) fn new() -> Gzip {
        Gzip { inflate: Decompress::new_gzip(WINDOW_BITS), state: State::Inside }
    }

    fn inside(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        let (read_before, written_before) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self.inflate.decompress(input, output, FlushDecompress::None);
        let read = (self.inflate.total_in() - read_before) as usize;
        let written = (self.inflate.total_out() - written_before) as usize;
        match status {
            Ok(Status::StreamEnd) => self.state = State::Between,
            Ok(Status::Ok | Status::BufError) => {}
            Err(error) => {
                let why = error.message().unwrap_or("it is not valid").to_owned();
                return Err(Fault { read, why });
            }
        }
        Ok(Step { read, written })
    }
}

impl Decoder for Gzip {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault> {
        match (self.state, input.first()) {
            (State::Inside, _) => self.inside(input, output),
            (_, None) => Ok(Step { read: 0, written: 0 }),
            (State::Between, Some(0x1f)) => {
                *self = Gzip::new();
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
        self.state != State::Inside
    }
}
