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
    let id = "to_regrole(quote_ident(role))::oid";
    format!(
        "select role::text from {row} \
         and (pg_has_role({id}, 'member') and {}) is not true",
        is_trusted_sql(id)
    )
}

/// Query for the schema's facts. Returns no row if there is no schema. Columns: whether the role
/// may use the schema; names of its relations except indexes; names of tables that it may read.
/// The last column has the first untrusted object and its owner. It is NULL if there is none.
///
/// Defaults, constraints and policies depend on their own tables automatically or internally, so
/// `pg_depend` alone lists them. Objects elsewhere may refer to the ledger, too, but do not count.
/// Each further catalog would cost a new session more: the server first has to look it up.
const SCHEMA_QUERY: &str = "\
with relation as (
  select oid, relname, relkind, relowner, relhastriggers, relhasrules or relispartition as is_odd
  from pg_class where relnamespace = to_regnamespace('pgspate')::oid),
object(class, id, owner) as (
  select 'pg_class'::regclass::oid, oid, relowner from relation
  union all
  select d.classid, d.objid, r.relowner from relation r join pg_depend d on d.refobjid = r.oid
  where d.refclassid = 'pg_class'::regclass::oid and d.deptype in ('a', 'i')
    and d.classid in ('pg_attrdef'::regclass::oid, 'pg_constraint'::regclass::oid,
                      'pg_policy'::regclass::oid))
select has_schema_privilege(n.oid, 'usage'),
       array(select relname::text from relation where relkind <> 'i'),
       array(select relname::text from relation
             where relkind = 'r' and has_table_privilege(oid, 'select')),
       coalesce(
         case when not {is_owner_trusted}
              then array['schema \"pgspate\"', pg_get_userbyid(n.nspowner)::text] end,
         (select array[pg_catalog.format('%s pgspate.%I',
                           case relkind when 'v' then 'view' when 'm' then 'view'
                                        when 'f' then 'foreign table' else 'relation' end, relname),
                       pg_get_userbyid(relowner)::text]
          from relation where is_odd or relkind not in ('r', 'i', 'S') or not {is_relation_trusted}
          order by relname limit 1),
         (select array[pg_catalog.format('trigger %I of pgspate.%I', g.tgname, r.relname),
                       pg_get_userbyid(p.proowner)::text]
          from relation r join pg_trigger g on g.tgrelid = r.oid join pg_proc p on p.oid = g.tgfoid
          where r.relhastriggers and not g.tgisinternal
            and (g.tgqual is not null or g.tgnargs <> 0
                 or p.pronamespace = 'pg_catalog'::regnamespace::oid or not {is_code_trusted})
          order by 1 limit 1),
         (select array[coalesce(pg_describe_object(d.classid, d.objid, d.objsubid), 'an object'),
                       pg_get_userbyid(o.owner)::text]
          from object o join pg_depend d on d.classid = o.class and d.objid = o.id
          where d.refclassid in ('pg_proc'::regclass::oid, 'pg_operator'::regclass::oid,
                                 'pg_type'::regclass::oid, 'pg_opclass'::regclass::oid)
          order by 1 limit 1))
from pg_namespace n where n.nspname = 'pgspate'";

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
        let sql = SCHEMA_QUERY
            .replace("{is_owner_trusted}", &is_trusted_sql("n.nspowner"))
            .replace("{is_relation_trusted}", &is_trusted_sql("relowner"))
            .replace("{is_code_trusted}", &is_trusted_sql("p.proowner"));
        let found = client.fetch_opt(&sql, &[]).await.map_err(failed)?;
        Ok(found.map_or_else(LedgerSchema::default, |row| {
            let untrusted = row.get::<_, Option<Vec<String>>>(3).map(|mut object_and_owner| {
                let owner = object_and_owner.pop().unwrap_or_default();
                (object_and_owner.pop().unwrap_or_default(), owner)
            });
            LedgerSchema {
                exists: true,
                may_use: row.get(0),
                relations: row.get(1),
                untrusted,
                readable: row.get(2),
            }
        }))
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
