//! Settings of a session that decide what text values mean.

use tokio_postgres::Client;

use super::{TypedQuery, quote_literal, server_error};
use crate::Result;
use pgspate_input::types::SessionSettings;

const SETTINGS: &str = "\
select current_setting('server_version_num')::int4, current_setting('DateStyle'),
       current_setting('TimeZone'), current_setting('IntervalStyle'),
       current_setting('server_encoding'), current_setting('client_encoding'),
       current_setting('array_nulls')::bool";

/// Makes the commits of a session wait for the disk, whatever the role's default is. The level is
/// set in any case, as a session takes over later defaults of what it has not set.
pub const COMMITS_WAIT: &str = "\
select pg_catalog.set_config('synchronous_commit', case level when 'off' then 'on' else level end,
                             false)
from pg_catalog.current_setting('synchronous_commit') level";

/// Returns the SQL that sets what the meaning of a value's text depends on.
pub fn value_settings_sql(session: &SessionSettings) -> String {
    let settings = [
        ("DateStyle", &session.date_style),
        ("TimeZone", &session.time_zone),
        ("IntervalStyle", &session.interval_style),
    ];
    let set = settings.map(|(name, value)| format!("set {name} = {}", quote_literal(value)));
    let array_nulls = if session.array_nulls { "on" } else { "off" };
    format!("{}; set array_nulls = {array_nulls}", set.join("; "))
}

/// Reads the settings of the session behind `client`.
///
/// # Errors
/// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query.
pub async fn read_session(client: &Client) -> Result<SessionSettings> {
    let failed = server_error("could not read the session's settings".to_owned());
    let row = client.fetch_one(SETTINGS, &[]).await.map_err(failed)?;
    Ok(SessionSettings {
        server_version: u32::try_from(row.get::<_, i32>(0)).unwrap_or(0),
        date_style: row.get(1),
        time_zone: row.get(2),
        interval_style: row.get(3),
        server_encoding: row.get(4),
        client_encoding: row.get(5),
        array_nulls: row.get(6),
    })
}
