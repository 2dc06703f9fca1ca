//! How to recreate a dropped index or constraint, or to restore a table's options.
//!
//! A recipe has typed fields, and stores the table by oid and its columns by number. Statements are
//! built when they run, with the current names from the catalog. So a renamed table gets its index
//! back, and a new table with the old name does not. Texts in a recipe must be single clauses as
//! the server prints them. Any other text is refused.

use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use super::index::IndexKind;
use super::{TypedQuery, quote_ident, quote_literal, server_error};
use crate::{Error, ErrorKind, Result};

/// The kind of a recorded change of autovacuum options.
pub const AUTOVACUUM_CHANGE: &str = "autovacuum";

/// A column's number, and its name when the recipe was made.
type NumberedColumn = (i16, String);

/// How an index, a constraint or a table's options were defined.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestoreRecipe {
    /// For an index, the text after the table's name. For an exclusion constraint, the whole
    /// definition. For a foreign key, the text after the referenced columns.
    pub definition: String,
    /// The tablespace, unless it is the database's default.
    pub tablespace: Option<String>,
    /// Statistics targets of the index's own columns.
    pub statistics: Vec<(i16, i32)>,
    /// Whether the index has an expression. Its statistics are dropped with the index.
    pub expression: bool,
    /// The comment on the index.
    pub comment: Option<String>,
    /// The comment on the constraint.
    pub constraint_comment: Option<String>,
    /// Whether the table is clustered on this index.
    pub clustered: bool,
    /// Whether the index is the table's replica identity.
    pub replica_identity: bool,
    /// Whether the constraint is deferrable.
    pub deferrable: bool,
    /// Whether the constraint is initially deferred.
    pub deferred: bool,
    /// Columns of the table that the index or constraint depends on.
    pub columns: Vec<NumberedColumn>,
    /// The oid of the table that a foreign key refers to; 0 for none.
    #[serde(rename = "far")]
    pub referenced_table: u32,
    /// The columns that a foreign key refers to.
    #[serde(rename = "far_columns")]
    pub referenced_columns: Vec<NumberedColumn>,
    /// Options of the table. The value is `None` if the option was not set.
    pub options: Vec<(String, Option<String>)>,
}

/// The current names of a table and its columns, and whether its settings are as a load left them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CurrentNames {
    /// The schema, quoted for SQL.
    schema: String,
    /// Schema and table, quoted for SQL.
    pub table: String,
    columns: Vec<NumberedColumn>,
    /// Whether the table's replica identity is a dropped index.
    lacks_replica_index: bool,
    /// Whether the table is clustered on no index.
    lacks_cluster_index: bool,
    /// The autovacuum options that are off.
    options_off: Vec<String>,
    referenced_table: Option<String>,
    referenced_columns: Vec<NumberedColumn>,
}

/// The statements of one step of a recipe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepStatements {
    /// Statements that create the object, validate it, or restore options.
    pub creation: Vec<String>,
    /// Statements that give the object its comment, its statistics targets and its marks.
    pub attributes: Vec<String>,
}

impl RestoreRecipe {
    /// Returns whether restoring takes a second step: adding or validating the constraint, or
    /// marking the index as clustered or as replica identity.
    fn has_second_step(&self, kind: &str) -> bool {
        match kind {
            "primary key" | "unique constraint" | "foreign key" => true,
            "index" | "unique index" => self.clustered || self.replica_identity,
            _ => false,
        }
    }

    /// Returns the steps for the ledger: this recipe as JSON, then the name of the second step if
    /// there is one.
    pub fn to_ledger_steps(&self, kind: &str) -> Vec<String> {
        let mut steps = vec![serde_json::to_string(self).expect("its keys are strings")];
        if self.has_second_step(kind) {
            steps.push(if kind == "foreign key" { "validate" } else { "attach" }.to_owned());
        }
        steps
    }

    /// Parses the recipe from the ledger's steps. Returns `None` for plain SQL statements, which
    /// earlier versions recorded.
    pub fn from_ledger_steps(steps: &[String]) -> Option<RestoreRecipe> {
        serde_json::from_str(steps.first()?).ok()
    }

    /// Returns the statements of one step, for the object `name` of the kind `kind`. An object that
    /// exists already only needs the [`StepStatements::attributes`].
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if columns were renamed or dropped, or if a text is not a single
    /// clause.
    pub fn statements(
        &self,
        kind: &str,
        name: &str,
        current: &CurrentNames,
        step: usize,
    ) -> Result<StepStatements> {
        check_is_clause(&self.definition)?;
        let (table, quoted, definition) = (&current.table, quote_ident(name), &self.definition);
        let constraint_attributes = self.constraint_attributes(&quoted, current);
        let (creation, attributes) = match (kind, step) {
            (AUTOVACUUM_CHANGE, _) => (self.restore_options(current)?, Vec::new()),
            ("foreign key", 0) => {
                (vec![self.add_foreign_key(&quoted, current)?], constraint_attributes)
            }
            ("foreign key", _) => {
                let validate = format!("alter table only {table} validate constraint {quoted}");
                (vec![validate], Vec::new())
            }
            ("exclusion constraint", _) => {
                self.check_columns(current)?;
                let add = format!("alter table only {table} add constraint {quoted} {definition}");
                let mut attributes = self.index_attributes(&quoted, current);
                attributes.extend(constraint_attributes);
                (vec![self.set_tablespace(), add], attributes)
            }
            (_, 0) => {
                self.check_columns(current)?;
                let unique = if kind == IndexKind::Plain.name() { "" } else { "UNIQUE " };
                let create = format!("CREATE {unique}INDEX {quoted} ON {table} {definition}");
                (vec![self.set_tablespace(), create], self.index_attributes(&quoted, current))
            }
            ("primary key" | "unique constraint", _) => {
                let kind = if kind == "primary key" { "primary key" } else { "unique" };
                let deferrable = if self.deferrable { " deferrable" } else { "" };
                let deferred = if self.deferred { " initially deferred" } else { "" };
                let add = format!(
                    "alter table only {table} add constraint {quoted} {kind} using index \
                     {quoted}{deferrable}{deferred}"
                );
                (vec![add], constraint_attributes)
            }
            _ => (Vec::new(), constraint_attributes),
        };
        Ok(StepStatements { creation, attributes })
    }

    /// Returns the statement that selects the index's tablespace.
    fn set_tablespace(&self) -> String {
        let tablespace = quote_literal(self.tablespace.as_deref().unwrap_or_default());
        format!("set local default_tablespace = {tablespace}")
    }

    /// Returns statements that set the index's statistics targets and comment.
    fn index_attributes(&self, name: &str, current: &CurrentNames) -> Vec<String> {
        let index = format!("{}.{name}", current.schema);
        let targets = self.statistics.iter().map(|(column, target)| {
            format!("alter index {index} alter column {column} set statistics {target}")
        });
        let comment = self.comment.iter();
        let comment =
            comment.map(|text| format!("comment on index {index} is {}", quote_literal(text)));
        targets.chain(comment).collect()
    }

    /// Returns statements that set the constraint's comment, and mark the index as clustered and as
    /// replica identity. A mark or a replica identity that was changed since stays.
    fn constraint_attributes(&self, name: &str, current: &CurrentNames) -> Vec<String> {
        let table = &current.table;
        let comment = self.constraint_comment.iter().map(|text| {
            format!("comment on constraint {name} on {table} is {}", quote_literal(text))
        });
        let cluster = (self.clustered && current.lacks_cluster_index)
            .then(|| format!("alter table only {table} cluster on {name}"));
        let identity = (self.replica_identity && current.lacks_replica_index)
            .then(|| format!("alter table only {table} replica identity using index {name}"));
        comment.chain(cluster).chain(identity).collect()
    }

    /// Returns the statement that adds the foreign key without validating it.
    fn add_foreign_key(&self, name: &str, current: &CurrentNames) -> Result<String> {
        let referenced = current.referenced_table.as_ref().ok_or_else(|| {
            Error::new(
                ErrorKind::Ledger,
                "the table that the foreign key refers to no longer exists",
            )
        })?;
        // The text contains the column names of `on delete set null (...)`.
        if self.definition.contains('(') {
            self.check_columns(current)?;
        }
        let columns = current_column_list(&self.columns, &current.columns)?;
        let referenced_columns =
            current_column_list(&self.referenced_columns, &current.referenced_columns)?;
        let (table, rest) = (&current.table, &self.definition);
        Ok(format!(
            "alter table only {table} add constraint {name} foreign key ({columns}) references \
             {referenced} ({referenced_columns}){rest} not valid"
        ))
    }

    /// Returns the settings that were changed since the load changed them, in words. They stay as
    /// they are.
    pub fn changed_settings(&self, kind: &str, current: &CurrentNames, step: usize) -> Vec<String> {
        let is_attached = step == 1 || kind == "exclusion constraint";
        let identity = (self.replica_identity && is_attached && !current.lacks_replica_index)
            .then(|| format!("the replica identity of {}", current.table));
        let cluster = (self.clustered && is_attached && !current.lacks_cluster_index)
            .then(|| format!("the index to cluster {} on", current.table));
        let options = self.options.iter().map(|(name, _)| name);
        let options = options.filter(|name| !current.options_off.contains(name));
        let options = options.map(|name| format!("{name} of {}", current.table));
        options.chain(identity).chain(cluster).collect()
    }

    /// Returns statements that set or reset the table's recorded options, as far as they are off.
    fn restore_options(&self, current: &CurrentNames) -> Result<Vec<String>> {
        let table = &current.table;
        let allowed = ["autovacuum_enabled", "toast.autovacuum_enabled"];
        let statement = |(name, value): &(String, Option<String>)| {
            if !allowed.contains(&name.as_str()) {
                let message = format!(
                    "the ledger records a change of option \"{name}\", which pgspate never sets"
                );
                return Err(Error::new(ErrorKind::Ledger, message));
            }
            Ok(match value {
                None => format!("alter table {table} reset ({name})"),
                Some(value) => {
                    format!("alter table {table} set ({name} = {})", quote_literal(value))
                }
            })
        };
        let statements: Vec<_> = self.options.iter().map(statement).collect::<Result<_>>()?;
        let is_off = self.options.iter().map(|(name, _)| current.options_off.contains(name));
        Ok(statements.into_iter().zip(is_off).filter_map(|(sql, off)| off.then_some(sql)).collect())
    }

    /// Refuses a recipe whose text names columns that were renamed or dropped.
    fn check_columns(&self, current: &CurrentNames) -> Result<()> {
        for (number, name) in &self.columns {
            let column = current.columns.iter().find(|(other, _)| other == number);
            match column.map(|(_, current_name)| current_name) {
                Some(current_name) if current_name == name => {}
                Some(current_name) => {
                    let message = format!("column \"{name}\" was renamed to \"{current_name}\"");
                    return Err(Error::new(ErrorKind::Ledger, message));
                }
                None => return Err(dropped_column_error(name)),
            }
        }
        Ok(())
    }
}

fn dropped_column_error(name: &str) -> Error {
    Error::new(ErrorKind::Ledger, format!("column \"{name}\" was dropped"))
}

/// Returns the current names of recorded columns, in their recorded order, as an SQL list.
fn current_column_list(recorded: &[NumberedColumn], current: &[NumberedColumn]) -> Result<String> {
    let current_name = |(number, name): &NumberedColumn| {
        let found = current
            .iter()
            .find(|(other, _)| other == number)
            .ok_or_else(|| dropped_column_error(name))?;
        Ok(quote_ident(&found.1).into_owned())
    };
    Ok(recorded.iter().map(current_name).collect::<Result<Vec<String>>>()?.join(", "))
}

/// Refuses a text that is not a single clause. Otherwise the text could end the statement and start
/// another one, or add an action. Also refuses `E''`, `$$` and comments, which the server never
/// prints in a definition while `standard_conforming_strings` is on.
fn check_is_clause(text: &str) -> Result<()> {
    match is_clause(text) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Ledger,
            "the definition in the ledger was not written by pgspate",
        )
        .hint("Another program changed the ledger. Create the index or constraint by hand.")),
    }
}

fn is_clause(text: &str) -> bool {
    let (mut rest, mut depth) = (text, 0u32);
    while let Some(at) = rest.find(['\'', '"', ';', '$', '-', '/', '\\', '(', ')', ',']) {
        let (before, found) = rest.split_at(at);
        let end = match found.as_bytes()[0] {
            b'\'' if before.ends_with(['e', 'E', '&']) => return false,
            quote @ (b'\'' | b'"') => match found[1..].find(char::from(quote)) {
                Some(end) => end + 2,
                None => return false,
            },
            b'(' => {
                depth += 1;
                1
            }
            b')' if depth > 0 => {
                depth -= 1;
                1
            }
            b',' if depth > 0 => 1,
            b'-' | b'/' if !found.starts_with("--") && !found.starts_with("/*") => 1,
            _ => return false,
        };
        rest = &found[end..];
    }
    depth == 0
}

const NAMES: &str = "\
select format('%I', n.nspname), format('%I.%I', n.nspname, c.relname),
       c.relreplident = 'i' and not exists (
           select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisreplident),
       not exists (
           select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisclustered),
       array(select o.name from (values ('autovacuum_enabled', c.oid),
                                        ('toast.autovacuum_enabled', c.reltoastrelid)) o(name, oid)
             join pg_catalog.pg_class r on r.oid = o.oid
             where 'autovacuum_enabled=off' = any(r.reloptions))
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.oid = $1";

const COLUMNS: &str = "\
select attnum::int4, attname::text from pg_catalog.pg_attribute
where attrelid = $1 and attnum > 0 and not attisdropped";

/// Reads the current names of a table, its columns, and the table that a foreign key refers to.
/// Returns `None` if the table no longer exists.
pub async fn read_current_names(
    client: &Client,
    table: u32,
    recipe: &RestoreRecipe,
) -> Result<Option<CurrentNames>> {
    let failed = || server_error("could not read the table's names".to_owned());
    let fetch = async |sql, oid: u32| client.fetch_all(sql, &[&oid]).await.map_err(failed());
    let columns = async |oid| {
        let rows = fetch(COLUMNS, oid).await?;
        let number = |attnum: i32| i16::try_from(attnum).unwrap_or_default();
        Ok(rows.iter().map(|row| (number(row.get(0)), row.get(1))).collect::<Vec<_>>())
    };
    let found = fetch(NAMES, table).await?;
    let Some(row) = found.first() else { return Ok(None) };
    let (schema, name) = (row.get(0), row.get(1));
    let mut names = CurrentNames {
        schema,
        table: name,
        columns: columns(table).await?,
        lacks_replica_index: row.get(2),
        lacks_cluster_index: row.get(3),
        options_off: row.get(4),
        ..CurrentNames::default()
    };
    if recipe.referenced_table != 0 {
        names.referenced_table =
            fetch(NAMES, recipe.referenced_table).await?.first().map(|row| row.get(1));
        names.referenced_columns = columns(recipe.referenced_table).await?;
    }
    Ok(Some(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_clauses_are_accepted() {
        for text in [
            "",
            "USING btree (a, b DESC NULLS FIRST) INCLUDE (c) WITH (fillfactor='70')",
            r"USING btree (id) WHERE ((b <> 'a\b;--'::text) AND (b ~~ '%''%'::text))",
            r#"USING btree ("odd "";name", ((a - 1) / 2)) WHERE (x = B'101'::"bit")"#,
            " MATCH FULL ON DELETE SET NULL (a) DEFERRABLE INITIALLY DEFERRED",
        ] {
            check_is_clause(text).unwrap();
        }
        for text in [
            "USING btree (a); drop table t",
            r"USING btree (a) WHERE (b = E'\'; drop table t; --')",
            r"USING btree (a) WHERE (b = U&'\0027')",
            "USING btree (a) WHERE (b = $$a$$)",
            "USING btree (a) -- and no more",
            "USING btree (a) /* and no more",
            "USING btree (a) WHERE (b = 'open)",
            "USING btree (\"a)",
            "USING gist (a WITH =), owner to somebody",
            "USING btree (a), (b",
            "USING btree (a))",
        ] {
            check_is_clause(text).unwrap_err();
        }
    }

    #[test]
    fn statements_use_current_names() {
        let recipe = RestoreRecipe {
            definition: " ON DELETE CASCADE".to_owned(),
            columns: vec![(2, "b".to_owned()), (1, "a".to_owned())],
            referenced_table: 7,
            referenced_columns: vec![(1, "x".to_owned()), (2, "y".to_owned())],
            ..RestoreRecipe::default()
        };
        assert_eq!(
            RestoreRecipe::from_ledger_steps(&recipe.to_ledger_steps("foreign key")),
            Some(recipe.clone())
        );
        let current = CurrentNames {
            schema: "s".to_owned(),
            table: "s.t".to_owned(),
            columns: vec![(1, "A".to_owned()), (2, "b".to_owned())],
            referenced_table: Some("s.far".to_owned()),
            lacks_replica_index: false,
            lacks_cluster_index: true,
            options_off: Vec::new(),
            referenced_columns: vec![(1, "x".to_owned()), (2, "z".to_owned())],
        };
        assert_eq!(
            recipe.statements("foreign key", "k", &current, 0).unwrap().creation,
            ["alter table only s.t add constraint k foreign key (b, \"A\") references s.far \
              (x, z) ON DELETE CASCADE not valid"]
        );
        let refused = recipe.statements("index", "i", &current, 0).unwrap_err();
        assert_eq!(refused.to_string(), "column \"a\" was renamed to \"A\"");
    }
}
