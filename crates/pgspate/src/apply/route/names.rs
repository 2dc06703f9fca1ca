//! Which table of the target the events of a table go to, if to any.
//!
//! A pattern is a table's name with or without its schema; `*` stands for any characters, once in
//! each of both. Without a schema it means tables of that name in any schema.

use crate::{Error, ErrorKind, Result};
use pgspate_events::SourceTable;
use pgspate_target::{LEDGER_SCHEMA, check_schema, quote_ident};

/// `--map` and `--tables`.
#[derive(Debug, Clone, Default)]
pub(crate) struct TableMap {
    maps: Vec<(TablePattern, NameParts)>,
    only: Vec<TablePattern>,
}

/// Schema, if there is one, and table.
type NameParts = (Option<String>, String);

#[derive(Debug, Clone)]
struct TablePattern(NameParts);

impl TableMap {
    /// From what the user wrote: `from=to`, and patterns.
    ///
    /// # Errors
    /// Of [`ErrorKind::Usage`] for what is no mapping.
    pub(crate) fn parse(maps: &[String], only: &[String]) -> Result<TableMap> {
        let map = |written: &String| {
            let Some((from, to)) = written.split_once('=') else {
                let message = format!("\"{written}\" maps no table");
                return Err(Error::new(ErrorKind::Usage, message).hint(
                    "Write `--map shop.orders=public.orders`, or `--map 'shop.*=public.*'`.",
                ));
            };
            let (from, to) = (parts(from), parts(to));
            check_schema(written, to.0.as_deref().unwrap_or_default())?;
            let count = |parts: &NameParts| {
                let schema = parts.0.as_deref().unwrap_or_default();
                [schema.matches('*').count(), parts.1.matches('*').count()]
            };
            let (has, wants) = (count(&from), count(&to));
            if has.iter().chain(&wants).any(|stars| *stars > 1)
                || wants[0] > has[0]
                || wants[1] > has[1]
            {
                let message = format!("\"{written}\" has stars that stand for nothing");
                return Err(Error::new(ErrorKind::Usage, message).hint(
                    "Each part of a name may have one `*`, on the right only if on the left.",
                ));
            }
            Ok((TablePattern(from), to))
        };
        Ok(TableMap {
            maps: maps.iter().map(map).collect::<Result<_>>()?,
            only: only.iter().map(|written| TablePattern(parts(written))).collect(),
        })
    }

    /// Whether the table's events are wanted. Those of the source's own ledger are not, unless they
    /// are mapped by the schema's name: they say what was applied there, and what it changed.
    pub(crate) fn takes(&self, name: &SourceTable) -> bool {
        let is_of_ledger = name.schema.as_deref() == Some(LEDGER_SCHEMA);
        if is_of_ledger && !self.maps.iter().any(|(from, _)| from.is_of_ledger(name)) {
            return false;
        }
        self.only.is_empty() || self.only.iter().any(|pattern| pattern.matches(name).is_some())
    }

    /// The table of the target, as SQL writes it.
    pub(crate) fn target(&self, name: &SourceTable) -> String {
        for (pattern, (schema, table)) in &self.maps {
            let Some((of_schema, of_table)) = pattern.matches(name) else { continue };
            let schema = schema.as_ref().map(|schema| schema.replacen('*', of_schema, 1));
            return sql(schema.as_deref(), &table.replacen('*', of_table, 1));
        }
        sql(name.schema.as_deref(), &name.table)
    }
}

impl TablePattern {
    fn is_of_ledger(&self, name: &SourceTable) -> bool {
        self.0.0.as_deref() == Some(LEDGER_SCHEMA) && self.matches(name).is_some()
    }

    /// What the stars stand for.
    fn matches<'a>(&self, name: &'a SourceTable) -> Option<(&'a str, &'a str)> {
        let of_schema = match (&self.0.0, name.schema.as_deref()) {
            (None, _) => "",
            (Some(pattern), Some(schema)) => capture(pattern, schema)?,
            (Some(_), None) => return None,
        };
        Some((of_schema, capture(&self.0.1, &name.table)?))
    }
}

fn parts(written: &str) -> NameParts {
    match written.split_once('.') {
        Some((schema, table)) => (Some(schema.to_owned()), table.to_owned()),
        None => (None, written.to_owned()),
    }
}

/// What the star stands for; nothing where there is none.
fn capture<'a>(pattern: &str, text: &'a str) -> Option<&'a str> {
    match pattern.split_once('*') {
        None => (pattern == text).then_some(""),
        Some((start, end)) => text.strip_prefix(start)?.strip_suffix(end),
    }
}

fn sql(schema: Option<&str>, table: &str) -> String {
    match schema {
        Some(schema) => format!("{}.{}", quote_ident(schema), quote_ident(table)),
        None => quote_ident(table).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(written: &str) -> SourceTable {
        let (schema, table) = parts(written);
        SourceTable { schema, table }
    }

    #[test]
    fn tables_are_mapped_by_patterns() {
        let maps = ["shop.orders=public.o", "shop.*=public.*", "old_*=new_*", "x=y"];
        let names = TableMap::parse(&maps.map(str::to_owned), &[]).unwrap();
        for (from, to) in [
            ("shop.orders", "public.o"),
            ("shop.Items", "public.\"Items\""),
            ("any.old_t", "new_t"),
            ("x", "y"),
            ("other.t", "other.t"),
            ("t", "t"),
        ] {
            assert_eq!(names.target(&name(from)), to, "{from}");
        }
        for wrong in ["a", "a=b*", "*.t=*.*", "a**=b"] {
            assert!(TableMap::parse(&[wrong.to_owned()], &[]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tables_are_chosen_by_patterns() {
        let names = TableMap::parse(&[], &["shop.*".to_owned(), "t".to_owned()]).unwrap();
        for (table, is_taken) in [("shop.a", true), ("b.t", true), ("t", true), ("b.a", false)] {
            assert_eq!(names.takes(&name(table)), is_taken, "{table}");
        }
        assert!(TableMap::default().takes(&name("any")));
        for (map, is_taken) in [("a=b", false), ("*.stream=a.b", false), ("pgspate.*=a.*", true)] {
            let names = TableMap::parse(&[map.to_owned()], &[]).unwrap();
            assert_eq!(names.takes(&name("pgspate.stream")), is_taken, "{map}");
            assert!(names.takes(&name("shop.stream")), "{map}");
        }
        assert!(TableMap::parse(&["a.*=pgspate.*".to_owned()], &[]).is_err());
    }
}
