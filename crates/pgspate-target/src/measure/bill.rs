//! Estimates what I/O would cost on a service that bills I/O, such as Aurora.
//!
//! The estimate follows Aurora's published rules. A read is a page of 8 KiB that is not in the
//! server's cache. A write is 4 KiB of WAL; pages are never written. Aurora writes no full-page
//! images, so Aurora's real WAL would be smaller.

use serde::Serialize;

/// Dollars per million I/Os: Aurora Standard in us-east-1.
pub const PRICE_PER_MILLION: f64 = 0.20;

/// Bytes of WAL that count as one I/O.
const WAL_BYTES_PER_IO: u64 = 4096;

/// A number of I/Os, and their cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct IoBill {
    /// Pages read.
    pub reads: u64,
    /// Units of 4 KiB of WAL written.
    pub writes: u64,
    /// The price of a million I/Os.
    pub price_per_million: f64,
    /// The cost of these I/Os, in the price's currency.
    pub cost: f64,
}

impl IoBill {
    /// Estimates the bill for pages read from disk and bytes of WAL.
    pub fn estimate(blocks_read: u64, wal_bytes: u64, price_per_million: f64) -> IoBill {
        let writes = wal_bytes.div_ceil(WAL_BYTES_PER_IO);
        let cost = (blocks_read + writes) as f64 * price_per_million / 1e6;
        IoBill { reads: blocks_read, writes, price_per_million, cost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bill_of_a_hundred_gigabytes_of_rows() {
        // 26 million writes for 5.2 dollars.
        let bill = IoBill::estimate(0, 107_000_000_000, PRICE_PER_MILLION);
        assert_eq!(bill.writes, 26_123_047);
        assert!((bill.cost - 5.22).abs() < 0.01);
        assert_eq!(IoBill::estimate(3, 1, 1e6).cost, 4.0);
        assert_eq!(
            IoBill::estimate(0, 0, 0.2),
            IoBill { price_per_million: 0.2, ..IoBill::default() }
        );
    }
}
