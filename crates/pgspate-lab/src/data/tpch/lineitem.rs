//! Lineitem-shaped rows: the columns of TPC-H's largest table.
//!
//! 6 million rows, 720 MB, at scale factor 1. An order has four lines.

use super::{Sizes, order_key, price_cents, put_date, supplier_of};
use crate::data::words::Soup;
use crate::data::{Numbered, Random, Rows, put, scaled};

/// The table's name.
pub const TABLE: &str = "lineitem";

/// Rows at scale factor 1.
pub const ROWS: u64 = 6_000_000;

/// Makes the table.
pub const CREATE: &str = "\
create table lineitem (l_orderkey bigint, l_partkey int, l_suppkey int, l_linenumber int, \
l_quantity numeric(15, 2), l_extendedprice numeric(15, 2), l_discount numeric(15, 2), \
l_tax numeric(15, 2), l_returnflag char(1), l_linestatus char(1), l_shipdate date, \
l_commitdate date, l_receiptdate date, l_shipinstruct char(25), l_shipmode char(10), \
l_comment varchar(44))";

const INSTRUCTIONS: [&str; 4] = ["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"];
const MODES: [&str; 7] = ["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"];
/// Lines of an order.
pub(super) const LINES: u64 = 4;

/// The rows at a scale factor, as COPY text.
pub fn rows(factor: f64, seed: u64) -> impl Rows {
    let soup = Soup::new(seed);
    let sizes = Sizes::at(factor);
    Numbered::new(0..scaled(ROWS, factor), move |nth, out| {
        let mut random = Random::at(seed, 40, nth);
        let order = order_key(nth / LINES);
        let part = 1 + random.below(sizes.parts);
        let quantity = 1 + random.below(50);
        let cents = quantity * price_cents(part) / 100;
        put(
            out,
            format_args!(
                "{order}\t{part}\t{}\t{}\t{quantity}.00\t{cents}.{:02}\t0.{:02}\t0.{:02}\t",
                supplier_of(part, random.below(4), sizes.suppliers),
                nth % LINES + 1,
                random.below(100),
                random.below(11),
                random.below(9),
            ),
        );
        let shipped = random.below(2526);
        let (flag, status) = match shipped {
            1263.. => ("N", "O"),
            _ => (random.pick(&["R", "A"]), "F"),
        };
        put(out, format_args!("{flag}\t{status}\t"));
        put_date(out, shipped);
        put_date(out, (shipped + 60).saturating_sub(random.below(120)));
        put_date(out, shipped + 1 + random.below(30));
        let bytes = 10 + random.below(34) as usize;
        let comment = soup.cut(&mut random, bytes).trim();
        let (instruction, mode) = (random.pick(&INSTRUCTIONS), random.pick(&MODES));
        put(out, format_args!("{instruction}\t{mode}\t{comment}\n"));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_sixteen_columns_and_about_the_size() {
        let mut out = Vec::new();
        let mut some = rows(0.0005, 1);
        while some.append(&mut out) {}
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 3000);
        assert!(text.lines().all(|line| line.split('\t').count() == 16));
        let mean = text.len() / 3000;
        assert!((110..135).contains(&mean), "{mean} bytes a row");
        let keys: std::collections::HashSet<(&str, &str)> = text
            .lines()
            .map(|line| {
                let fields: Vec<&str> = line.split('\t').collect();
                (fields[0], fields[3])
            })
            .collect();
        assert_eq!(keys.len(), 3000);
    }

    #[test]
    fn the_same_seed_gives_the_same_rows() {
        let text = |seed| {
            let mut out = Vec::new();
            let mut some = rows(0.0001, seed);
            while some.append(&mut out) {}
            out
        };
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
    }
}
