//! Reads the bytes of a replication message in order.
//!
//! Missing bytes are an error, and so are bytes that are left over.

use super::pgoutput::malformed;
use crate::Result;

/// The bytes of a message, and the bytes that have not been read.
pub(super) struct MessageBytes<'a> {
    all: &'a [u8],
    rest: &'a [u8],
}

impl<'a> MessageBytes<'a> {
    pub(super) fn new(message: &'a [u8]) -> MessageBytes<'a> {
        MessageBytes { all: message, rest: message }
    }

    /// Returns the first byte of the message, which tells its kind.
    pub(super) fn tag(&self) -> u8 {
        self.all.first().copied().unwrap_or(0)
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or_else(truncated_error)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(truncated_error)?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// Reads a text up to its zero byte.
    pub(super) fn text(&mut self) -> Result<&'a str> {
        let end = memchr::memchr(0, self.rest).ok_or_else(truncated_error)?;
        let bytes = self.bytes(end)?;
        self.byte()?;
        std::str::from_utf8(bytes).map_err(|_| malformed("a name is not UTF-8"))
    }

    /// Returns all remaining bytes.
    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Checks that no bytes are left.
    pub(super) fn end(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(malformed("a message is too long")) }
    }
}

fn truncated_error() -> crate::Error {
    malformed("a message is cut off")
}
