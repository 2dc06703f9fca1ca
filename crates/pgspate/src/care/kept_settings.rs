//! Settings that a user has changed since a load changed them. They stay as they are.

use pgspate_target::AUTOVACUUM_CHANGE;
use pgspate_target::ledger::RecordedChange;

/// Settings that stay as they are, with the changes that set them.
#[derive(Debug, Default)]
pub(super) struct KeptSettings(Vec<(RecordedChange, Vec<String>)>);

impl KeptSettings {
    /// Notes that these settings of the change stay as they are.
    pub(super) fn note(&mut self, change: &RecordedChange, settings: Vec<String>) {
        if !settings.is_empty() {
            self.0.push((change.clone(), settings));
        }
    }

    /// Returns whether anything of the change was put back.
    pub(super) fn is_back(&self, change: &RecordedChange) -> bool {
        let is_same = |other: &RecordedChange| {
            (other.job, other.table_oid) == (change.job, change.table_oid)
                && other.name() == change.name()
        };
        let mut kept = self.0.iter().filter(|(other, _)| is_same(other));
        let options = match change.kind.as_str() {
            AUTOVACUUM_CHANGE => change.recipe().map_or(0, |recipe| recipe.options.len()),
            _ => usize::MAX,
        };
        !kept.any(|(_, settings)| settings.len() >= options || settings.contains(&change.name()))
    }

    /// Returns all settings, in words.
    pub(super) fn into_settings(self) -> impl Iterator<Item = String> {
        self.0.into_iter().flat_map(|(_, settings)| settings)
    }
}
