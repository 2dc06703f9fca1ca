//! The tables that a copy of rows fills, as the ledger has them until it has come to its end.
//!
//! They were empty when they came onto the list, so that what is in them later is what was copied;
//! of no other table can that be said.

use std::collections::BTreeMap;

use pgspate_target::Table;

/// What the ledger has as position while rows are copied, before the list.
const COPYING: &str = "snapshot into ";

/// Tables as SQL writes them, with their oids, as a name may become another table's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filling(BTreeMap<String, u32>);

impl Filling {
    /// Reads a position; `None` where it is none of a copy.
    pub fn parse(position: &str) -> Option<Filling> {
        serde_json::from_str(position.strip_prefix(COPYING)?).ok().map(Filling)
    }

    /// Writes the list as a position in the ledger.
    pub fn position(&self) -> String {
        format!("{COPYING}{}", serde_json::json!(self.0))
    }

    /// Adds a table, which is empty.
    pub fn add(&mut self, table: &Table) {
        self.0.insert(table.sql_name.clone(), table.oid);
    }

    /// Returns whether the table is on the list.
    pub fn has(&self, table: &Table) -> bool {
        self.0.get(&table.sql_name) == Some(&table.oid)
    }

    /// Returns whether no table is on the list.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the tables' names, as SQL writes them.
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
            let filling = Filling(tables.collect());
            assert_eq!(Filling::parse(&filling.position()), Some(filling));
        }
        for other in ["", "0/7", "snapshot", "snapshot into t.csv, line 7"] {
            assert_eq!(Filling::parse(other), None, "{other}");
        }
    }
}
