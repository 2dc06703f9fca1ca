//! Maps source tables to target tables, from `--map` and `--tables`.
//!
//! A pattern is a table name with or without a schema. A pattern without a schema matches tables in
//! every schema. The schema and the table name may each have one `*`, which stands for any
//! characters.

use crate::{Error, ErrorKind, Result};
use pgspate_events::SourceTable;
use pgspate_target::{LEDGER_SCHEMA, check_is_user_schema, quote_ident};

/// The parsed `--map` and `--tables`.
#[derive(Debug, Clone, Default)]
pub(crate) struct TableMap {
    mappings: Vec<TableMapping>,
    only_tables: Vec<TablePattern>,
}

/// One `--map`: source tables that match `from` are applied to the table `to`.
#[derive(Debug, Clone)]
struct TableMapping {
    from: TablePattern,
    to: TablePattern,
}

/// A name of `--tables` for which the target has no table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnknownTable {
    /// The name as the user wrote it.
    pub(crate) written: String,
    /// The target table, quoted for SQL. `None` if the name has a `*`.
    pub(crate) sql_name: Option<String>,
}

/// A table name, and a schema if one is given. Each may have a `*`.
#[derive(Debug, Clone)]
struct TablePattern {
    schema: Option<String>,
    table: String,
}

impl TableMap {
    /// Parses mappings `from=to`, and patterns.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when a mapping is invalid.
    pub(crate) fn parse(mappings: &[String], only_tables: &[String]) -> Result<TableMap> {
        let map = |written: &String| {
            let Some((from, to)) = written.split_once('=') else {
                let message = format!("\"{written}\" is not a mapping of tables");
                return Err(Error::new(ErrorKind::Usage, message).hint(
                    "Write `--map shop.orders=public.orders`, or `--map 'shop.*=public.*'`.",
                ));
            };
            let (from, to) = (TablePattern::parse(from), TablePattern::parse(to));
            check_is_user_schema(written, to.schema.as_deref().unwrap_or_default())?;
            let count_stars = |pattern: &TablePattern| {
                let schema = pattern.schema.as_deref().unwrap_or_default();
                [schema.matches('*').count(), pattern.table.matches('*').count()]
            };
            let (left, right) = (count_stars(&from), count_stars(&to));
            if left.iter().chain(&right).any(|stars| *stars > 1)
                || right[0] > left[0]
                || right[1] > left[1]
            {
                let message = format!("\"{written}\" has a `*` in a wrong place");
                return Err(Error::new(ErrorKind::Usage, message).hint(
                    "A schema and a table name may each have one `*`. If the schema on the right \
                     has a `*`, the schema on the left needs one, too. The same applies to the \
                     table names.",
                ));
            }
            Ok(TableMapping { from, to })
        };
        Ok(TableMap {
            mappings: mappings.iter().map(map).collect::<Result<_>>()?,
            only_tables: only_tables.iter().map(|written| TablePattern::parse(written)).collect(),
        })
    }

    /// Checks whether events of the table are applied. Events of the source's own ledger describe
    /// what was applied to the source. They are applied only if `--map` names the ledger's schema.
    pub(crate) fn includes(&self, name: &SourceTable) -> bool {
        let is_of_ledger = name.schema.as_deref() == Some(LEDGER_SCHEMA);
        if is_of_ledger && !self.mappings.iter().any(|it| it.from.is_of_ledger(name)) {
            return false;
        }
        self.only_tables.is_empty()
            || self.only_tables.iter().any(|pattern| pattern.matches(name).is_some())
    }

    /// Returns whether `--tables` names the tables whose events are applied.
    pub(crate) fn chooses_tables(&self) -> bool {
        !self.only_tables.is_empty()
    }

    /// Returns the first of `--tables` whose events could go to none of the target's tables, which
    /// are `existing`. Such a pattern is probably misspelt.
    ///
    /// Patterns with a `*`, or without a schema, may match source tables that are not known yet. So
    /// any target counts that one of these tables could have.
    pub(crate) fn find_unknown(&self, existing: &[SourceTable]) -> Option<UnknownTable> {
        let unknown = self.only_tables.iter().find(|pattern| {
            let targets = self.targets_of(pattern);
            !existing.iter().any(|table| targets.iter().any(|target| target.may_become(table)))
        })?;
        let TablePattern { schema, table } = unknown.clone();
        let written =
            schema.iter().chain([&table]).map(String::as_str).collect::<Vec<_>>().join(".");
        let sql_name = match written.contains('*') {
            true => None,
            false => Some(self.target_sql_name(&SourceTable { schema, table })),
        };
        Some(UnknownTable { written, sql_name })
    }

    /// Returns patterns that match each table to which events of the pattern's tables may go.
    fn targets_of(&self, pattern: &TablePattern) -> Vec<TablePattern> {
        let mut targets = Vec::new();
        for TableMapping { from, to } in &self.mappings {
            let Some((of_schema, of_table)) = from.overlap(pattern) else { continue };
            let schema = to.schema.as_ref().map(|schema| schema.replacen('*', of_schema, 1));
            targets.push(TablePattern { schema, table: to.table.replacen('*', of_table, 1) });
            let has_schema = from.schema.is_none() || pattern.schema.is_some();
            if has_schema && !pattern.has_star() {
                // The mapping fits the one table that the pattern matches.
                return targets;
            }
        }
        targets.push(pattern.clone());
        targets
    }

    /// Returns the target table, quoted for SQL.
    pub(crate) fn target_sql_name(&self, name: &SourceTable) -> String {
        let (_, SourceTable { schema, table }) = self.target_of(name);
        sql_name(schema.as_deref(), &table)
    }

    /// Checks whether `--map` may send other tables, too, to the target of a table.
    pub(crate) fn may_share_target(&self, name: &SourceTable) -> bool {
        let (fitting, target) = self.target_of(name);
        self.mappings.iter().enumerate().any(|(at, mapping)| match fitting == Some(at) {
            true => mapping.drops_star(),
            false => mapping.to.may_become(&target),
        })
    }

    /// Returns the position of the mapping that fits, and the target table.
    fn target_of(&self, name: &SourceTable) -> (Option<usize>, SourceTable) {
        for (at, TableMapping { from, to }) in self.mappings.iter().enumerate() {
            let Some((of_schema, of_table)) = from.matches(name) else { continue };
            let schema = to.schema.as_ref().map(|schema| schema.replacen('*', of_schema, 1));
            let table = to.table.replacen('*', of_table, 1);
            return (Some(at), SourceTable { schema, table });
        }
        (None, name.clone())
    }
}

impl TableMapping {
    /// Checks whether several tables that `from` matches have one target.
    fn drops_star(&self) -> bool {
        let has_star = |schema: &Option<String>| schema.as_ref().is_some_and(|it| it.contains('*'));
        has_star(&self.from.schema) && !has_star(&self.to.schema)
            || self.from.table.contains('*') && !self.to.table.contains('*')
    }
}

impl TablePattern {
    /// Splits a pattern at the first dot into schema and table.
    fn parse(written: &str) -> TablePattern {
        let (schema, table) = match written.split_once('.') {
            Some((schema, table)) => (Some(schema.to_owned()), table),
            None => (None, written),
        };
        TablePattern { schema, table: table.to_owned() }
    }

    fn has_star(&self) -> bool {
        self.table.contains('*') || self.schema.as_ref().is_some_and(|schema| schema.contains('*'))
    }

    /// Returns what the `*` of the schema and the `*` of the table name stand for, for tables that
    /// `other` matches too. This is `*` itself if it is not the same for all of these tables.
    /// Returns `None` if there are no such tables.
    fn overlap<'a>(&self, other: &'a TablePattern) -> Option<(&'a str, &'a str)> {
        let of_schema = match (&self.schema, &other.schema) {
            (None, _) => "",
            (Some(_), None) => "*",
            (Some(pattern), Some(schema)) => star_overlap(pattern, schema)?,
        };
        Some((of_schema, star_overlap(&self.table, &other.table)?))
    }

    /// Checks whether the pattern names the ledger's schema and matches the table.
    fn is_of_ledger(&self, name: &SourceTable) -> bool {
        self.schema.as_deref() == Some(LEDGER_SCHEMA) && self.matches(name).is_some()
    }

    /// Checks whether the pattern of a target may stand for the table. A name without a schema may
    /// be in any schema.
    fn may_become(&self, target: &SourceTable) -> bool {
        let schemas = self.schema.as_ref().zip(target.schema.as_ref());
        schemas.is_none_or(|(pattern, schema)| star_match(pattern, schema).is_some())
            && star_match(&self.table, &target.table).is_some()
    }

    /// Returns the texts that the `*` of the schema and the `*` of the table name match. Returns
    /// `None` if the pattern does not match the table.
    fn matches<'a>(&self, name: &'a SourceTable) -> Option<(&'a str, &'a str)> {
        let of_schema = match (&self.schema, name.schema.as_deref()) {
            (None, _) => "",
            (Some(pattern), Some(schema)) => star_match(pattern, schema)?,
            (Some(_), None) => return None,
        };
        Some((of_schema, star_match(&self.table, &name.table)?))
    }
}

/// Returns the part of `text` that the `*` of `pattern` matches; an empty text for a pattern
/// without `*`. Returns `None` if the pattern does not match.
fn star_match<'a>(pattern: &str, text: &'a str) -> Option<&'a str> {
    match pattern.split_once('*') {
        None => (pattern == text).then_some(""),
        Some((start, end)) => text.strip_prefix(start)?.strip_suffix(end),
    }
}

/// Returns what the `*` of `pattern` stands for in texts that `other` matches, too: `*` if `other`
/// has a `*` itself. Returns `None` if there are no such texts.
fn star_overlap<'a>(pattern: &str, other: &'a str) -> Option<&'a str> {
    let Some((start, end)) = other.split_once('*') else { return star_match(pattern, other) };
    let (from_start, from_end) = pattern.split_once('*').unwrap_or((pattern, ""));
    let starts = from_start.starts_with(start) || start.starts_with(from_start);
    let ends = match pattern.contains('*') {
        true => from_end.ends_with(end) || end.ends_with(from_end),
        false => star_match(other, pattern).is_some(),
    };
    (starts && ends).then_some("*")
}

/// Quotes a table name for SQL.
pub(super) fn sql_name(schema: Option<&str>, table: &str) -> String {
    match schema {
        Some(schema) => format!("{}.{}", quote_ident(schema), quote_ident(table)),
        None => quote_ident(table).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(written: &str) -> SourceTable {
        let TablePattern { schema, table } = TablePattern::parse(written);
        SourceTable { schema, table }
    }

    #[test]
    fn tables_are_mapped_by_patterns() {
        let mappings = ["shop.orders=public.o", "shop.*=public.*", "old_*=new_*", "x=y"];
        let names = TableMap::parse(&mappings.map(str::to_owned), &[]).unwrap();
        for (from, to) in [
            ("shop.orders", "public.o"),
            ("shop.Items", "public.\"Items\""),
            ("any.old_t", "new_t"),
            ("x", "y"),
            ("other.t", "other.t"),
            ("t", "t"),
        ] {
            assert_eq!(names.target_sql_name(&name(from)), to, "{from}");
        }
        for wrong in ["a", "a=b*", "*.t=*.*", "a**=b"] {
            assert!(TableMap::parse(&[wrong.to_owned()], &[]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tables_that_may_share_their_target_are_known() {
        for (mappings, table, may_share) in [
            (vec![], "a.t", false),
            (vec!["a.*=b.*"], "a.t", false),
            (vec!["t=u"], "a.t", false),
            (vec!["a.t_*=b.t"], "a.t_1", true),
            (vec!["a.t_*=b.t"], "a.u", false),
            (vec!["a*.t=t"], "a1.t", true),
            (vec!["a*.*=b.*"], "a1.t", true),
            (vec!["a.t=b.t", "c.t=b.t"], "a.t", true),
            (vec!["a.t=b.t", "c.t=t"], "a.t", true),
            (vec!["a.*=b.*", "c.*=b.*"], "c.t", true),
            (vec!["a.*=b.*", "c.*=d.*"], "c.t", false),
        ] {
            let written: Vec<_> = mappings.iter().map(|it| (*it).to_owned()).collect();
            let names = TableMap::parse(&written, &[]).unwrap();
            assert_eq!(names.may_share_target(&name(table)), may_share, "{mappings:?} {table}");
        }
    }

    #[test]
    fn patterns_that_no_table_of_the_target_fits_are_found() {
        let existing = ["public.t", "public.orders", "copy.log", "new.old_x"].map(name);
        for (mappings, pattern, unknown) in [
            (vec![], "t", None),
            (vec![], "public.t", None),
            (vec![], "tyy", Some("tyy")),
            (vec![], "shop.t", Some("shop.t")),
            (vec![], "public.*", None),
            (vec![], "pubic.*", Some("")),
            (vec![], "*_x", None),
            (vec![], "*_y", Some("")),
            (vec!["shop.*=public.*"], "shop.t", None),
            (vec!["shop.*=public.*"], "shop.u", Some("public.u")),
            (vec!["shop.*=public.*"], "u", Some("u")),
            (vec!["shop.*=public.*"], "orders", None),
            (vec!["shop.*=public.*"], "shop.*", None),
            (vec!["shop.*=gone.*"], "shop.*", Some("")),
            (vec!["public.*=copy.*"], "public.log", None),
            (vec!["public.*=copy.*"], "public.t", Some("copy.t")),
            (vec!["a.x=t", "a.*=gone.*"], "a.x", None),
            (vec!["x=t"], "x", None),
            (vec!["x=u"], "x", Some("u")),
            (vec!["b_*.*=new.old_*"], "b_1.x", None),
            (vec!["b_*.*=new.old_*"], "b_1.y", Some("new.old_y")),
        ] {
            let written: Vec<_> = mappings.iter().map(|it| (*it).to_owned()).collect();
            let names = TableMap::parse(&written, &[pattern.to_owned()]).unwrap();
            let found = names.find_unknown(&existing);
            let sql_name = found.map(|it| it.sql_name.unwrap_or_default());
            assert_eq!(sql_name.as_deref(), unknown, "{mappings:?} {pattern}");
        }
    }

    #[test]
    fn tables_are_chosen_by_patterns() {
        let names = TableMap::parse(&[], &["shop.*".to_owned(), "t".to_owned()]).unwrap();
        for (table, is_taken) in [("shop.a", true), ("b.t", true), ("t", true), ("b.a", false)] {
            assert_eq!(names.includes(&name(table)), is_taken, "{table}");
        }
        assert!(TableMap::default().includes(&name("any")));
        for (map, is_taken) in [("a=b", false), ("*.stream=a.b", false), ("pgspate.*=a.*", true)] {
            let names = TableMap::parse(&[map.to_owned()], &[]).unwrap();
            assert_eq!(names.includes(&name("pgspate.stream")), is_taken, "{map}");
            assert!(names.includes(&name("shop.stream")), "{map}");
        }
        assert!(TableMap::parse(&["a.*=pgspate.*".to_owned()], &[]).is_err());
    }
}
