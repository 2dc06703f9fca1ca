//! Decompression: which kind it is, and a reader of what the stored bytes hold.
//!
//! The kind is known by the first bytes alone, never by a name. Data that ends inside a member or
//! does not decode is an error with the offset of the stored byte; it never becomes a short read.

mod members;
mod xz;
mod zstd;

use std::fmt;
use std::io::{self, BufRead, Read};
use std::sync::Arc;

use self::members::Members;
use super::{Progress, fault};
use crate::{Error, ErrorKind, InputPlace, Result};

/// How many first bytes [`Compression::detect`] wants to see.
pub(super) const MAGIC_BYTES: usize = 10;

/// How the stored bytes of an input are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip, also of several members (as bgzip and pigz write it).
    Gzip,
    /// Zstandard, also of several and of skippable frames.
    Zstd,
    /// bzip2, also of several streams.
    Bzip2,
    /// xz, also of several streams.
    Xz,
}

impl Compression {
    /// Its name as a user would write it: `none`, `gzip`, `zstd`, `bzip2`, `xz`.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Bzip2 => "bzip2",
            Compression::Xz => "xz",
        }
    }

    /// Recognises the compression of an input by `head`, its first stored bytes. `head` shorter
    /// than [`MAGIC_BYTES`] is the whole input.
    ///
    /// # Errors
    /// Archives and compressions that pgspate does not read, and inputs that end inside the very
    /// signature of a compression. `name` is used for the message, and its suffix only to tell a
    /// cut-off file from a tiny text that happens to look like one.
    pub(super) fn detect(head: &[u8], name: &str) -> Result<Compression> {
        if head.starts_with(&[0x1f, 0x8b]) {
            return Ok(Compression::Gzip);
        }
        if head.starts_with(&ZSTD) || is_skippable_frame(head) {
            return Ok(Compression::Zstd);
        }
        if head.starts_with(&XZ) {
            return Ok(Compression::Xz);
        }
        if is_bzip2(head) {
            return Ok(Compression::Bzip2);
        }
        if let Some((what, remedy)) = foreign(head) {
            let message = format!("\"{name}\" is {what}, which pgspate does not read");
            return Err(fault(name, message).hint(remedy));
        }
        if head.len() < MAGIC_BYTES
            && let Some(cut) = cut_signature(head, name)
        {
            return Err(ends_early(cut, name, head.len() as u64));
        }
        Ok(Compression::None)
    }

    fn decoder(self) -> Result<Box<dyn Decoder>> {
        Ok(match self {
            Compression::None => {
                return Err(Error::new(
                    ErrorKind::Bug,
                    "no decoder for data that is not compressed",
                ));
            }
            Compression::Gzip => Box::new(Members::<flate2::Decompress>::new()),
            Compression::Zstd => Box::new(zstd::Zstd::new()?),
            Compression::Bzip2 => Box::new(Members::<bzip2::Decompress>::new()),
            Compression::Xz => Box::new(xz::Xz::new()?),
        })
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const XZ: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];

fn is_skippable_frame(head: &[u8]) -> bool {
    matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// "BZh" alone could begin a text; the ten bytes with a block's or the end's own mark cannot.
fn is_bzip2(head: &[u8]) -> bool {
    const BLOCK: [u8; 6] = [0x31, 0x41, 0x59, 0x26, 0x53, 0x59];
    const END: [u8; 6] = [0x17, 0x72, 0x45, 0x38, 0x50, 0x90];
    matches!(head, [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..]
        if rest.starts_with(&BLOCK) || rest.starts_with(&END))
}

fn foreign(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let known: [(&[u8], _, _); 5] = [
        (
            b"PK\x03\x04",
            "a zip archive (or a spreadsheet)",
            "Unpack it, or export the sheet to CSV, and name the files inside.",
        ),
        (
            &[0x04, 0x22, 0x4d, 0x18],
            "compressed with lz4",
            "Decompress it through a pipe: `lz4 -dc FILE | pgspate load - ...`.",
        ),
        (
            &[0x1f, 0x9d],
            "compressed with compress(1)",
            "Decompress it through a pipe: `zcat FILE | pgspate load - ...`.",
        ),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "Unpack it and name the files inside."),
        (
            b"\xff\x06\x00\x00sNaPpY",
            "a snappy stream",
            "Decompress it through a pipe: `snzip -dc FILE | pgspate load - ...`.",
        ),
    ];
    known.iter().find(|(magic, ..)| head.starts_with(magic)).map(|(_, what, how)| (*what, *how))
}

/// The compression whose signature `head`, a whole input, breaks off in.
fn cut_signature(head: &[u8], name: &str) -> Option<Compression> {
    let name = name.to_ascii_lowercase();
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
    let begins = |magic: &[u8], sure: usize| magic.starts_with(head) && head.len() >= sure;
    // `sure`: from how many bytes on it cannot be a text. The suffix decides below that.
    if begins(&[0x1f, 0x8b], if ends(&[".gz", ".tgz"]) { 0 } else { 1 }) {
        return Some(Compression::Gzip);
    }
    if begins(&ZSTD, if ends(&[".zst", ".zstd"]) { 0 } else { 2 }) {
        return Some(Compression::Zstd);
    }
    if begins(&XZ, if ends(&[".xz"]) { 0 } else { 1 }) {
        return Some(Compression::Xz);
    }
    let level = matches!(head.get(3), None | Some(b'1'..=b'9'));
    let block: &[u8] = head.get(4..).unwrap_or_default();
    if ends(&[".bz2", ".bz"])
        && b"BZh".starts_with(&head[..head.len().min(3)])
        && level
        && b"1AY&SY".starts_with(block)
    {
        return Some(Compression::Bzip2);
    }
    None
}

fn ends_early(compression: Compression, name: &str, offset: u64) -> Error {
    fault(name, format!("{compression} data ends early at byte {offset}"))
        .hint("The file is cut off; copy or download it again.")
}

/// What one call of a decoder did.
struct Step {
    read: usize,
    written: usize,
}

/// Why a decoder refused its input.
struct Fault {
    /// Offset of the fault in the input of this call.
    read: usize,
    why: String,
}

/// One kind of decompression, without I/O.
trait Decoder: Send {
    /// Decodes from `input` into `output` (never empty). An empty `input` says that there is no
    /// more of it.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Fault>;

    /// Whether the data may properly end here.
    fn is_whole(&self) -> bool;
}

/// Reads what `source` holds in its compressed form.
pub(super) struct Decoded<R> {
    source: R,
    decoder: Box<dyn Decoder>,
    compression: Compression,
    name: Arc<str>,
    progress: Arc<Progress>,
    offset: u64,
}

impl<R: BufRead> Decoded<R> {
    /// A reader over `source`, which stands at the first stored byte.
    pub(super) fn new(
        source: R,
        compression: Compression,
        name: Arc<str>,
        progress: Arc<Progress>,
    ) -> Result<Decoded<R>> {
        let decoder = compression.decoder()?;
        Ok(Decoded { source, decoder, compression, name, progress, offset: 0 })
    }

    fn corrupt(&self, fault: Fault) -> Error {
        let offset = self.offset + fault.read as u64;
        Error::new(
            ErrorKind::Source,
            format!("could not decompress {} data at byte {offset}", self.compression),
        )
        .at(InputPlace { source: Some(self.name.to_string()), ..InputPlace::default() })
        .because(fault.why)
    }
}

impl<R: BufRead> Read for Decoded<R> {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        if output.is_empty() {
            return Ok(0);
        }
        let mut idle = 0;
        loop {
            let input = match self.source.fill_buf() {
                Ok(input) => input,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let end = input.is_empty();
            let step = match self.decoder.step(input, output) {
                Ok(step) => step,
                Err(fault) => return Err(io::Error::other(self.corrupt(fault))),
            };
            self.source.consume(step.read);
            self.offset += step.read as u64;
            self.progress.add(step.read as u64);
            if step.written > 0 {
                return Ok(step.written);
            }
            if step.read > 0 {
                idle = 0;
                continue;
            }
            if end && self.decoder.is_whole() {
                return Ok(0);
            }
            // A decoder may need a second call to see that it is stuck, never a fourth.
            idle += 1;
            if idle > 2 {
                return Err(io::Error::other(match end {
                    true => ends_early(self.compression, &self.name, self.offset),
                    false => self.corrupt(Fault { read: 0, why: "it makes no progress".into() }),
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests;
