//! What a server is set to.

use std::collections::HashMap;

use tokio_postgres::{Client, Row};

use crate::{Result, server_error};

/// Bytes of a GiB.
pub const GIB: u64 = 1 << 30;
/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;

/// A setting as it is.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Its value, in its unit.
    pub value: String,
    /// Its unit: `8kB`, `ms`.
    pub unit: Option<String>,
    /// What set it: `default`, `configuration file`, `client`.
    pub source: String,
    /// When a change of it counts: `sighup`, `postmaster`, `user`.
    pub context: String,
    /// Its possible values, if they are words.
    pub words: Vec<String>,
}

impl Setting {
    /// In bytes, for a setting that is an amount of memory or disk.
    pub fn bytes(&self) -> Option<u64> {
        let value: u64 = self.value.parse().ok()?;
        let unit = match self.unit.as_deref()? {
            "B" => 1,
            "kB" => 1 << 10,
            "8kB" => 8 << 10,
            "16kB" => 16 << 10,
            "32kB" => 32 << 10,
            "MB" => 1 << 20,
            _ => return None,
        };
        Some(value * unit)
    }
}

/// Settings by name.
pub type Settings = HashMap<String, Setting>;

/// `16GB`, as the server reads it.
pub fn words(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= GIB && bytes.is_multiple_of(GIB) => format!("{}GB", bytes / GIB),
        bytes if bytes >= MIB && bytes.is_multiple_of(MIB) => format!("{}MB", bytes / MIB),
        bytes => format!("{}kB", bytes >> 10),
    }
}

/// The best way to compress whole pages in the WAL that the server was built with.
pub fn compression(settings: &Settings) -> &'static str {
    let words = settings.get("wal_compression").map(|setting| setting.words.as_slice());
    let words = words.unwrap_or_default();
    let methods = ["lz4", "zstd", "pglz"];
    methods.into_iter().find(|method| words.iter().any(|word| word == method)).unwrap_or("on")
}

/// All settings, as they are for this session.
///
/// # Errors
/// Those of the connection.
pub async fn read(client: &Client) -> Result<Settings> {
    let sql = "select name, coalesce(setting, ''), unit, source, context, \
               coalesce(enumvals, '{}') from pg_settings";
    let failed = server_error("could not look up the server's settings".to_owned());
    let rows = client.query(sql, &[]).await.map_err(failed)?;
    let setting = |row: &Row| Setting {
        value: row.get(1),
        unit: row.get(2),
        source: row.get(3),
        context: row.get(4),
        words: row.get(5),
    };
    Ok(rows.iter().map(|row| (row.get(0), setting(row))).collect())
}
