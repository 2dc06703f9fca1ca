//! The server as a whole: which kind of PostgreSQL it is, and what it is set to.

mod flavour;
mod settings;

pub use flavour::Flavour;
pub use settings::{GIB, MIB, Setting, Settings, compression, read, words};
