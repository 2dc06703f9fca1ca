//! Settings of a server, as `pg_settings` shows them.

use std::collections::HashMap;

use tokio_postgres::{Client, Row};

use crate::{Result, server_error};

/// Bytes in a GiB.
pub const GIB: u64 = 1 << 30;
/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;

/// One setting and its current value.
#[derive(Debug, Clone)]
pub struct ServerSetting {
    /// The value, in the setting's unit.
    pub value: String,
    /// The unit: `8kB`, `ms`.
    pub unit: Option<String>,
    /// Where the value comes from: `default`, `configuration file`, `client`.
    pub source: String,
    /// When a change takes effect: `sighup`, `postmaster`, `user`.
    pub context: String,
    /// The allowed values, if the setting is an enum.
    pub allowed_values: Vec<String>,
}

impl ServerSetting {
    /// Returns the value in bytes, if the setting is an amount of memory or disk.
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
pub type ServerSettings = HashMap<String, ServerSetting>;

/// Formats a size as a setting's value: `16GB`.
pub fn format_size_setting(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= GIB && bytes.is_multiple_of(GIB) => format!("{}GB", bytes / GIB),
        bytes if bytes >= MIB && bytes.is_multiple_of(MIB) => format!("{}MB", bytes / MIB),
        bytes => format!("{}kB", bytes >> 10),
    }
}

/// Returns the best `wal_compression` method that the server was built with.
pub fn best_wal_compression(settings: &ServerSettings) -> &'static str {
    let values = settings.get("wal_compression").map(|setting| setting.allowed_values.as_slice());
    let values = values.unwrap_or_default();
    let methods = ["lz4", "zstd", "pglz"];
    methods.into_iter().find(|method| values.iter().any(|value| value == method)).unwrap_or("on")
}

/// Reads all settings, as they apply to this session.
///
/// # Errors
/// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query.
pub async fn read_settings(client: &Client) -> Result<ServerSettings> {
    let sql = "select name, coalesce(setting, ''), unit, source, context, \
               coalesce(enumvals, '{}') from pg_settings";
    let failed = server_error("could not read the server's settings".to_owned());
    let rows = client.query(sql, &[]).await.map_err(failed)?;
    let read_setting = |row: &Row| ServerSetting {
        value: row.get(1),
        unit: row.get(2),
        source: row.get(3),
        context: row.get(4),
        allowed_values: row.get(5),
    };
    Ok(rows.iter().map(|row| (row.get(0), read_setting(row))).collect())
}
