//! TPC-H's eight tables, with rows of the benchmark's own generator: the crate `tpchgen`.
//!
//! The rows of a scale factor are always the same: TPC-H has one seed, and `--seed` changes nothing
//! here. Comments are cut from a shorter text than TPC-H's, so results with these rows are no TPC-H
//! results. Scale factor 1 is 8.66 million rows in about 1 GB.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use pgspate::Result;
use tpchgen::distribution::Distributions;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen::text::TextPool;

use super::generated::{self, GeneratedTable};
use super::{GeneratedRows, put};
use crate::RunStop;

/// The approximate number of rows of `lineitem` at scale factor 1.
pub const LINES: u64 = 6_000_000;

/// The least scale factor that has a supplier. Without a supplier, `lineitem` has no rows.
pub const FACTOR_MIN: f64 = 0.0001;

/// Returns TPC-H's scale factor at a scale: 10 at scale 1. Of TPC-H's own scale factors, 10 is the
/// one whose number of rows is nearest to that of IMDb's files.
pub fn factor(scale: f64) -> f64 {
    // Round, because the factor is shown to people: 0.7, not 0.7000000000000001.
    let factor = (scale * 10.0 * 1e9).round() / 1e9;
    // With fewer than 250 suppliers, a part may have the same supplier twice, which the key of
    // `partsupp` forbids. With 31 suppliers this cannot happen, because 31 is a prime.
    if factor < 0.025 { 0.0031 } else { factor }
}

/// The text from which comments are cut. TPC-H's text is 300 MiB long and takes two seconds to
/// generate. This shorter text takes a tenth of a second.
static TEXT: LazyLock<TextPool> =
    LazyLock::new(|| TextPool::new(16 << 20, Distributions::static_default()));

/// A generator's rows, written as `a|b|c|`. No value has a bar, tab or backslash.
struct BarSeparatedRows<I>(I);

impl<I: Iterator<Item: Display>> GeneratedRows for BarSeparatedRows<I> {
    fn append(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(row) = self.0.next() else { return false };
        let start = out.len();
        put(out, format_args!("{row}"));
        out.pop();
        out[start..].iter_mut().filter(|byte| **byte == b'|').for_each(|byte| *byte = b'\t');
        out.push(b'\n');
        true
    }
}

/// Expands to a function that returns a generator's rows at a scale factor. With `fixed`, the rows
/// are the same at every scale factor.
macro_rules! rows_of {
    ($generator:ident) => {
        |factor, _| {
            let words = Distributions::static_default();
            let all = $generator::new_with_distributions_and_text_pool(factor, 1, 1, words, &TEXT);
            Box::new(BarSeparatedRows(all.iter()))
        }
    };
    (fixed $generator:ident) => {
        |_, _| {
            let words = Distributions::static_default();
            Box::new(BarSeparatedRows(
                $generator::new_with_distributions_and_text_pool(words, &TEXT).iter(),
            ))
        }
    };
}

/// Expands to a function that counts a generator's rows at a scale factor.
macro_rules! count_of {
    ($generator:ident) => {
        |factor| $generator::calculate_row_count(factor, 1, 1).unsigned_abs()
    };
}

/// Returns the number of rows of `lineitem`: each order has one to seven rows.
fn lines(factor: f64) -> u64 {
    let mut random = OrderGenerator::create_line_count_random();
    let mut of_order = |_| {
        let count = random.next_value();
        random.row_finished();
        u64::from(count.unsigned_abs())
    };
    (0..OrderGenerator::calculate_row_count(factor, 1, 1)).map(&mut of_order).sum()
}

/// The eight tables, the largest first. Their functions take TPC-H's scale factor as the scale. The
/// indexes are the primary key, and one for each foreign key with which the primary key does not
/// begin.
pub const TABLES: [GeneratedTable; 8] = [
    GeneratedTable {
        name: "lineitem",
        create: "create table lineitem (l_orderkey bigint, l_partkey int, l_suppkey int, \
                 l_linenumber int, l_quantity numeric(15, 2), l_extendedprice numeric(15, 2), \
                 l_discount numeric(15, 2), l_tax numeric(15, 2), l_returnflag char(1), \
                 l_linestatus char(1), l_shipdate date, l_commitdate date, l_receiptdate date, \
                 l_shipinstruct char(25), l_shipmode char(10), l_comment varchar(44))",
        indexes: &[
            "alter table lineitem add primary key (l_orderkey, l_linenumber)",
            "create index lineitem_part_supplier on lineitem (l_partkey, l_suppkey)",
        ],
        header: "l_orderkey\tl_partkey\tl_suppkey\tl_linenumber\tl_quantity\tl_extendedprice\t\
                 l_discount\tl_tax\tl_returnflag\tl_linestatus\tl_shipdate\tl_commitdate\t\
                 l_receiptdate\tl_shipinstruct\tl_shipmode\tl_comment",
        count: lines,
        make: rows_of!(LineItemGenerator),
    },
    GeneratedTable {
        name: "orders",
        create: "create table orders (o_orderkey bigint, o_custkey int, o_orderstatus char(1), \
                 o_totalprice numeric(15, 2), o_orderdate date, o_orderpriority char(15), \
                 o_clerk char(15), o_shippriority int, o_comment varchar(79))",
        indexes: &[
            "alter table orders add primary key (o_orderkey)",
            "create index orders_customer on orders (o_custkey)",
        ],
        header: "o_orderkey\to_custkey\to_orderstatus\to_totalprice\to_orderdate\t\
                 o_orderpriority\to_clerk\to_shippriority\to_comment",
        count: count_of!(OrderGenerator),
        make: rows_of!(OrderGenerator),
    },
    GeneratedTable {
        name: "partsupp",
        create: "create table partsupp (ps_partkey int, ps_suppkey int, ps_availqty int, \
                 ps_supplycost numeric(15, 2), ps_comment varchar(199))",
        indexes: &[
            "alter table partsupp add primary key (ps_partkey, ps_suppkey)",
            "create index partsupp_supplier on partsupp (ps_suppkey)",
        ],
        header: "ps_partkey\tps_suppkey\tps_availqty\tps_supplycost\tps_comment",
        count: |factor| 4 * PartGenerator::calculate_row_count(factor, 1, 1).unsigned_abs(),
        make: |factor, _| {
            let all = PartSuppGenerator::new_with_text_pool(factor, 1, 1, &TEXT);
            Box::new(BarSeparatedRows(all.iter()))
        },
    },
    GeneratedTable {
        name: "part",
        create: "create table part (p_partkey int, p_name varchar(55), p_mfgr char(25), \
                 p_brand char(10), p_type varchar(25), p_size int, p_container char(10), \
                 p_retailprice numeric(15, 2), p_comment varchar(23))",
        indexes: &["alter table part add primary key (p_partkey)"],
        header: "p_partkey\tp_name\tp_mfgr\tp_brand\tp_type\tp_size\tp_container\t\
                 p_retailprice\tp_comment",
        count: count_of!(PartGenerator),
        make: rows_of!(PartGenerator),
    },
    GeneratedTable {
        name: "customer",
        create: "create table customer (c_custkey int, c_name varchar(25), \
                 c_address varchar(40), c_nationkey int, c_phone char(15), \
                 c_acctbal numeric(15, 2), c_mktsegment char(10), c_comment varchar(117))",
        indexes: &[
            "alter table customer add primary key (c_custkey)",
            "create index customer_nation on customer (c_nationkey)",
        ],
        header: "c_custkey\tc_name\tc_address\tc_nationkey\tc_phone\tc_acctbal\tc_mktsegment\t\
                 c_comment",
        count: count_of!(CustomerGenerator),
        make: rows_of!(CustomerGenerator),
    },
    GeneratedTable {
        name: "supplier",
        create: "create table supplier (s_suppkey int, s_name char(25), s_address varchar(40), \
                 s_nationkey int, s_phone char(15), s_acctbal numeric(15, 2), \
                 s_comment varchar(101))",
        indexes: &[
            "alter table supplier add primary key (s_suppkey)",
            "create index supplier_nation on supplier (s_nationkey)",
        ],
        header: "s_suppkey\ts_name\ts_address\ts_nationkey\ts_phone\ts_acctbal\ts_comment",
        count: count_of!(SupplierGenerator),
        make: rows_of!(SupplierGenerator),
    },
    GeneratedTable {
        name: "nation",
        create: "create table nation (n_nationkey int, n_name char(25), n_regionkey int, \
                 n_comment varchar(152))",
        indexes: &[
            "alter table nation add primary key (n_nationkey)",
            "create index nation_region on nation (n_regionkey)",
        ],
        header: "n_nationkey\tn_name\tn_regionkey\tn_comment",
        count: |_| 25,
        make: rows_of!(fixed NationGenerator),
    },
    GeneratedTable {
        name: "region",
        create: "create table region (r_regionkey int, r_name char(25), r_comment varchar(152))",
        indexes: &["alter table region add primary key (r_regionkey)"],
        header: "r_regionkey\tr_name\tr_comment",
        count: |_| 5,
        make: rows_of!(fixed RegionGenerator),
    },
];

/// Makes the eight files in a new folder inside `folder`, and returns their paths in the order of
/// [`TABLES`].
///
/// # Errors
/// When the folder cannot be written or is full.
pub fn write(folder: &Path, factor: f64, seed: u64, stop: &RunStop) -> Result<Vec<PathBuf>> {
    generated::write(&TABLES, 1, folder, "tpch", (factor, seed), stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(table: &GeneratedTable, factor: f64) -> String {
        let mut out = Vec::new();
        let mut rows = table.all(factor, 1);
        while rows.append(&mut out) {}
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_table_has_its_layout_and_its_rows() {
        for table in &TABLES {
            let all = text(table, 0.001);
            assert_eq!(all.lines().count() as u64, table.rows_at(0.001), "{}", table.name);
            let columns = table.header.split('\t').count();
            let said = table.create.replace("(15, 2)", "");
            assert_eq!(columns, said.split(", ").count(), "{}", table.name);
            for (column, name) in said.split(", ").zip(table.header.split('\t')) {
                assert!(column.contains(name), "{name} is not in \"{column}\"");
            }
            for line in all.lines() {
                assert_eq!(line.split('\t').count(), columns, "{}: {line}", table.name);
                assert!(!line.contains(['\\', '|']), "{line}");
            }
            assert_eq!(all, text(table, 0.001));
        }
        let at_1: u64 = TABLES.iter().map(|table| table.rows_at(1.0)).sum();
        assert_eq!(at_1, 8_661_245);
    }

    #[test]
    fn values_are_those_of_tpch() {
        let all = text(&TABLES[0], 0.001);
        let first = all.lines().next().unwrap();
        let (values, _comment) = first.rsplit_once('\t').unwrap();
        let expected = "1 156 4 1 17 17954.55 0.04 0.02 N O 1996-03-13 1996-02-12 1996-03-22";
        assert_eq!(values, format!("{}\tDELIVER IN PERSON\tTRUCK", expected.replace(' ', "\t")));
    }

    #[test]
    fn the_least_factor_has_a_supplier() {
        assert_eq!(TABLES.map(|table| text(&table, FACTOR_MIN).is_empty()), [false; 8]);
        assert_eq!([0.000_02, 0.002, 0.0025, 0.07].map(factor), [0.0031, 0.0031, 0.025, 0.7]);
    }
}
