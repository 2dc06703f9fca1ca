//! Checks sizes that an input states, before memory is allocated for these sizes.
//!
//! A stated size must not exceed the size to which the stored bytes can decompress, and this much
//! memory must be available. A failed allocation in a decoder would end the process.

use std::fmt;

/// The codec of compressed values within a columnar file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnCodec {
    Snappy,
    Gzip,
    Lz4,
    Zstd,
    Brotli,
}

impl ColumnCodec {
    /// Returns the largest size that `stored` compressed bytes can decompress to.
    pub(super) fn expanded_bytes_max(self, stored: u64) -> u64 {
        // Brotli repeats 16 MiB with a few bits, so any ratio is possible. For the other codecs,
        // the longest copy of the shortest command or the largest block of the shortest encoding
        // gives the ratio.
        let (times, more) = match self {
            ColumnCodec::Snappy => (32, 64),
            ColumnCodec::Gzip => (1_040, 1 << 10),
            ColumnCodec::Lz4 => (256, 1 << 10),
            ColumnCodec::Zstd => (128 << 10, 128 << 10),
            ColumnCodec::Brotli => return u64::MAX,
        };
        stored.saturating_mul(times).saturating_add(more)
    }
}

impl fmt::Display for ColumnCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ColumnCodec::Snappy => "snappy",
            ColumnCodec::Gzip => "gzip",
            ColumnCodec::Lz4 => "lz4",
            ColumnCodec::Zstd => "zstd",
            ColumnCodec::Brotli => "brotli",
        })
    }
}

/// Checks that `stored` bytes can decompress to `stated` bytes, which are at most `limit` and fit
/// into memory.
///
/// # Errors
/// A message with the stated size and the largest size that was expected.
pub(super) fn check_stated_size(
    stated: u64,
    codec: ColumnCodec,
    stored: u64,
    limit: u64,
) -> Result<(), String> {
    let bytes_max = codec.expanded_bytes_max(stored);
    if stated > bytes_max {
        return Err(format!(
            "states {stated} bytes, but its {stored} bytes of {codec} decompress to at most \
             {bytes_max}"
        ));
    }
    if stated > limit {
        return Err(format!("states {stated} bytes, expected at most {limit}"));
    }
    check_memory(stated).map_err(|why| format!("states {stated} bytes, {why}"))
}

/// The smallest size whose memory is checked.
const CHECKED_BYTES_MIN: u64 = 8 << 20;

/// Checks that `bytes` bytes of memory are available.
///
/// # Errors
/// A message if this much memory is not available.
pub(super) fn check_memory(bytes: u64) -> Result<(), String> {
    if bytes < CHECKED_BYTES_MIN {
        return Ok(());
    }
    let len = usize::try_from(bytes).unwrap_or(usize::MAX);
    match Vec::<u8>::new().try_reserve_exact(len) {
        Ok(()) => Ok(()),
        Err(_) => Err(format!("but {bytes} bytes of memory are not available")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_sizes_are_refused() {
        assert_eq!(check_stated_size(32 * 100, ColumnCodec::Snappy, 100, u64::MAX), Ok(()));
        assert_eq!(
            check_stated_size(1 << 40, ColumnCodec::Lz4, 10, u64::MAX).unwrap_err(),
            "states 1099511627776 bytes, but its 10 bytes of lz4 decompress to at most 3584"
        );
        assert_eq!(
            check_stated_size(1 << 40, ColumnCodec::Brotli, 10, 1 << 30).unwrap_err(),
            "states 1099511627776 bytes, expected at most 1073741824"
        );
        assert!(check_memory(u64::MAX).is_err());
        assert!(check_memory(1 << 60).is_err());
        assert!(check_memory(64 << 20).is_ok());
    }

    /// Uses zeros, which compress best.
    #[test]
    fn no_compression_exceeds_the_largest_ratio() {
        use std::io::Write;
        let zeros = vec![0_u8; 16 << 20];
        let zstd = zstd::bulk::compress(&zeros, 19).unwrap();
        assert!(ColumnCodec::Zstd.expanded_bytes_max(zstd.len() as u64) >= zeros.len() as u64);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        gzip.write_all(&zeros).unwrap();
        let gzip = gzip.finish().unwrap();
        assert!(
            ColumnCodec::Gzip.expanded_bytes_max(gzip.len() as u64) >= zeros.len() as u64,
            "{}",
            gzip.len()
        );
    }
}
