//! TPC-H-shaped rows: the benchmark's eight tables, with a generator of our own.
//!
//! Columns, types, lengths, keys and numbers of rows are about TPC-H's, and what refers to a row
//! finds it; the values are not TPC-H's, and no result with them is one of that benchmark. Scale
//! factor 1 is 8.66 million rows in about 1 GB, as there.

mod lineitem;
mod others;

use std::path::{Path, PathBuf};

use pgspate::Result;

use super::made::{self, Table};
use super::{put, scaled};
use crate::Stop;
pub use lineitem::{CREATE, ROWS, TABLE, rows};

/// TPC-H's scale factor at a scale: 10 at scale 1, as of those that the benchmark knows this one is
/// nearest to IMDb's files in rows.
pub fn factor(scale: f64) -> f64 {
    // Without the last digits of a product, which would be read by people.
    (scale * 10.0 * 1e9).round() / 1e9
}

/// How many rows the tables have that others refer to.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    suppliers: u64,
    customers: u64,
    parts: u64,
    orders: u64,
    lines: u64,
}

impl Sizes {
    fn at(factor: f64) -> Sizes {
        let lines = scaled(ROWS, factor);
        Sizes {
            // A part has four of them.
            suppliers: scaled(10_000, factor).max(SUPPLIERS_OF_A_PART),
            customers: scaled(150_000, factor),
            parts: scaled(200_000, factor),
            orders: lines.div_ceil(lineitem::LINES),
            lines,
        }
    }
}

const SUPPLIERS_OF_A_PART: u64 = 4;

/// The eight tables, the largest first. What is a scale elsewhere is a scale factor here. Indexes
/// are the primary key, and one for each foreign key that it does not begin with.
pub const TABLES: [Table; 8] = [
    Table {
        name: TABLE,
        file: "lineitem.tsv.gz",
        create: CREATE,
        indexes: &[
            "alter table lineitem add primary key (l_orderkey, l_linenumber)",
            "create index lineitem_part_supplier on lineitem (l_partkey, l_suppkey)",
        ],
        header: "l_orderkey\tl_partkey\tl_suppkey\tl_linenumber\tl_quantity\tl_extendedprice\t\
                 l_discount\tl_tax\tl_returnflag\tl_linestatus\tl_shipdate\tl_commitdate\t\
                 l_receiptdate\tl_shipinstruct\tl_shipmode\tl_comment",
        count: |factor| Sizes::at(factor).lines,
        make: |factor, seed| Box::new(rows(factor, seed)),
    },
    Table {
        name: "orders",
        file: "orders.tsv.gz",
        create: "create table orders (o_orderkey bigint, o_custkey int, o_orderstatus char(1), \
                 o_totalprice numeric(15, 2), o_orderdate date, o_orderpriority char(15), \
                 o_clerk char(15), o_shippriority int, o_comment varchar(79))",
        indexes: &[
            "alter table orders add primary key (o_orderkey)",
            "create index orders_customer on orders (o_custkey)",
        ],
        header: "o_orderkey\to_custkey\to_orderstatus\to_totalprice\to_orderdate\t\
                 o_orderpriority\to_clerk\to_shippriority\to_comment",
        count: |factor| Sizes::at(factor).orders,
        make: |factor, seed| others::orders(Sizes::at(factor), seed),
    },
    Table {
        name: "partsupp",
        file: "partsupp.tsv.gz",
        create: "create table partsupp (ps_partkey int, ps_suppkey int, ps_availqty int, \
                 ps_supplycost numeric(15, 2), ps_comment varchar(199))",
        indexes: &[
            "alter table partsupp add primary key (ps_partkey, ps_suppkey)",
            "create index partsupp_supplier on partsupp (ps_suppkey)",
        ],
        header: "ps_partkey\tps_suppkey\tps_availqty\tps_supplycost\tps_comment",
        count: |factor| Sizes::at(factor).parts * SUPPLIERS_OF_A_PART,
        make: |factor, seed| others::partsupp(Sizes::at(factor), seed),
    },
    Table {
        name: "part",
        file: "part.tsv.gz",
        create: "create table part (p_partkey int, p_name varchar(55), p_mfgr char(25), \
                 p_brand char(10), p_type varchar(25), p_size int, p_container char(10), \
                 p_retailprice numeric(15, 2), p_comment varchar(23))",
        indexes: &["alter table part add primary key (p_partkey)"],
        header: "p_partkey\tp_name\tp_mfgr\tp_brand\tp_type\tp_size\tp_container\t\
                 p_retailprice\tp_comment",
        count: |factor| Sizes::at(factor).parts,
        make: |factor, seed| others::part(Sizes::at(factor), seed),
    },
    Table {
        name: "customer",
        file: "customer.tsv.gz",
        create: "create table customer (c_custkey int, c_name varchar(25), \
                 c_address varchar(40), c_nationkey int, c_phone char(15), \
                 c_acctbal numeric(15, 2), c_mktsegment char(10), c_comment varchar(117))",
        indexes: &[
            "alter table customer add primary key (c_custkey)",
            "create index customer_nation on customer (c_nationkey)",
        ],
        header: "c_custkey\tc_name\tc_address\tc_nationkey\tc_phone\tc_acctbal\tc_mktsegment\t\
                 c_comment",
        count: |factor| Sizes::at(factor).customers,
        make: |factor, seed| others::customer(Sizes::at(factor), seed),
    },
    Table {
        name: "supplier",
        file: "supplier.tsv.gz",
        create: "create table supplier (s_suppkey int, s_name char(25), s_address varchar(40), \
                 s_nationkey int, s_phone char(15), s_acctbal numeric(15, 2), \
                 s_comment varchar(101))",
        indexes: &[
            "alter table supplier add primary key (s_suppkey)",
            "create index supplier_nation on supplier (s_nationkey)",
        ],
        header: "s_suppkey\ts_name\ts_address\ts_nationkey\ts_phone\ts_acctbal\ts_comment",
        count: |factor| Sizes::at(factor).suppliers,
        make: |factor, seed| others::supplier(Sizes::at(factor), seed),
    },
    Table {
        name: "nation",
        file: "nation.tsv.gz",
        create: "create table nation (n_nationkey int, n_name char(25), n_regionkey int, \
                 n_comment varchar(152))",
        indexes: &[
            "alter table nation add primary key (n_nationkey)",
            "create index nation_region on nation (n_regionkey)",
        ],
        header: "n_nationkey\tn_name\tn_regionkey\tn_comment",
        count: |_| others::NATIONS,
        make: |factor, seed| others::nation(Sizes::at(factor), seed),
    },
    Table {
        name: "region",
        file: "region.tsv.gz",
        create: "create table region (r_regionkey int, r_name char(25), r_comment varchar(152))",
        indexes: &["alter table region add primary key (r_regionkey)"],
        header: "r_regionkey\tr_name\tr_comment",
        count: |_| others::REGIONS,
        make: |factor, seed| others::region(Sizes::at(factor), seed),
    },
];

/// Makes the eight files in a folder of their own inside `folder`, and returns their paths in the
/// order of [`TABLES`].
///
/// # Errors
/// The folder cannot be written, or is full.
pub fn write(folder: &Path, factor: f64, seed: u64, stop: &Stop) -> Result<Vec<PathBuf>> {
    made::write(&TABLES, 1, folder, "tpch", (factor, seed), stop)
}

/// The key of an order by its number from 0: with gaps, as TPC-H's are.
fn order_key(nth: u64) -> u64 {
    nth / 8 * 32 + nth % 8 + 1
}

/// A part's price in cents.
fn price_cents(part: u64) -> u64 {
    90_000 + part % 20_001 * 10 + part % 1000 * 100
}

/// One of the four suppliers of a part, which lie a quarter of all of them apart.
fn supplier_of(part: u64, nth: u64, suppliers: u64) -> u64 {
    (part + nth * (suppliers / SUPPLIERS_OF_A_PART)) % suppliers + 1
}

/// Days before each month of a year without a leap day.
const DAYS_BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

/// Appends a date and a tab: so many days after the first of 1992, leap days not counted.
fn put_date(out: &mut Vec<u8>, day: u64) {
    let (year, day) = (1992 + day / 365, day % 365);
    let month = DAYS_BEFORE.partition_point(|before| *before <= day);
    put(out, format_args!("{year}-{month:02}-{:02}\t", day - DAYS_BEFORE[month - 1] + 1));
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn text(table: &Table, factor: f64, seed: u64) -> String {
        let mut out = Vec::new();
        let mut rows = table.all(factor, seed);
        while rows.append(&mut out) {}
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_table_has_its_layout_and_its_rows() {
        for table in &TABLES {
            let all = text(table, 0.0005, 1);
            assert_eq!(all.lines().count() as u64, table.rows_at(0.0005), "{}", table.name);
            let columns = table.header.split('\t').count();
            let said = table.create.replace("(15, 2)", "");
            assert_eq!(columns, said.split(", ").count(), "{}", table.name);
            for (column, name) in said.split(", ").zip(table.header.split('\t')) {
                assert!(column.contains(name), "{name} is not in \"{column}\"");
            }
            for line in all.lines() {
                assert_eq!(line.split('\t').count(), columns, "{}: {line}", table.name);
                assert!(!line.contains('\\'), "{line}");
            }
            assert_eq!(all, text(table, 0.0005, 1));
            assert_ne!(all, text(table, 0.0005, 2), "{}", table.name);
        }
        let at_1: u64 = TABLES.iter().map(|table| table.rows_at(1.0)).sum();
        assert_eq!(at_1, 8_660_030);
    }

    #[test]
    fn a_part_has_four_suppliers_however_few_there_are() {
        for suppliers in [4, 5, 7, 100] {
            for part in 1..40 {
                let all = (0..4).map(|nth| supplier_of(part, nth, suppliers));
                let all: HashSet<u64> = all.collect();
                assert!(all.len() == 4 && all.iter().all(|it| (1..=suppliers).contains(it)));
            }
        }
    }

    #[test]
    fn dates_are_dates() {
        let date = |day| {
            let mut out = Vec::new();
            put_date(&mut out, day);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(date(0), "1992-01-01\t");
        assert_eq!(date(31 + 27), "1992-02-28\t");
        assert_eq!(date(31 + 28), "1992-03-01\t");
        assert_eq!(date(365 + 364), "1993-12-31\t");
    }
}
