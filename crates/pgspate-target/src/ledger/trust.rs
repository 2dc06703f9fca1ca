//! Decides whether the ledger may be used. Until then, only the catalog is read.
//!
//! A table's owner decides which code runs when the table is read or written: views have queries;
//! tables have defaults, policies and triggers. So the ledger is used only if its owners could act
//! as the current role anyway, and if it consists only of objects that pgspate creates.
//!
//! Other roles may have the TRIGGER privilege. A trigger is accepted only if a trusted owner made
//! its function. The trigger must have no condition, which could call any function, and no
//! arguments, from which functions build SQL. Objects left by a former owner are found by their
//! dependencies: pgspate's objects depend only on the server's own functions and types.

use tokio_postgres::Client;

use crate::{Error, ErrorKind, Result, TypedQuery, is_trusted_sql, server_error};

/// Returns a condition: the role in a ledger row's column `role` is trusted.
pub(super) fn is_role_trusted_sql() -> String {
    let is_trusted = is_trusted_sql("r.oid");
    format!("exists (select from pg_roles r where r.rolname = role and {is_trusted})")
}

/// Returns the role that a ledger row belongs to, if the current role does not trust that role or
/// is not a member of it. `row` is a table and a condition: `pgspate.stream where stream = 'a'`.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read.
pub(super) async fn untrusted_role(client: &Client, row: &str) -> Result<Option<String>> {
    let failed = server_error("could not read the ledger, schema \"pgspate\"".to_owned());
    let found = client.fetch_opt(&untrusted_role_sql(row), &[]).await.map_err(failed)?;
    Ok(found.map(|row| row.get(0)))
}

/// Returns the query of [`untrusted_role`].
pub(super) fn untrusted_role_sql(row: &str) -> String {
    format!(
        "select role::text from {row} and not exists (select from pg_roles r \
             where r.rolname = role and pg_has_role(r.oid, 'member') and {})",
        is_trusted_sql("r.oid")
    )
}

/// Columns: 0 whether the schema exists, 1 whether the role may use the schema, 2 names of its
/// relations except indexes, 3 the first untrusted object, 4 that object's owner. Columns 3 and 4
/// are NULL if everything is trusted. Column 5 has the names of tables that the role may read.
const SCHEMA_QUERY: &str = "\
with schema as (select oid, nspowner from pg_namespace where nspname = 'pgspate'),
relation as (select c.* from pg_class c join schema s on s.oid = c.relnamespace),
object(class, id, owner) as (
  select 'pg_class'::regclass, oid, relowner from relation
  union all
  select 'pg_attrdef'::regclass, a.oid, relowner
  from pg_attrdef a join relation r on r.oid = a.adrelid
  union all
  select 'pg_constraint'::regclass, c.oid, relowner
  from pg_constraint c join relation r on r.oid = c.conrelid
  union all
  select 'pg_policy'::regclass, p.oid, relowner
  from pg_policy p join relation r on r.oid = p.polrelid),
part(nth, what, owner, is_ours) as (
  select 1, 'schema \"pgspate\"', nspowner, true from schema
  union all
  select 2, pg_catalog.format('%s pgspate.%I',
                              case relkind when 'v' then 'view' when 'm' then 'view'
                                    when 'f' then 'foreign table' else 'relation' end, relname),
         relowner, relkind in ('r', 'i', 'S') and not relhasrules and not relispartition
  from relation
  union all
  select 3, pg_catalog.format('trigger %I of pgspate.%I', g.tgname, r.relname), p.proowner,
         g.tgqual is null and g.tgnargs = 0 and p.pronamespace <> 'pg_catalog'::regnamespace
  from pg_trigger g join relation r on r.oid = g.tgrelid join pg_proc p on p.oid = g.tgfoid
  where not g.tgisinternal
  union all
  select 4, pg_describe_object(d.classid, d.objid, d.objsubid), o.owner, false
  from object o join pg_depend d on d.classid = o.class and d.objid = o.id
  where d.refclassid in ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass,
                         'pg_opclass'::regclass)),
untrusted as (
  select what, pg_get_userbyid(owner)::text as owner from part
  where not is_ours or not {is_trusted} order by nth, what limit 1)
select exists (select from schema),
       coalesce((select has_schema_privilege(oid, 'usage') from schema), false),
       array(select relname::text from relation where relkind <> 'i'),
       (select what from untrusted), (select owner from untrusted),
       array(select relname::text from relation
             where relkind = 'r' and has_table_privilege(oid, 'select'))";

/// The ledger's schema, as the catalog describes it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LedgerSchema {
    pub(super) exists: bool,
    may_use: bool,
    relations: Vec<String>,
    /// The first untrusted object and its owner.
    untrusted: Option<(String, String)>,
    /// The tables that the current role may read.
    readable: Vec<String>,
}

/// A ledger that a session has found, and has checked that it is trusted and of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrustedLedger {
    /// Whether the role may read which keys are dropped.
    pub(super) may_read_dropped_keys: bool,
}

impl LedgerSchema {
    /// Reads the catalog's facts about the schema, but nothing in the schema.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] if the connection fails, [`ErrorKind::Server`] if the server refuses
    /// the query.
    pub(crate) async fn read(client: &Client) -> Result<LedgerSchema> {
        let failed = server_error("could not look up the ledger in schema \"pgspate\"".to_owned());
        let sql = SCHEMA_QUERY.replace("{is_trusted}", &is_trusted_sql("owner"));
        let row = client.fetch_one(&sql, &[]).await.map_err(failed)?;
        let untrusted: Option<String> = row.get(3);
        Ok(LedgerSchema {
            exists: row.get(0),
            may_use: row.get(1),
            relations: row.get(2),
            untrusted: untrusted.map(|object| (object, row.get(4))),
            readable: row.get(5),
        })
    }

    /// Returns whether the schema has a table of that name.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if the schema is not trusted, or is not a ledger.
    pub(super) fn has_table(&self, table: &str) -> Result<bool> {
        self.check_is_trusted_ledger()?;
        Ok(self.relations.iter().any(|name| name == table))
    }

    /// Returns whether the ledger can be read, for callers that can also work without it.
    pub(super) fn is_readable(&self) -> bool {
        self.may_use && matches!(self.has_table("version"), Ok(true))
    }

    /// Returns whether the role may read which keys are dropped.
    pub(super) fn may_read_dropped_keys(&self) -> bool {
        let may_read = |table: &str| self.readable.iter().any(|name| name == table);
        self.is_readable() && may_read("change") && may_read("job")
    }

    /// Refuses a schema that is not trusted, or is not a ledger.
    fn check_is_trusted_ledger(&self) -> Result<()> {
        if let Some((object, owner)) = &self.untrusted {
            let message = format!(
                "could not use the ledger: {object}, owned by role \"{owner}\", is not trusted"
            );
            return Err(Error::new(ErrorKind::Ledger, message).hint(format!(
                "Code of that role would run as your role. Connect as \"{owner}\". Or have a \
                 superuser drop objects that pgspate did not create, and change the ledger's \
                 owner: `alter schema pgspate owner to ROLE`, and `alter table pgspate.NAME owner \
                 to ROLE` for each table. A load also works with `--no-ledger`."
            )));
        }
        // Another role may have created an empty schema for pgspate.
        let is_ledger = self.relations.iter().any(|name| name == "version");
        match self.exists && !is_ledger && !self.relations.is_empty() {
            true => {
                Err(Error::new(ErrorKind::Ledger, "schema \"pgspate\" is not a ledger of pgspate")
                    .hint("Rename that schema. A load also works with `--no-ledger`."))
            }
            false => Ok(()),
        }
    }
}
