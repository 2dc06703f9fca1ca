//! Decompresses a sequence of gzip members or of bzip2 streams.
//!
//! Zeros after the last member are padding, as in gzip(1). Other bytes after the last member are an
//! error. The checksum and length of each member are verified.

use flate2::FlushDecompress;

use super::{DecompressFault, DecompressStep, Decompressor};

/// The size of gzip's largest window, with which every gzip file can be decompressed.
const WINDOW_BITS: u8 = 15;

/// The decoder of one member, provided by a compression library.
pub(super) trait MemberDecoder: Send {
    /// The first byte of a member.
    const FIRST: u8;

    /// Returns a decompressor for a new member.
    fn start() -> Self;

    /// Decompresses some bytes. Returns whether the member has ended, or says why it is invalid.
    fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<bool, String>;

    /// Returns the total numbers of bytes read and written since the start of the member.
    fn totals(&self) -> (u64, u64);
}

impl MemberDecoder for flate2::Decompress {
    const FIRST: u8 = 0x1f;

    fn start() -> Self {
        flate2::Decompress::new_gzip(WINDOW_BITS)
    }

    fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<bool, String> {
        let status = self.decompress(input, output, FlushDecompress::None);
        let status = status.map(|status| status == flate2::Status::StreamEnd);
        status.map_err(|error| error.message().unwrap_or("the data is not valid").to_owned())
    }

    fn totals(&self) -> (u64, u64) {
        (self.total_in(), self.total_out())
    }
}

impl MemberDecoder for bzip2::Decompress {
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
            bzip2::Error::Sequence | bzip2::Error::Param => "the data is not valid".to_owned(),
        })
    }

    fn totals(&self) -> (u64, u64) {
        (self.total_in(), self.total_out())
    }
}

/// Decompresses a sequence of members.
pub(super) struct MemberDecompressor<M> {
    member: M,
    state: MemberState,
}

/// Where the next input byte is.
#[derive(Clone, Copy, PartialEq)]
enum MemberState {
    InsideMember,
    BetweenMembers,
    Padding,
    /// An error was reported. The library must not be called again.
    Broken,
}

impl<M: MemberDecoder> MemberDecompressor<M> {
    pub(super) fn new() -> MemberDecompressor<M> {
        MemberDecompressor { member: M::start(), state: MemberState::InsideMember }
    }

    fn decode_member(
        &mut self,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<DecompressStep, DecompressFault> {
        let (read_before, written_before) = self.member.totals();
        let decoded = self.member.decode(input, output);
        let (read, written) = self.member.totals();
        let (read, written) = ((read - read_before) as usize, (written - written_before) as usize);
        match decoded {
            Ok(true) => self.state = MemberState::BetweenMembers,
            Ok(false) => {}
            Err(why) => {
                self.state = MemberState::Broken;
                return Err(DecompressFault { offset: read, why });
            }
        }
        Ok(DecompressStep { read, written })
    }
}

impl<M: MemberDecoder> Decompressor for MemberDecompressor<M> {
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<DecompressStep, DecompressFault> {
        match (self.state, input.first()) {
            (MemberState::InsideMember, _) => self.decode_member(input, output),
            (MemberState::Broken, _) => {
                Err(DecompressFault { offset: 0, why: "the data is not valid".to_owned() })
            }
            (_, None) => Ok(DecompressStep { read: 0, written: 0 }),
            (MemberState::BetweenMembers, Some(first)) if *first == M::FIRST => {
                *self = MemberDecompressor::new();
                self.decode_member(input, output)
            }
            _ => {
                self.state = MemberState::Padding;
                match input.iter().position(|&byte| byte != 0) {
                    None => Ok(DecompressStep { read: input.len(), written: 0 }),
                    Some(read) => Err(DecompressFault {
                        offset: read,
                        why: "other bytes follow the end of the data".into(),
                    }),
                }
            }
        }
    }

    fn is_complete(&self) -> bool {
        matches!(self.state, MemberState::BetweenMembers | MemberState::Padding)
    }
}
