//! The server as a whole: which kind of PostgreSQL it is, and its settings.

mod flavour;
mod settings;

pub use flavour::Flavour;
pub use settings::{
    GIB, MIB, ServerSetting, ServerSettings, best_wal_compression, format_size_setting,
    read_settings,
};
