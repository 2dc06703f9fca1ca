//! Creation of the tables, with or without one of their indexes, plain or in eight partitions.

use pgspate::Result;

use crate::TrialContext;
use crate::data::accounts::BankTable;

/// Creates a table without the index called `without`.
pub(super) fn make(
    table: BankTable,
    without: &str,
    is_partitioned: bool,
    context: &TrialContext,
) -> Result<()> {
    context.sql("make the table", &statements(table, without, is_partitioned).join(";"))
}

fn statements(table: BankTable, without: &str, is_partitioned: bool) -> Vec<String> {
    let name = table.name();
    let mut all = match is_partitioned {
        false => vec![table.create("")],
        true => partitions(table),
    };
    for columns in
        table.indexes().iter().filter(|columns| BankTable::index_name(columns) != without)
    {
        // The primary key of a partitioned table must contain the partition key.
        all.push(match is_partitioned && *columns == "id" && table == BankTable::Transaction {
            true => format!("alter table {name} add primary key (id, booked)"),
            false => table.create_index(columns),
        });
    }
    all
}

/// Returns statements that create partitions: of transactions by quarter, of accounts by key.
fn partitions(table: BankTable) -> Vec<String> {
    let name = table.name();
    match table {
        BankTable::Transaction => {
            let mut all = vec![table.create("partition by range (booked)")];
            let quarter =
                |nth: u32| format!("'{}-{:02}-01 00:00+00'", 2025 + nth / 4, nth % 4 * 3 + 1);
            all.extend((0..8).map(|nth| {
                format!(
                    "create table {name}_{nth} partition of {name} for values from ({}) to ({})",
                    quarter(nth),
                    quarter(nth + 1)
                )
            }));
            all
        }
        BankTable::Account => {
            let mut all = vec![table.create("partition by hash (id)")];
            all.extend((0..8).map(|nth| {
                format!(
                    "create table {name}_{nth} partition of {name} for values with (modulus 8, \
                     remainder {nth})"
                )
            }));
            all
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_index_is_left_out() {
        let all = |without| statements(BankTable::Transaction, without, false).len();
        assert_eq!([all("none"), all("account + booked"), all("id")], [5, 4, 4]);
        assert_eq!(statements(BankTable::Account, "id", false).len(), 1);
    }

    #[test]
    fn partitions_cover_all_booking_times() {
        let all = statements(BankTable::Transaction, "none", true);
        assert_eq!(all.len(), 1 + 8 + 4);
        assert!(all[1].ends_with("from ('2025-01-01 00:00+00') to ('2025-04-01 00:00+00')"));
        assert!(all[8].ends_with("from ('2026-10-01 00:00+00') to ('2027-01-01 00:00+00')"));
        assert!(all[9].ends_with("(id, booked)"), "{}", all[9]);
    }
}
