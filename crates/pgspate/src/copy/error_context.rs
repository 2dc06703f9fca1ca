//! Finds the row and the column that an error of the server is about.
//!
//! The server translates its messages. Names and values in a message may contain any text, such as
//! commas, quotes or line breaks.

use super::CopyJob;
use crate::Error;
use pgspate_target::ServerRefusal;

/// The CONTEXT line of a COPY error: `COPY t, line 5, column a: "12a"`, in any language.
#[derive(Debug, Default, PartialEq)]
pub(super) struct CopyContext {
    /// Line of the COPY data, counted from 1.
    pub(super) line: Option<u64>,
    /// The column's name, unquoted.
    pub(super) column: Option<String>,
    /// Whether the error arose inside a function that COPY called, such as a trigger's.
    pub(super) is_nested: bool,
}

impl CopyContext {
    /// Parses the context of `error`.
    pub(super) fn of(error: &Error, job: &CopyJob) -> CopyContext {
        if error.sqlstate().is_some_and(|code| code.code().starts_with("53")) {
            // A full disk is not the fault of the row that met it.
            return CopyContext::default();
        }
        let context = error.refusal().and_then(ServerRefusal::context).unwrap_or_default();
        CopyContext::parse(context, &job.table_name, &job.columns)
    }

    /// Parses the context of `error`. Returns an empty context if more than one line looks like
    /// that of COPY: a value of the input may imitate such a line.
    pub(super) fn of_unless_ambiguous(error: &Error, job: &CopyJob) -> CopyContext {
        let context = error.refusal().and_then(ServerRefusal::context).unwrap_or_default();
        match copy_line_starts(context, &job.table_name).nth(1) {
            Some(_) => CopyContext::default(),
            None => CopyContext::of(error, job),
        }
    }

    /// Parses a CONTEXT. The server does not quote the names in a CONTEXT, so this function
    /// searches for the table's and the columns' names.
    fn parse(context: &str, table: &str, columns: &[String]) -> CopyContext {
        let Some(start) = copy_line_starts(context, table).next() else {
            return CopyContext::default();
        };
        let rest = &context[start..];
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let rest = &rest[digits..];
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (line, rest) = rest.split_at(end);
        // The line number is followed by a comma, the word "column" in the server's language, and
        // the name.
        let named = rest.strip_prefix(", ").and_then(|rest| rest.split_once(' '));
        let column = named.and_then(|(_, rest)| {
            let matching = columns.iter().filter(|name| rest.starts_with(name.as_str()));
            matching.max_by_key(|name| name.len()).cloned()
        });
        let is_nested = !context.starts_with("COPY ");
        CopyContext { line: line.parse().ok(), column, is_nested }
    }
}

/// Returns the offsets just after `COPY <table>, ` at the start of a line. The table's name may
/// contain a line break, so the context is not split into lines first.
fn copy_line_starts(context: &str, table: &str) -> impl Iterator<Item = usize> {
    let start = format!("COPY {table}, ");
    let found: Vec<usize> = context.match_indices(&start).map(|(at, _)| at).collect();
    let is_line = |at: &usize| *at == 0 || context.as_bytes()[at - 1] == b'\n';
    let len = start.len();
    found.into_iter().filter(is_line).map(move |at| at + len).collect::<Vec<_>>().into_iter()
}

/// Returns the column that the server names, in the error's column field or in the context.
pub(super) fn refused_column(error: &Error, job: &CopyJob) -> Option<String> {
    let field = error.refusal()?.column().map(str::to_owned);
    field.or_else(|| CopyContext::of(error, job).column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_contexts_with_any_names_in_any_language() {
        let columns = ["a", "a b", "c, d: e", "line"].map(str::to_owned);
        let context = |line: u64, column: Option<&str>| CopyContext {
            line: Some(line),
            column: column.map(str::to_owned),
            is_nested: false,
        };
        for (text, table, expected) in [
            ("COPY t, line 5, column a: \"12a\"", "t", context(5, Some("a"))),
            ("COPY t, line 5, column a b: null input", "t", context(5, Some("a b"))),
            (
                "COPY x, line 7, line 5, column c, d: e: \"1\"",
                "x, line 7",
                context(5, Some("c, d: e")),
            ),
            ("COPY t, line 12: \"1\t2\"", "t", context(12, None)),
            ("COPY t1, Zeile 3, Spalte a: \u{bb}x\u{ab}", "t1", context(3, Some("a"))),
            (
                "PL/pgSQL function f() line 3 at RAISE\nCOPY t, line 1",
                "t",
                CopyContext { is_nested: true, ..context(1, None) },
            ),
            ("SQL statement \"select 1\"", "u", CopyContext::default()),
            ("PL/pgSQL function check_t() line 3 at RAISE", "t", CopyContext::default()),
        ] {
            assert_eq!(CopyContext::parse(text, table, &columns), expected, "{text}");
        }
    }
}
