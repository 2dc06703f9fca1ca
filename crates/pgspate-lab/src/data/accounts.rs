//! Accounts and their transactions: wide rows that are written one at a time.
//!
//! The shape is that of two tables that a bank's team has published. `account` has about 964 bytes
//! a row and one index; `transaction` has about 1,097 bytes a row and four indexes. The columns are
//! invented. Keys are dense; all other values are random.

use super::words::{RemarkPool, person};
use super::{SeededRandom, put};

/// One of the two tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BankTable {
    /// Account holders and balances.
    Account,
    /// Payments.
    Transaction,
}

/// The two tables.
pub const TABLES: [BankTable; 2] = [BankTable::Account, BankTable::Transaction];

/// The number of days in the range of generated times, the years 2025 and 2026.
const DAYS: u64 = 2 * 365;

const STATUS: [&str; 4] = ["open", "closed", "dormant", "blocked"];
const KIND: [&str; 5] = ["card", "transfer", "debit", "fee", "interest"];
const CURRENCY: [&str; 4] = ["EUR", "USD", "GBP", "CHF"];

impl BankTable {
    /// Returns the table's name, unquoted.
    pub fn name(self) -> &'static str {
        match self {
            BankTable::Account => "account",
            BankTable::Transaction => "transaction",
        }
    }

    /// Returns the table's columns, in order; the first one is the key.
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            BankTable::Account => &[
                "id", "number", "holder", "email", "opened", "status", "currency", "balance",
                "profile",
            ],
            BankTable::Transaction => &[
                "id",
                "account",
                "booked",
                "amount",
                "currency",
                "kind",
                "counterparty",
                "reference",
                "memo",
            ],
        }
    }

    /// Returns the types of the columns, in order.
    pub fn types(self) -> &'static [&'static str] {
        match self {
            BankTable::Account => &[
                "bigint",
                "text",
                "text",
                "text",
                "timestamptz",
                "text",
                "text",
                "numeric(14, 2)",
                "text",
            ],
            BankTable::Transaction => &[
                "bigint",
                "bigint",
                "timestamptz",
                "numeric(14, 2)",
                "text",
                "text",
                "text",
                "text",
                "text",
            ],
        }
    }

    /// Returns the statement that creates the table without indexes.
    ///
    /// `suffix` follows the columns, for example `partition by`.
    pub fn create(self, suffix: &str) -> String {
        let columns = self.columns().iter().zip(self.types());
        let columns: Vec<_> = columns.map(|(name, kind)| format!("{name} {kind}")).collect();
        format!("create table {} ({}) {suffix}", self.name(), columns.join(", "))
    }

    /// Returns the columns of each index, as SQL; the primary key is the first.
    pub fn indexes(self) -> &'static [&'static str] {
        match self {
            BankTable::Account => &["id"],
            BankTable::Transaction => &["id", "account, booked", "booked", "reference"],
        }
    }

    /// Returns the name of an index in results: its columns, joined by ` + `.
    pub fn index_name(columns: &str) -> String {
        columns.replace(", ", " + ")
    }

    /// Returns the statement that creates the index on these columns.
    pub fn create_index(self, columns: &str) -> String {
        let table = self.name();
        match columns {
            "id" => format!("alter table {table} add primary key (id)"),
            _ => {
                let name = columns.replace(", ", "_");
                format!("create index {table}_{name} on {table} ({columns})")
            }
        }
    }

    /// Returns about how many bytes the server stores for a row.
    pub fn row_bytes(self) -> u64 {
        match self {
            BankTable::Account => 964,
            BankTable::Transaction => 1097,
        }
    }
}

/// Generates the rows of both tables.
#[derive(Debug)]
pub struct BankAccounts {
    seed: u64,
    remarks: RemarkPool,
}

impl BankAccounts {
    /// Creates a generator of the rows of this seed.
    pub fn new(seed: u64) -> BankAccounts {
        BankAccounts { seed, remarks: RemarkPool::new(seed) }
    }

    /// Returns the fields of row `id` (from 1 on), in the order of the columns, as PostgreSQL reads
    /// them. Each transaction belongs to one of the first `accounts` accounts.
    pub fn fields(&self, table: BankTable, id: u64, accounts: u64) -> Vec<String> {
        let mut random = SeededRandom::at(self.seed, 30 + table as u64, id);
        match table {
            BankTable::Account => self.account(id, &mut random),
            BankTable::Transaction => self.transaction(id, accounts, &mut random),
        }
    }

    /// Appends row `id` as COPY text.
    pub fn text(&self, table: BankTable, id: u64, accounts: u64, out: &mut Vec<u8>) {
        put(out, format_args!("{}\n", self.fields(table, id, accounts).join("\t")));
    }

    fn account(&self, id: u64, random: &mut SeededRandom) -> Vec<String> {
        let holder = name(random);
        vec![
            id.to_string(),
            iban(random),
            holder,
            format!("{:016x}@example.org", random.next()),
            moment(random),
            random.pick_skewed(&STATUS).to_owned(),
            random.pick_skewed(&CURRENCY).to_owned(),
            money(random, 100_000_000),
            self.remark(random, 830),
        ]
    }

    fn transaction(&self, id: u64, accounts: u64, random: &mut SeededRandom) -> Vec<String> {
        vec![
            id.to_string(),
            (1 + random.below(accounts.max(1))).to_string(),
            moment(random),
            money(random, 1_000_000),
            random.pick_skewed(&CURRENCY).to_owned(),
            random.pick_skewed(&KIND).to_owned(),
            format!("{} {}", iban(random), name(random)),
            format!("{:016X}{:08X}", random.next(), random.next() as u32),
            self.remark(random, 964),
        ]
    }

    /// Returns a remark of about `bytes` bytes, up to 20 bytes longer or shorter.
    fn remark(&self, random: &mut SeededRandom, bytes: usize) -> String {
        let bytes = bytes - 20 + random.below(41) as usize;
        self.remarks.cut(random, bytes).to_owned()
    }
}

fn name(random: &mut SeededRandom) -> String {
    let mut out = Vec::new();
    person(random, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

fn iban(random: &mut SeededRandom) -> String {
    format!("XX{:02}{:018}", random.below(100), random.below(1_000_000_000_000_000_000))
}

/// Returns a random time.
fn moment(random: &mut SeededRandom) -> String {
    let (day, second) = (random.below(DAYS), random.below(86_400));
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{} {hour:02}:{minute:02}:{second:02}+00", date(day))
}

/// Returns the date that is `day` days after the first of January 2025. 2025 and 2026 are no leap
/// years.
fn date(day: u64) -> String {
    const MONTHS: [u64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let (year, mut day, mut month) = (2025 + day / 365, day % 365, 0);
    while day >= MONTHS[month] {
        day -= MONTHS[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, day + 1)
}

fn money(random: &mut SeededRandom, cents_max: u64) -> String {
    let cents = random.below(cents_max);
    format!("{}.{:02}", cents / 100, cents % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_published_sizes() {
        let accounts = BankAccounts::new(1);
        for table in TABLES {
            let mut out = Vec::new();
            for id in 1..=500 {
                accounts.text(table, id, 100, &mut out);
            }
            let text = String::from_utf8(out).unwrap();
            let columns = table.columns().len();
            assert_eq!(columns, table.types().len());
            assert!(text.lines().all(|line| line.split('\t').count() == columns));
            assert!(!text.contains('\\'));
            let mean = text.len() as u64 / 500;
            let near = table.row_bytes() - 60..table.row_bytes() + 60;
            assert!(near.contains(&mean), "{}: {mean} bytes", table.name());
        }
    }

    #[test]
    fn days_become_dates() {
        let dates = [0, 30, 31, 58, 59, 364, 365, 729].map(date);
        let expected = [
            "2025-01-01",
            "2025-01-31",
            "2025-02-01",
            "2025-02-28",
            "2025-03-01",
            "2025-12-31",
            "2026-01-01",
            "2026-12-31",
        ];
        assert_eq!(dates, expected);
    }

    #[test]
    fn rows_depend_on_seed_and_number_alone() {
        let row = |seed, id| BankAccounts::new(seed).fields(BankTable::Transaction, id, 1000);
        assert_eq!(row(1, 77), row(1, 77));
        assert_ne!(row(1, 77)[7], row(1, 78)[7]);
        assert_ne!(row(1, 77)[7], row(2, 77)[7]);
    }
}
