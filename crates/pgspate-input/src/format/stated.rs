//! Sizes that input states, checked before memory is taken by them.
//!
//! A stated size is believed only up to what the stored bytes can become, and only if the memory is
//! there: a failed allocation of a decoder's would end the process.

use std::fmt;

/// How values are compressed within a columnar file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Snappy,
    Gzip,
    Lz4,
    Zstd,
    Brotli,
}

impl Packing {
    /// The most bytes that `stored` compressed bytes can become.
    pub(super) fn most(self, stored: u64) -> u64 {
        // Brotli repeats 16 MiB by a few bits, so that any ratio is possible. Of the others: the
        // longest copy by the shortest command, or the largest block by the shortest.
        let (times, more) = match self {
            Packing::Snappy => (32, 64),
            Packing::Gzip => (1_040, 1 << 10),
            Packing::Lz4 => (256, 1 << 10),
            Packing::Zstd => (128 << 10, 128 << 10),
            Packing::Brotli => return u64::MAX,
        };
        stored.saturating_mul(times).saturating_add(more)
    }
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Packing::Snappy => "snappy",
            Packing::Gzip => "gzip",
            Packing::Lz4 => "lz4",
            Packing::Zstd => "zstd",
            Packing::Brotli => "brotli",
        })
    }
}

/// Checks that `stated` bytes can come of `stored` ones, are at most `limit`, and fit into memory.
///
/// # Errors
/// What was stated, and what at most was expected.
pub(super) fn check(stated: u64, packing: Packing, stored: u64, limit: u64) -> Result<(), String> {
    let most = packing.most(stored);
    if stated > most {
        return Err(format!(
            "states {stated} bytes, but its {stored} bytes of {packing} become {most} at most"
        ));
    }
    if stated > limit {
        return Err(format!("states {stated} bytes, expected {limit} at most"));
    }
    check_room(stated).map_err(|why| format!("states {stated} bytes, {why}"))
}

/// Sizes below this are not tried out.
const ROOM_BYTES_MIN: u64 = 8 << 20;

/// Checks that so much memory can be had.
///
/// # Errors
/// That it cannot.
pub(super) fn check_room(bytes: u64) -> Result<(), String> {
    if bytes < ROOM_BYTES_MIN {
        return Ok(());
    }
    let len = usize::try_from(bytes).unwrap_or(usize::MAX);
    match Vec::<u8>::new().try_reserve_exact(len) {
        Ok(()) => Ok(()),
        Err(_) => Err(format!("for which {bytes} bytes of memory could not be had")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_come_of_the_stored_bytes_is_refused() {
        assert_eq!(check(32 * 100, Packing::Snappy, 100, u64::MAX), Ok(()));
        assert_eq!(
            check(1 << 40, Packing::Lz4, 10, u64::MAX).unwrap_err(),
            "states 1099511627776 bytes, but its 10 bytes of lz4 become 3584 at most"
        );
        assert_eq!(
            check(1 << 40, Packing::Brotli, 10, 1 << 30).unwrap_err(),
            "states 1099511627776 bytes, expected 1073741824 at most"
        );
        assert!(check_room(u64::MAX).is_err());
        assert!(check_room(1 << 60).is_err());
        assert!(check_room(64 << 20).is_ok());
    }

    /// Zeros are what compresses best.
    #[test]
    fn the_best_compression_there_is_stays_within_the_most() {
        use std::io::Write;
        let zeros = vec![0_u8; 16 << 20];
        let zstd = zstd::bulk::compress(&zeros, 19).unwrap();
        assert!(Packing::Zstd.most(zstd.len() as u64) >= zeros.len() as u64);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        gzip.write_all(&zeros).unwrap();
        let gzip = gzip.finish().unwrap();
        assert!(Packing::Gzip.most(gzip.len() as u64) >= zeros.len() as u64, "{}", gzip.len());
    }
}
