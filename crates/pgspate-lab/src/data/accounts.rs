//! Accounts and their transactions: wide rows that are written one at a time.
//!
//! Shaped after what a bank's team has published: account with about 964 bytes a row and one index,
//! transaction with about 1,097 bytes and four. The columns are invented. Keys are dense; all other
//! values are random.

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
    /// The table's name, unquoted.
    pub fn name(self) -> &'static str {
        match self {
            BankTable::Account => "account",
            BankTable::Transaction => "transaction",
        }
    }

    /// Its columns, in order; the first one is the key.
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

    /// Their types, in order.
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

    /// Its indexes: what each is on, the key first.
    pub fn indexes(self) -> &'static [&'static str] {
        match self {
            BankTable::Account => &["id"],
            BankTable::Transaction => &["id", "account, booked", "booked", "reference"],
        }
    }

    /// The name of one of them: its columns, without commas.
    pub fn index_name(columns: &str) -> String {
        columns.replace(", ", " + ")
    }

    /// The statement for one of them.
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

    /// Bytes of a row as the server stores it, about.
    pub fn row_bytes(self) -> u64 {
        match self {
            BankTable::Account => 964,
            BankTable::Transaction => 1097,
        }
    }
}

/// Makes rows of both tables.
#[derive(Debug)]
pub struct BankAccounts {
    seed: u64,
    remarks: RemarkPool,
}

impl BankAccounts {
    /// The rows of a seed.
    pub fn new(seed: u64) -> BankAccounts {
        BankAccounts { seed, remarks: RemarkPool::new(seed) }
    }

    /// The fields of the row with this number (from 1 on), in the order of the columns, as
    /// PostgreSQL reads them. `accounts` is how many there are for transactions to be of.
    pub fn fields(&self, table: BankTable, id: u64, accounts: u64) -> Vec<String> {
        let mut random = SeededRandom::at(self.seed, 30 + table as u64, id);
        match table {
            BankTable::Account => self.account(id, &mut random),
            BankTable::Transaction => self.transaction(id, accounts, &mut random),
        }
    }

    /// Appends that row as COPY text.
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

    /// A remark of about so many bytes: rows of one table differ by a few dozen.
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

/// A moment; a year and the number of a day in it are a date of ISO 8601.
fn moment(random: &mut SeededRandom) -> String {
    let (day, second) = (random.below(DAYS), random.below(86_400));
    let (year, day) = (2025 + day / 365, day % 365 + 1);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{day:03} {hour:02}:{minute:02}:{second:02}+00")
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
    fn rows_depend_on_seed_and_number_alone() {
        let row = |seed, id| BankAccounts::new(seed).fields(BankTable::Transaction, id, 1000);
        assert_eq!(row(1, 77), row(1, 77));
        assert_ne!(row(1, 77)[7], row(1, 78)[7]);
        assert_ne!(row(1, 77)[7], row(2, 77)[7]);
    }
}
