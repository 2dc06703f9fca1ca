//! Recognises how an input is compressed, and decompresses it.
//!
//! The first bytes alone decide the compression, never the file's name. Data that is cut off or
//! damaged is an error with the offset of the stored byte, never a short read.

mod members;
mod xz;
mod zstd;

use std::fmt;
use std::io::{self, BufRead, Read};
use std::sync::Arc;

use self::members::MemberDecompressor;
use super::{ReadProgress, source_error};
use crate::{Error, ErrorKind, InputPlace, Result};

/// The number of first bytes that [`Compression::detect`] needs.
pub(super) const MAGIC_BYTES: usize = 10;

/// How the stored bytes of an input are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not compressed.
    None,
    /// gzip, of one or several members (bgzip and pigz write several).
    Gzip,
    /// Zstandard, of one or several frames; skippable frames are skipped.
    Zstd,
    /// bzip2, of one or several streams.
    Bzip2,
    /// xz, of one or several streams.
    Xz,
}

impl Compression {
    /// Returns the compression's name: `none`, `gzip`, `zstd`, `bzip2`, `xz`.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
            Compression::Bzip2 => "bzip2",
            Compression::Xz => "xz",
        }
    }

    /// Recognises the compression of an input from `head`, the first stored bytes of the input. If
    /// `head` is shorter than [`MAGIC_BYTES`], `head` is the whole input.
    ///
    /// # Errors
    /// [`ErrorKind::Source`] if pgspate does not read the archive or compression that `head`
    /// begins, or if the input ends within a compression's signature. The message shows `name`. The
    /// suffix of `name` only distinguishes a truncated file from a short text with the same bytes.
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
        if let Some((description, remedy)) = unsupported_archive(head) {
            let message = format!("\"{name}\" is {description}, which pgspate does not read");
            return Err(source_error(name, message).hint(remedy));
        }
        if head.len() < MAGIC_BYTES
            && let Some(cut) = truncated_signature(head, name)
        {
            return Err(ends_early_error(cut, name, head.len() as u64));
        }
        Ok(Compression::None)
    }

    fn decoder(self) -> Result<Box<dyn Decompressor>> {
        Ok(match self {
            Compression::None => {
                return Err(Error::new(
                    ErrorKind::Bug,
                    "no decoder for data that is not compressed",
                ));
            }
            Compression::Gzip => Box::new(MemberDecompressor::<flate2::Decompress>::new()),
            Compression::Zstd => Box::new(zstd::ZstdDecompressor::new()?),
            Compression::Bzip2 => Box::new(MemberDecompressor::<bzip2::Decompress>::new()),
            Compression::Xz => Box::new(xz::XzDecompressor::new()?),
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

/// Returns whether `head` begins bzip2 data. A text may begin with `BZh`, so the ten bytes up to
/// the mark of a block or of the end are compared.
fn is_bzip2(head: &[u8]) -> bool {
    const BLOCK: [u8; 6] = [0x31, 0x41, 0x59, 0x26, 0x53, 0x59];
    const END: [u8; 6] = [0x17, 0x72, 0x45, 0x38, 0x50, 0x90];
    matches!(head, [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..]
        if rest.starts_with(&BLOCK) || rest.starts_with(&END))
}

/// Returns the description of an archive that pgspate does not read, and a hint.
fn unsupported_archive(head: &[u8]) -> Option<(&'static str, &'static str)> {
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
    known
        .iter()
        .find(|(magic, ..)| head.starts_with(magic))
        .map(|(_, description, hint)| (*description, *hint))
}

/// Returns the compression whose signature `head` begins but does not complete. `head` is the whole
/// input.
fn truncated_signature(head: &[u8], name: &str) -> Option<Compression> {
    let name = name.to_ascii_lowercase();
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
    // From `len_min` bytes on, `head` cannot be a text. A shorter `head` needs the suffix.
    let begins = |magic: &[u8], len_min: usize| magic.starts_with(head) && head.len() >= len_min;
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

fn ends_early_error(compression: Compression, name: &str, offset: u64) -> Error {
    source_error(name, format!("{compression} data ends early at byte {offset}"))
        .hint("The file is cut off; copy or download it again.")
}

/// The numbers of bytes that one call of a decompressor read and wrote.
struct DecompressStep {
    read: usize,
    written: usize,
}

/// Why a decompressor rejected its input.
struct DecompressFault {
    /// The offset of the fault within the input of this call.
    offset: usize,
    /// The reason, for messages.
    why: String,
}

/// A decompression algorithm without I/O.
trait Decompressor: Send {
    /// Decompresses from `input` into `output`. `output` is never empty. An empty `input` means
    /// that the input has ended.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<DecompressStep, DecompressFault>;

    /// Returns whether the compressed data is complete at this point.
    fn is_complete(&self) -> bool;
}

/// Reads the decompressed form of the bytes of `source`.
pub(super) struct DecompressedReader<R> {
    source: R,
    decoder: Box<dyn Decompressor>,
    compression: Compression,
    name: Arc<str>,
    progress: Arc<ReadProgress>,
    /// The number of stored bytes that were decompressed.
    offset: u64,
}

impl<R: BufRead> DecompressedReader<R> {
    /// Returns a reader over `source`, whose next byte is the first stored byte.
    pub(super) fn new(
        source: R,
        compression: Compression,
        name: Arc<str>,
        progress: Arc<ReadProgress>,
    ) -> Result<DecompressedReader<R>> {
        let decoder = compression.decoder()?;
        Ok(DecompressedReader { source, decoder, compression, name, progress, offset: 0 })
    }

    fn corrupt_error(&self, fault: DecompressFault) -> Error {
        let offset = self.offset + fault.offset as u64;
        Error::new(
            ErrorKind::Source,
            format!("could not decompress {} data at byte {offset}", self.compression),
        )
        .at(InputPlace { source: Some(self.name.to_string()), ..InputPlace::default() })
        .because(fault.why)
    }
}

impl<R: BufRead> Read for DecompressedReader<R> {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        if output.is_empty() {
            return Ok(0);
        }
        let mut calls_without_progress = 0;
        loop {
            let input = match self.source.fill_buf() {
                Ok(input) => input,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let is_at_end = input.is_empty();
            let step = match self.decoder.step(input, output) {
                Ok(step) => step,
                Err(fault) => return Err(io::Error::other(self.corrupt_error(fault))),
            };
            self.source.consume(step.read);
            self.offset += step.read as u64;
            self.progress.add(step.read as u64);
            if step.written > 0 {
                return Ok(step.written);
            }
            if step.read > 0 {
                calls_without_progress = 0;
                continue;
            }
            if is_at_end && self.decoder.is_complete() {
                return Ok(0);
            }
            // One or two calls may make no progress. After three such calls the decompressor is
            // stuck.
            calls_without_progress += 1;
            if calls_without_progress > 2 {
                return Err(io::Error::other(match is_at_end {
                    true => ends_early_error(self.compression, &self.name, self.offset),
                    false => self.corrupt_error(DecompressFault {
                        offset: 0,
                        why: "the decompressor makes no progress".into(),
                    }),
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests;
