//! Settings of a server for a bulk load, and their way back.
//!
//! Whatever is changed is recorded in the ledger first.

/// What a change of a setting is called in the ledger.
pub(crate) const SETTING: &str = "setting";
