//! What has to be known of a table to apply events to it.
//!
//! Read once for each table that the stream names; nothing is changed.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_postgres::Client;

use crate::encode::field::FieldEncoder;
use crate::stage::keys::{self, EQUALS};
use crate::stage::referrers;
use crate::{Error, ErrorKind, Result};
use pgspate_events::canon::Canon;
use pgspate_events::fold::FoldKey;
use pgspate_target::{
    Ask, Column, Session, Table, TypeKind, distributed_by, has_heirs, quote_ident, server_error,
    use_users_path,
};

/// A column that can be written.
#[derive(Debug, Clone)]
pub(crate) struct ApplyColumn {
    /// Unquoted.
    pub(crate) name: String,
    /// As SQL writes it.
    pub(crate) sql: String,
    /// `pg_type.typname`, of a domain that of the type beneath it.
    pub(crate) typname: Arc<str>,
    /// Of a domain: the type beneath it, as SQL writes it, which takes NULL for what is absent.
    pub(crate) beneath: Option<String>,
    /// What it has when nothing is said, as SQL.
    pub(crate) default: String,
    /// The operator that finds values of its type equal, as SQL names it on any search path.
    pub(crate) equals: String,
    /// Equal values are the same value.
    pub(crate) is_exact: bool,
    /// No update may set it.
    pub(crate) is_fixed: bool,
}

/// A table that events are applied to.
#[derive(Debug, Clone)]
pub(crate) struct ApplyTable {
    pub(crate) table: Table,
    /// All that can be written, in the table's order.
    pub(crate) columns: Vec<ApplyColumn>,
    /// Names of generated columns, of which the stream may speak.
    pub(crate) generated: Vec<String>,
    /// Positions in `columns`, and how the key's spellings become one.
    pub(crate) keying: FoldKey,
    /// One for each column, if there is one for each.
    pub(crate) encoders: Option<Vec<FieldEncoder>>,
    /// Tables inherit from it, each with rows and events of its own.
    pub(crate) has_heirs: bool,
    /// The tables that its foreign keys refer to.
    pub(crate) parents: Vec<u32>,
    /// Rows may refer to a row, and that is checked or acted on at once.
    pub(crate) is_referenced: bool,
    /// Conditions under which a row of another table, or of this one, refers to row `t`.
    pub(crate) referrers: Vec<String>,
    /// Those of them which are changed or deleted with the row.
    pub(crate) followers: Vec<String>,
    /// Columns of unique indexes besides the key, positions in `columns`.
    pub(crate) unique: Vec<Vec<usize>>,
    /// All columns that a row of the table has: their types' oids, and whether they can be written.
    /// `None` where rows cannot be given as values of the table's own type, as a domain in it
    /// refuses the NULL of what is absent, or it is kept on several servers.
    pub(crate) record: Option<Vec<(u32, bool)>>,
    /// Rises when columns are added.
    pub(crate) version: u32,
}

const COLUMNS: &str = "\
with recursive types(attname, typid, identity, typmod, is_beneath) as (
  select a.attname::text, a.atttypid, a.attidentity::text, a.atttypmod, false from pg_attribute a
  where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
  union all
  select types.attname, t.typbasetype, types.identity, t.typtypmod, true from types
  join pg_type t on t.oid = types.typid where t.typbasetype <> 0)
select attname, t.typname::text, identity = 'a',
       case when identity <> '' then pg_get_serial_sequence($2, attname) end,
       case when is_beneath then format_type(typid, typmod) end
from types join pg_type t on t.oid = types.typid where t.typbasetype = 0";

/// Of tables without a primary key: the narrowest unique index that identifies every row.
const UNIQUE_KEY: &str = "\
select array(select a.attname::text
             from unnest(i.indkey::int2[]) with ordinality as k(attnum, nth)
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
             where k.nth <= i.indnkeyatts order by k.nth)
from pg_index i
where i.indrelid = $1 and i.indisunique and i.indimmediate and i.indisvalid
  and i.indpred is null and i.indexprs is null
  and not exists (select from unnest(i.indkey::int2[]) with ordinality as k(attnum, nth)
                  join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
                  where k.nth <= i.indnkeyatts and not a.attnotnull)
order by i.indisreplident desc, i.indnkeyatts, i.indexrelid limit 1";

const UNIQUE: &str = "\
select array(select a.attname::text
             from unnest(i.indkey::int2[]) with ordinality as k(attnum, nth)
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
             where k.nth <= i.indnkeyatts order by k.nth),
       i.indimmediate and i.indpred is null and i.indexprs is null,
       i.indisprimary and not i.indimmediate
from pg_index i
where i.indrelid = $1 and i.indisunique and i.indisvalid";

const BONDS: &str = "\
with parts(relid) as (select $1::oid union select relid::oid from pg_partition_tree($1::oid))
select array(select distinct coalesce(pg_partition_root(confrelid)::oid, confrelid)
             from pg_constraint where contype = 'f' and conrelid in (select relid from parts)),
       exists (select from pg_constraint
               where contype = 'f' and confrelid in (select relid from parts)
                 and not (condeferrable and confdeltype = 'a'))";

/// Defaults, by the columns' names. Every name is qualified, as the search path is the user's.
const DEFAULTS: &str = "\
select a.attname::pg_catalog.text, pg_catalog.pg_get_expr(d.adbin, d.adrelid)
from pg_catalog.pg_attrdef d join pg_catalog.pg_attribute a
  on a.attrelid operator(pg_catalog.=) d.adrelid and a.attnum operator(pg_catalog.=) d.adnum
where d.adrelid operator(pg_catalog.=) $1";

/// The defaults as the server prints them for the path that statements are read under: what another
/// role's function or operator would hide there has its schema.
async fn defaults(client: &Client, table: &Table) -> Result<HashMap<String, String>> {
    let failed = || server_error(format!("could not look up the defaults of {}", table.sql_name));
    let begin = format!("begin; {}", use_users_path(true));
    let oid = table.oid;
    let (begun, rows, ended) = tokio::join!(
        biased;
        client.batch_execute(&begin),
        async { client.ask_all(DEFAULTS, &[&oid]).await },
        client.batch_execute("rollback")
    );
    begun.map_err(failed())?;
    ended.map_err(failed())?;
    Ok(rows.map_err(failed())?.iter().map(|row| (row.get(0), row.get(1))).collect())
}

impl ApplyColumn {
    /// That two values of the column are equal, by its type's own operator.
    pub(crate) fn equal(&self, left: &str, right: &str) -> String {
        format!("{left} {} {right}", self.equals)
    }

    /// That two values of the column differ.
    pub(crate) fn differ(&self, left: &str, right: &str) -> String {
        keys::differ(left, &self.equals, right)
    }
}

impl ApplyTable {
    /// Reads the facts of the table called `name`, as SQL writes it; `None` if there is none.
    ///
    /// # Errors
    /// A server that does not answer; something that is no table.
    pub(crate) async fn read(
        client: &Client,
        session: &Session,
        name: &str,
    ) -> Result<Option<ApplyTable>> {
        let Some(table) = Table::read(client, name).await? else { return Ok(None) };
        table.check_schema()?;
        if !matches!(table.kind, 'r' | 'p') {
            let message = format!("{} is not a table", table.sql_name);
            return Err(Error::new(ErrorKind::Plan, message).hint(
                "Map the events to a table with `--map`, or leave them out with `--tables`.",
            ));
        }
        let failed = || server_error(format!("could not look up table {}", table.sql_name));
        let types = client.ask_all(COLUMNS, &[&table.oid, &table.sql_name]).await;
        let types = types.map_err(failed())?;
        let lenient = keys::lenient(client, &table).await?;
        let operators = keys::operators(client, &table).await?;
        let defaults = defaults(client, &table).await?;
        let column = |column: &Column| {
            let row = types.iter().find(|row| row.get::<_, &str>(0) == column.name);
            let sequence: Option<String> = row.and_then(|row| row.get(3));
            ApplyColumn {
                name: column.name.clone(),
                sql: quote_ident(&column.name).into_owned(),
                typname: row.map_or("text", |row| row.get(1)).into(),
                beneath: row.and_then(|row| row.get(4)),
                default: match sequence {
                    Some(sequence) => {
                        format!("pg_catalog.nextval('{}')", sequence.replace('\'', "''"))
                    }
                    None => defaults.get(&column.name).cloned().unwrap_or("null".to_owned()),
                },
                equals: operators.get(&column.name).map_or(EQUALS, String::as_str).to_owned(),
                is_exact: keys::is_exact(column) && !lenient.contains(&column.name),
                is_fixed: row.is_some_and(|row| row.get(2)),
            }
        };
        let written = || table.columns.iter().filter(|column| !column.is_generated);
        let columns: Vec<ApplyColumn> = written().map(column).collect();
        let encoder = |column: &Column| FieldEncoder::new(&column.ty, session).ok();
        let encoders = written().map(encoder).collect();
        let generated = table.columns.iter().filter(|column| column.is_generated);
        let generated = generated.map(|column| column.name.clone()).collect();
        let mut key = keys::primary_key(client, &table).await?;
        if key.is_empty() {
            let row = client.ask_opt(UNIQUE_KEY, &[&table.oid]).await.map_err(failed())?;
            key = row.map(|row| row.get(0)).unwrap_or_default();
        }
        let at = |name: &String| columns.iter().position(|column| column.name == *name);
        let canon = |name: &String| {
            let found = table.columns.iter().find(|column| column.name == *name)?;
            let is_lenient = lenient.contains(name);
            Some((at(name)?, Canon::of(&found.ty, session, is_lenient)))
        };
        let unique = client.ask_all(UNIQUE, &[&table.oid]).await.map_err(failed())?;
        let keying = FoldKey {
            columns: key.iter().filter_map(canon).collect(),
            is_deferrable: unique.iter().any(|row| row.get(2)),
        };
        let plain = unique.iter().filter(|row| row.get(1));
        let plain = plain.filter(|row| row.get::<_, Vec<String>>(0) != key);
        let positions =
            plain.filter_map(|row| row.get::<_, Vec<String>>(0).iter().map(at).collect());
        let is_domain = |column: &Column| matches!(column.ty.kind, TypeKind::Domain(_));
        let is_plain =
            !table.columns.iter().any(is_domain) && distributed_by(client, &table).await?.is_none();
        let record = table.columns.iter().map(|column| (column.ty.oid, !column.is_generated));
        let record = is_plain.then(|| record.collect());
        let bonds = client.ask_one(BONDS, &[&table.oid]).await.map_err(failed())?;
        let has_heirs = has_heirs(client, &table).await?;
        let referrers = referrers(client, &table).await?;
        let followers = referrers.iter().filter(|it| it.follows);
        Ok(Some(ApplyTable {
            followers: followers.map(|it| it.condition.clone()).collect(),
            referrers: referrers.into_iter().map(|it| it.condition).collect(),
            unique: positions.collect(),
            columns,
            generated,
            keying,
            encoders,
            parents: bonds.get(0),
            is_referenced: bonds.get(1),
            record,
            has_heirs,
            table,
            version: 0,
        }))
    }

    /// The table without those that inherit from it, which have events of their own; with all of
    /// its partitions, and all parts of a table that an extension keeps in parts.
    pub(crate) fn itself(&self) -> String {
        match self.has_heirs {
            true => format!("only {}", self.table.sql_name),
            false => self.table.sql_name.clone(),
        }
    }

    /// Whether it has a column of this name, which may be a generated one.
    pub(crate) fn has_column(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.name == name)
            || self.generated.iter().any(|column| column == name)
    }

    /// Its foreign keys refer to itself.
    pub(crate) fn refers_to_itself(&self) -> bool {
        self.parents.contains(&self.table.oid)
    }

    /// Whether it may help that rows to which nothing refers go early, for unique values to change
    /// hands.
    pub(crate) fn may_free(&self) -> bool {
        !self.unique.is_empty() && self.has_key()
    }

    /// Whether rows can be told apart.
    pub(crate) fn has_key(&self) -> bool {
        !self.keying.columns.is_empty()
    }

    /// The same with a column of type text more.
    pub(crate) fn with_column(&self, name: &str) -> ApplyTable {
        let mut facts = self.clone();
        facts.columns.push(ApplyColumn {
            name: name.to_owned(),
            sql: quote_ident(name).into_owned(),
            typname: "text".into(),
            beneath: None,
            default: "null".to_owned(),
            equals: EQUALS.to_owned(),
            is_exact: true,
            is_fixed: false,
        });
        // Until it is read again, which an encoder for text needs not.
        facts.encoders = None;
        facts.record = None;
        facts.version += 1;
        facts
    }
}
