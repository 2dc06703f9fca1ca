//! Checks before any change whether the role has all privileges that `tune` needs.
//!
//! The error names all missing privileges at once, as the statements that grant them.

use tokio_postgres::Client;

use super::server::MARKER;
use crate::{Error, ErrorKind, Result};
use pgspate_target::measure::server_version;
use pgspate_target::{quote_ident, server_error};

/// The role's name and privileges, in the order of [`check`]. If there is no ledger yet, `tune`
/// creates it in the schema `pgspate`, which may already exist and be empty.
const PRIVILEGES_QUERY: &str = "\
select current_user::text, current_database()::text,
       coalesce(current_setting('allow_alter_system', true), 'on') = 'off',
       has_table_privilege('pg_catalog.pg_file_settings', 'select'),
       has_function_privilege('pg_catalog.pg_show_all_file_settings()', 'execute'),
       has_function_privilege('pg_catalog.pg_reload_conf()', 'execute'),
       case when s.oid is null then has_database_privilege(current_database(), 'create') end,
       case when s.oid is not null and c.oid is null
            then has_schema_privilege(s.oid, 'usage') and has_schema_privilege(s.oid, 'create') end,
       case when c.oid is not null
            then has_schema_privilege(s.oid, 'usage') and has_table_privilege(c.oid, 'select')
                 and has_table_privilege(c.oid, 'insert')
                 and has_table_privilege(c.oid, 'update') end,
       array(select name from unnest($1::text[]) name where not ALTERS)
from (values (1)) one
left join pg_catalog.pg_namespace s on s.nspname = 'pgspate'
left join pg_catalog.pg_class c on c.relnamespace = s.oid and c.relname = 'change'";

/// From PostgreSQL 15 on, ALTER SYSTEM can be granted.
const BY_GRANT: &str = "has_parameter_privilege(name, 'alter system')";
/// Before PostgreSQL 15, only a superuser may use ALTER SYSTEM.
const BY_ROLE: &str = "(select rolsuper from pg_catalog.pg_roles where rolname = current_user)";

/// Checks that the role may change these settings and the marker, read the server's files of
/// settings and reload them. If `writes_ledger`, the role must also be able to write the ledger.
///
/// # Errors
/// [`ErrorKind::Plan`] if `allow_alter_system` is off. [`ErrorKind::Server`] if the role lacks a
/// privilege; the hint has the grants.
pub(super) async fn check(client: &Client, names: &[&str], writes_ledger: bool) -> Result<()> {
    let has_grants = server_version(client).await >= 150_000;
    let sql = PRIVILEGES_QUERY.replace("ALTERS", if has_grants { BY_GRANT } else { BY_ROLE });
    let names: Vec<&str> = names.iter().copied().chain([MARKER]).collect();
    let failed = server_error("could not look up the role's privileges".to_owned());
    let row = client.query_one(&sql, &[&names]).await.map_err(failed)?;
    let (role, database): (&str, &str) = (row.get(0), row.get(1));
    if row.get(2) {
        let message = "the server does not allow ALTER SYSTEM: allow_alter_system is off";
        return Err(Error::new(ErrorKind::Plan, message).hint(
            "Change the settings in the configuration that manages the server; `--emit sql` \
             prints them.",
        ));
    }
    let forbidden: Vec<&str> = row.get(9);
    let (to, database) = (quote_ident(role), quote_ident(database));
    let is_about_ledger = |column: usize| column >= 6;
    let lacks = |column: usize| {
        row.get::<_, Option<bool>>(column) == Some(false)
            && (writes_ledger || !is_about_ledger(column))
    };
    let mut grants = Vec::new();
    if !forbidden.is_empty() {
        grants.push(format!("grant alter system on parameter {} to {to};", forbidden.join(", ")));
    }
    let others = [
        (3, format!("grant select on pg_file_settings to {to};")),
        (4, format!("grant execute on function pg_show_all_file_settings() to {to};")),
        (5, format!("grant execute on function pg_reload_conf() to {to};")),
        (6, format!("grant create on database {database} to {to};")),
        (7, format!("grant usage, create on schema pgspate to {to};")),
        (8, format!("grant usage on schema pgspate to {to};")),
        (8, format!("grant select, insert, update on all tables in schema pgspate to {to};")),
    ];
    grants.extend(others.into_iter().filter(|(column, _)| lacks(*column)).map(|(_, grant)| grant));
    if grants.is_empty() {
        return Ok(());
    }
    let message = format!(
        "role \"{role}\" lacks privileges to change the server's settings and put them back"
    );
    let hint = match has_grants || forbidden.is_empty() {
        true => format!("Let a superuser run\n    {}", grants.join("\n    ")),
        false => {
            "Before PostgreSQL 15 only a superuser may do this. Connect as a superuser, or let \
                  a superuser run what `--emit sql` prints."
                .to_owned()
        }
    };
    Err(Error::new(ErrorKind::Server, message).hint(hint))
}
