//! What other sessions can do with the table while a load runs.
//!
//! Each sentence is proven by a load that is held up in the middle, and sessions that then try to
//! read and to write.

use super::{AtomicMethod, LoadPlan};
use pgspate_target::IndexKind;

impl LoadPlan {
    /// The same in words, for people who have to tell others.
    pub fn others(&self) -> String {
        match &self.at_once {
            Some(it) if it.method == AtomicMethod::OneTransaction && it.replaces => {
                let mut tables: Vec<_> =
                    it.references.iter().map(|key| key.table.as_str()).collect();
                tables.dedup();
                let and = match tables.is_empty() {
                    true => String::new(),
                    false => format!(", nor {}", tables.join(" and ")),
                };
                format!("can neither read nor write it{and} until the load is done")
            }
            Some(it) if it.method == AtomicMethod::Swap && it.replaces => {
                "read the old rows until the exchange; what they write meanwhile goes with these"
                    .to_owned()
            }
            Some(it) if it.method == AtomicMethod::Swap => {
                "read no rows until the exchange; one that they write makes the load fail then"
                    .to_owned()
            }
            _ if self.builds_indexes() => {
                "read without the dropped indexes, and write but while these are built".to_owned()
            }
            _ => "read and write as always".to_owned(),
        }
    }

    /// Whether indexes are built in the table itself.
    fn builds_indexes(&self) -> bool {
        let mut dropped = self.care.indexes.iter().filter(|it| it.stays.is_none());
        self.care.rebuilds && dropped.any(|it| it.kind != IndexKind::ForeignKey)
    }
}
