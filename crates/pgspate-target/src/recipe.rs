//! What makes a dropped index or constraint again, or sets a table's options as they were.
//!
//! A recipe has typed fields, and numbers for the table and its columns. Statements are made of
//! it when they run, with the names that the catalog has then: what was renamed meanwhile gets
//! its own index back, never its namesake. The texts in it are clauses as the server prints them;
//! one that is more than a clause is refused.

use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use super::index::IndexKind;
use super::{Ask, quote_ident, quote_literal, server_error};
use crate::{Error, ErrorKind, Result};

/// What options of a table are called as a kind of change.
pub const AUTOVACUUM: &str = "autovacuum";

/// A column's number and its name at the time.
type NumberedColumn = (i16, String);

/// What an index, a constraint or a table's options were.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recipe {
    /// Of an index, what follows the table's name; of an exclusion constraint, all of it; of a
    /// foreign key, what follows the columns that it refers to.
    pub definition: String,
    /// The tablespace, if it is not the default one.
    pub tablespace: Option<String>,
    /// Targets of the index's own columns.
    pub statistics: Vec<(i16, i32)>,
    /// The comment on the index.
    pub comment: Option<String>,
    /// The comment on the constraint.
    pub constraint_comment: Option<String>,
    /// The table is clustered by it.
    pub clustered: bool,
    /// It is the table's replica identity.
    pub replica_identity: bool,
    /// The constraint is deferrable.
    pub deferrable: bool,
    /// The constraint is initially deferred.
    pub deferred: bool,
    /// Columns of the table that it depends on.
    pub columns: Vec<NumberedColumn>,
    /// The table that a foreign key refers to; 0 for none.
    pub far: u32,
    /// The columns that a foreign key refers to.
    pub far_columns: Vec<NumberedColumn>,
    /// Options of the table; none where an option was not set.
    pub options: Vec<(String, Option<String>)>,
}

/// What tables and columns are called now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PresentNames {
    /// As SQL writes them.
    schema: String,
    /// The table's name, as SQL writes it.
    pub table: String,
    columns: Vec<NumberedColumn>,
    far: Option<String>,
    far_columns: Vec<NumberedColumn>,
}

impl Recipe {
    /// Whether an index's constraint, or what refers to the index, is a step of its own.
    fn has_second_step(&self, kind: &str) -> bool {
        match kind {
            "primary key" | "unique constraint" | "foreign key" => true,
            "index" | "unique index" => self.clustered || self.replica_identity,
            _ => false,
        }
    }

    /// The recipe for the ledger: itself, and the names of the steps that follow the first.
    pub fn recorded(&self, kind: &str) -> Vec<String> {
        let mut steps = vec![serde_json::to_string(self).expect("its keys are strings")];
        if self.has_second_step(kind) {
            steps.push(if kind == "foreign key" { "validate" } else { "attach" }.to_owned());
        }
        steps
    }

    /// The recipe of the ledger; none for statements, which earlier versions recorded.
    pub fn read(steps: &[String]) -> Option<Recipe> {
        serde_json::from_str(steps.first()?).ok()
    }

    /// The statements of a step.
    ///
    /// # Errors
    /// When columns were renamed or dropped, or a text is no clause.
    pub fn statements(
        &self,
        kind: &str,
        name: &str,
        now: &PresentNames,
        step: usize,
    ) -> Result<Vec<String>> {
        check_clause(&self.definition)?;
        let (table, quoted) = (&now.table, quote_ident(name));
        match (kind, step) {
            (AUTOVACUUM, _) => self.set_options(table),
            ("foreign key", 0) => self.foreign_key(&quoted, now),
            ("foreign key", _) => {
                Ok(vec![format!("alter table only {table} validate constraint {quoted}")])
            }
            ("exclusion constraint", _) => {
                self.check_columns(now)?;
                let mut all = self.tablespace_first();
                let definition = &self.definition;
                all.push(format!("alter table only {table} add constraint {quoted} {definition}"));
                all.extend(self.about(&quoted, now));
                all.extend(self.marks(&quoted, table));
                Ok(all)
            }
            (_, 0) => {
                self.check_columns(now)?;
                let unique = if kind == IndexKind::Plain.name() { "" } else { "UNIQUE " };
                let mut all = self.tablespace_first();
                let definition = &self.definition;
                all.push(format!("CREATE {unique}INDEX {quoted} ON {table} {definition}"));
                all.extend(self.about(&quoted, now));
                Ok(all)
            }
            ("primary key" | "unique constraint", _) => {
                let kind = if kind == "primary key" { "primary key" } else { "unique" };
                let deferrable = if self.deferrable { " deferrable" } else { "" };
                let deferred = if self.deferred { " initially deferred" } else { "" };
                let mut all = vec![format!(
                    "alter table only {table} add constraint {quoted} {kind} using index \
                     {quoted}{deferrable}{deferred}"
                )];
                all.extend(self.marks(&quoted, table));
                Ok(all)
            }
            _ => Ok(self.marks(&quoted, table)),
        }
    }

    fn tablespace_first(&self) -> Vec<String> {
        let space = quote_literal(self.tablespace.as_deref().unwrap_or_default());
        vec![format!("set local default_tablespace = {space}")]
    }

    /// What is set on the index itself.
    fn about(&self, name: &str, now: &PresentNames) -> Vec<String> {
        let index = format!("{}.{name}", now.schema);
        let targets = self.statistics.iter().map(|(column, target)| {
            format!("alter index {index} alter column {column} set statistics {target}")
        });
        let comment = self.comment.iter();
        let comment =
            comment.map(|text| format!("comment on index {index} is {}", quote_literal(text)));
        targets.chain(comment).collect()
    }

    /// What refers to the index or the constraint.
    fn marks(&self, name: &str, table: &str) -> Vec<String> {
        let comment = self.constraint_comment.iter().map(|text| {
            format!("comment on constraint {name} on {table} is {}", quote_literal(text))
        });
        let cluster = self.clustered.then(|| format!("alter table only {table} cluster on {name}"));
        let identity = self
            .replica_identity
            .then(|| format!("alter table only {table} replica identity using index {name}"));
        comment.chain(cluster).chain(identity).collect()
    }

    fn foreign_key(&self, name: &str, now: &PresentNames) -> Result<Vec<String>> {
        let far = now.far.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Ledger, "the table that it referred to is not there any more")
        })?;
        // Columns of `on delete set null (...)` are in the text.
        if self.definition.contains('(') {
            self.check_columns(now)?;
        }
        let own = names(&self.columns, &now.columns)?;
        let other = names(&self.far_columns, &now.far_columns)?;
        let (table, rest) = (&now.table, &self.definition);
        let mut all = vec![format!(
            "alter table only {table} add constraint {name} foreign key ({own}) references \
             {far} ({other}){rest} not valid"
        )];
        all.extend(self.marks(name, table));
        Ok(all)
    }

    fn set_options(&self, table: &str) -> Result<Vec<String>> {
        let known = ["autovacuum_enabled", "toast.autovacuum_enabled"];
        let statement = |(name, value): &(String, Option<String>)| {
            if !known.contains(&name.as_str()) {
                let message = format!("the ledger says that pgspate has set \"{name}\"");
                return Err(Error::new(ErrorKind::Ledger, message));
            }
            Ok(match value {
                None => format!("alter table {table} reset ({name})"),
                Some(value) => {
                    format!("alter table {table} set ({name} = {})", quote_literal(value))
                }
            })
        };
        self.options.iter().map(statement).collect()
    }

    /// Refuses to use a text in which columns have names that they have no more.
    fn check_columns(&self, now: &PresentNames) -> Result<()> {
        for (number, name) in &self.columns {
            let present = now.columns.iter().find(|(other, _)| other == number);
            match present.map(|(_, present)| present) {
                Some(present) if present == name => {}
                Some(present) => {
                    let message = format!("column \"{name}\" is called \"{present}\" now");
                    return Err(Error::new(ErrorKind::Ledger, message));
                }
                None => return Err(dropped(name)),
            }
        }
        Ok(())
    }
}

fn dropped(name: &str) -> Error {
    Error::new(ErrorKind::Ledger, format!("column \"{name}\" was dropped"))
}

/// Columns as they are called now, in the order that they had, as SQL lists them.
fn names(then: &[NumberedColumn], now: &[NumberedColumn]) -> Result<String> {
    let name = |(number, name): &NumberedColumn| {
        let found = now.iter().find(|(other, _)| other == number).ok_or_else(|| dropped(name))?;
        Ok(quote_ident(&found.1).into_owned())
    };
    Ok(then.iter().map(name).collect::<Result<Vec<String>>>()?.join(", "))
}

/// Refuses a text that is more than one clause: that could end the statement and begin another, or
/// add an action to it. With strings that conform to the standard the server prints neither `E''`
/// nor `$$`, and never a comment.
fn check_clause(text: &str) -> Result<()> {
    match is_clause(text) {
        true => Ok(()),
        false => {
            Err(Error::new(ErrorKind::Ledger, "the ledger has no definition that pgspate wrote")
                .hint("Somebody has changed it; make the index yourself."))
        }
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
select format('%I', n.nspname), format('%I.%I', n.nspname, c.relname)
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.oid = $1";

const COLUMNS: &str = "\
select attnum::int4, attname::text from pg_catalog.pg_attribute
where attrelid = $1 and attnum > 0 and not attisdropped";

/// What a table and its columns are called now, and those of the one that it refers to; none if
/// it is gone.
pub async fn present_names(
    client: &Client,
    table: u32,
    recipe: &Recipe,
) -> Result<Option<PresentNames>> {
    let failed = || server_error("could not look up the table's names".to_owned());
    let ask = async |sql, oid: u32| client.ask_all(sql, &[&oid]).await.map_err(failed());
    let columns = async |oid| {
        let rows = ask(COLUMNS, oid).await?;
        let number = |number: i32| i16::try_from(number).unwrap_or_default();
        Ok(rows.iter().map(|row| (number(row.get(0)), row.get(1))).collect::<Vec<_>>())
    };
    let found = ask(NAMES, table).await?;
    let Some(row) = found.first() else { return Ok(None) };
    let (schema, name) = (row.get(0), row.get(1));
    let mut names =
        PresentNames { schema, table: name, columns: columns(table).await?, ..Default::default() };
    if recipe.far != 0 {
        names.far = ask(NAMES, recipe.far).await?.first().map(|row| row.get(1));
        names.far_columns = columns(recipe.far).await?;
    }
    Ok(Some(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clause_is_one() {
        for text in [
            "",
            "USING btree (a, b DESC NULLS FIRST) INCLUDE (c) WITH (fillfactor='70')",
            r"USING btree (id) WHERE ((b <> 'a\b;--'::text) AND (b ~~ '%''%'::text))",
            r#"USING btree ("odd "";name", ((a - 1) / 2)) WHERE (x = B'101'::"bit")"#,
            " MATCH FULL ON DELETE SET NULL (a) DEFERRABLE INITIALLY DEFERRED",
        ] {
            check_clause(text).unwrap();
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
            check_clause(text).unwrap_err();
        }
    }

    #[test]
    fn names_are_those_of_now() {
        let recipe = Recipe {
            definition: " ON DELETE CASCADE".to_owned(),
            columns: vec![(2, "b".to_owned()), (1, "a".to_owned())],
            far: 7,
            far_columns: vec![(1, "x".to_owned()), (2, "y".to_owned())],
            ..Recipe::default()
        };
        assert_eq!(Recipe::read(&recipe.recorded("foreign key")), Some(recipe.clone()));
        let now = PresentNames {
            schema: "s".to_owned(),
            table: "s.t".to_owned(),
            columns: vec![(1, "A".to_owned()), (2, "b".to_owned())],
            far: Some("s.far".to_owned()),
            far_columns: vec![(1, "x".to_owned()), (2, "z".to_owned())],
        };
        assert_eq!(
            recipe.statements("foreign key", "k", &now, 0).unwrap(),
            ["alter table only s.t add constraint k foreign key (b, \"A\") references s.far \
              (x, z) ON DELETE CASCADE not valid"]
        );
        let refused = recipe.statements("index", "i", &now, 0).unwrap_err();
        assert_eq!(refused.to_string(), "column \"a\" is called \"A\" now");
    }
}
