//! Whether the ledger may be used: asked of the catalog alone, before anything of it is read.
//!
//! Whoever owns a table decides what runs when it is read or written: a view has a query, a table
//! has defaults, policies and triggers. So the ledger is used only where its owners could do all
//! that it might make the role do, and where it is made of what pgspate makes. Other roles may have
//! been given the right to make triggers. A trigger counts only if such an owner has made its
//! function. It must have no condition, as that could call any function, and no arguments, as
//! functions make SQL of these. What a former owner has left is found by what it depends on: all
//! that pgspate makes depends on nothing but the server's own functions and types.

use tokio_postgres::Client;

use super::policies;
use crate::{Ask, Error, ErrorKind, Result, is_trusted_sql, server_error};

/// SQL for whether the role that a row of the ledger names in `role` is trusted.
pub(super) fn is_role_trusted_sql() -> String {
    let is_trusted = is_trusted_sql("r.oid");
    format!("exists (select from pg_roles r where r.rolname = role and {is_trusted})")
}

/// The role of a row that is not to be trusted, or that row-level security keeps from this role.
/// `row` is a table and a condition: `pgspate.stream where stream = 'a'`.
///
/// # Errors
/// When the ledger cannot be read.
pub(super) async fn doubtful_role(client: &Client, row: &str) -> Result<Option<String>> {
    let failed = server_error("could not read the ledger, schema \"pgspate\"".to_owned());
    let sql = format!(
        "select role::text from {row} and not ({} and {})",
        is_role_trusted_sql(),
        policies::IS_OURS
    );
    let found = client.ask_opt(&sql, &[]).await.map_err(failed)?;
    Ok(found.map(|row| row.get(0)))
}

/// Columns: 0 whether there is the schema, 1 whether the role may use it, 2 names of tables, 3 what
/// is not trusted, 4 its owner; both NULL where all is.
const LOOK: &str = "\
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
doubt as (
  select what, pg_get_userbyid(owner)::text as owner from part
  where not is_ours or not {is_trusted} order by nth, what limit 1)
select exists (select from schema),
       coalesce((select has_schema_privilege(oid, 'usage') from schema), false),
       array(select relname::text from relation where relkind <> 'i'),
       (select what from doubt), (select owner from doubt)";

/// The ledger's schema as the catalog has it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LedgerSchema {
    pub(super) is_there: bool,
    may_use: bool,
    relations: Vec<String>,
    doubt: Option<(String, String)>,
}

impl LedgerSchema {
    /// Looks at the schema; reads nothing of it.
    ///
    /// # Errors
    /// Those of the connection.
    pub(crate) async fn read(client: &Client) -> Result<LedgerSchema> {
        let failed = server_error("could not look for the ledger, schema \"pgspate\"".to_owned());
        let sql = LOOK.replace("{is_trusted}", &is_trusted_sql("owner"));
        let row = client.ask_one(&sql, &[]).await.map_err(failed)?;
        let doubt: Option<String> = row.get(3);
        Ok(LedgerSchema {
            is_there: row.get(0),
            may_use: row.get(1),
            relations: row.get(2),
            doubt: doubt.map(|what| (what, row.get(4))),
        })
    }

    /// Whether it has a table of that name, which may be used.
    ///
    /// # Errors
    /// Of [`ErrorKind::Ledger`] when it is not to be trusted, or is no ledger.
    pub(super) fn has(&self, table: &str) -> Result<bool> {
        self.check()?;
        Ok(self.relations.iter().any(|it| it == table))
    }

    /// Whether it can be read, for those who do without it otherwise.
    pub(super) fn is_readable(&self) -> bool {
        self.may_use && matches!(self.has("version"), Ok(true))
    }

    /// Refuses a schema that is not to be trusted, or is no ledger.
    fn check(&self) -> Result<()> {
        if let Some((what, owner)) = &self.doubt {
            let message = format!("{what}, owned by role \"{owner}\", is not to be trusted");
            return Err(Error::new(ErrorKind::Ledger, message).hint(format!(
                "What it makes the server run would be run as your role. Connect as \"{owner}\". \
                 Or have a superuser drop what pgspate has not made, and own the ledger: \
                 `alter schema pgspate owner to ROLE`, and `alter table pgspate.NAME owner to \
                 ROLE` for each table. Or load with `--no-ledger`."
            )));
        }
        // An empty one was made for us by somebody who may make schemas.
        let is_ledger = self.relations.iter().any(|it| it == "version");
        match self.is_there && !is_ledger && !self.relations.is_empty() {
            true => {
                Err(Error::new(ErrorKind::Ledger, "schema \"pgspate\" is not a ledger of pgspate")
                    .hint("Rename that schema, or load with `--no-ledger`."))
            }
            false => Ok(()),
        }
    }
}
