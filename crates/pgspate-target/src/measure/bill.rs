//! What I/Os would cost where each is billed, as on Aurora.
//!
//! An estimate by the published rules: a read is a page of 8 KiB that is not in the server's
//! cache, a write is 4 KiB of WAL; pages themselves are never written. WAL that holds whole pages
//! (`full_page_writes`) would be less there.

use serde::Serialize;

/// Dollars for a million I/Os: Aurora Standard in us-east-1.
pub const PRICE_PER_MILLION: f64 = 0.20;

/// Bytes of WAL that are one I/O.
const WRITE_BYTES: u64 = 4096;

/// I/Os, and what they cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Bill {
    /// Pages that were read.
    pub reads: u64,
    /// Units of WAL that were written.
    pub writes: u64,
    /// What a million costs.
    pub price_per_million: f64,
    /// What these cost, in the price's currency.
    pub cost: f64,
}

impl Bill {
    /// For pages that were not in the cache and bytes of WAL.
    pub fn estimate(blocks_read: u64, wal_bytes: u64, price_per_million: f64) -> Bill {
        let writes = wal_bytes.div_ceil(WRITE_BYTES);
        let cost = (blocks_read + writes) as f64 * price_per_million / 1e6;
        Bill { reads: blocks_read, writes, price_per_million, cost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_gigabytes_of_rows() {
        // 26 million writes, 5.2 dollars: the usual example.
        let bill = Bill::estimate(0, 107_000_000_000, PRICE_PER_MILLION);
        assert_eq!(bill.writes, 26_123_047);
        assert!((bill.cost - 5.22).abs() < 0.01);
        assert_eq!(Bill::estimate(3, 1, 1e6).cost, 4.0);
        assert_eq!(Bill::estimate(0, 0, 0.2), Bill { price_per_million: 0.2, ..Bill::default() });
    }
}
