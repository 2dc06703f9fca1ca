//! The list of tables that an initial copy fills. The ledger keeps the list until the copy is
//! complete.
//!
//! A table is empty when it is added to the list. So all rows of a listed table are copied rows,
//! and a new copy may empty the table again. Tables that are not on the list may have other rows.

use std::collections::BTreeMap;

use pgspate_target::TargetTable;

/// The prefix of the ledger's position column during an initial copy. The list follows as JSON.
const COPYING: &str = "snapshot into ";

/// Tables by their names in SQL, with their oids, because another table may get the same name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TablesBeingCopied(BTreeMap<String, u32>);

impl TablesBeingCopied {
    /// Parses a position of the ledger. Returns `None` if the position is not that of an initial
    /// copy.
    pub fn parse(position: &str) -> Option<TablesBeingCopied> {
        serde_json::from_str(position.strip_prefix(COPYING)?).ok().map(TablesBeingCopied)
    }

    /// Returns the list as a position for the ledger.
    pub fn position(&self) -> String {
        format!("{COPYING}{}", serde_json::json!(self.0))
    }

    /// Adds a table, which must be empty.
    pub fn add(&mut self, table: &TargetTable) {
        self.0.insert(table.sql_name.clone(), table.oid);
    }

    /// Returns whether the table is on the list.
    pub fn has(&self, table: &TargetTable) -> bool {
        self.0.get(&table.sql_name) == Some(&table.oid)
    }

    /// Returns whether no table is on the list.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the tables' names in SQL.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_is_written() {
        for tables in [&[][..], &[("public.t", 1), ("\"a \"\" b\".\"c, d\"", 2)]] {
            let tables = tables.iter().map(|(name, oid)| ((*name).to_owned(), *oid));
            let filling = TablesBeingCopied(tables.collect());
            assert_eq!(TablesBeingCopied::parse(&filling.position()), Some(filling));
        }
        for other in ["", "0/7", "snapshot", "snapshot into t.csv, line 7"] {
            assert_eq!(TablesBeingCopied::parse(other), None, "{other}");
        }
    }
}
