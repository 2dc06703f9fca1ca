//! Says in the plan what other sessions can do with the table while a load runs.
//!
//! Tests check each sentence: they pause a load in the middle, and other sessions try to read and
//! write the table.

use super::{AtomicMethod, LoadPlan};
use pgspate_target::IndexKind;

impl LoadPlan {
    /// Returns what other sessions can do, for the line "others" of the plan.
    pub fn other_sessions(&self) -> String {
        match &self.atomic_plan {
            Some(it) if it.method == AtomicMethod::OneTransaction && it.replaces => {
                let mut tables: Vec<_> =
                    it.references.iter().map(|key| key.table.as_str()).collect();
                tables.dedup();
                let and = match tables.is_empty() {
                    true => String::new(),
                    false => format!(", nor {}", tables.join(" and ")),
                };
                format!("can neither read nor write the table{and} until the load is done")
            }
            Some(it) if it.method == AtomicMethod::Swap && it.replaces => {
                "read the old rows until the exchange; rows that they write until then are lost"
                    .to_owned()
            }
            Some(it) if it.method == AtomicMethod::Swap => {
                "read no rows until the exchange; a row that they write makes the load fail"
                    .to_owned()
            }
            _ if self.builds_indexes() => {
                "can read, but without the dropped indexes; can write, except while indexes are \
                 built"
                    .to_owned()
            }
            _ => "read and write as always".to_owned(),
        }
    }

    /// Returns whether the load drops indexes of the table and creates them again.
    fn builds_indexes(&self) -> bool {
        let mut dropped = self.maintenance.indexes.iter().filter(|it| it.kept_because.is_none());
        self.maintenance.rebuilds && dropped.any(|it| it.kind != IndexKind::ForeignKey)
    }
}
