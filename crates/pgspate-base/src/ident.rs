//! Identifiers and literals in SQL.
//!
//! Every supported server reads a quoted name back as the same name.

use std::borrow::Cow;

/// The longest identifier in bytes. The server truncates longer identifiers.
pub const IDENT_BYTES_MAX: usize = 63;

/// Returns the identifier as SQL writes it, in double quotes only where they are needed.
pub fn quote_ident(name: &str) -> Cow<'_, str> {
    let mut bytes = name.bytes();
    let needs_no_quotes = bytes.next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_')
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && KEYWORDS.binary_search(&name).is_err();
    if needs_no_quotes {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(format!("\"{}\"", name.replace('"', "\"\"")))
    }
}

/// Returns the text as an SQL string literal.
pub fn quote_literal(value: &str) -> String {
    let quoted = value.replace('\'', "''");
    match quoted.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}

/// Truncates an identifier as the server does: to at most 63 bytes, between two characters.
pub fn truncate_ident(name: &str) -> &str {
    &name[..name.floor_char_boundary(IDENT_BYTES_MAX)]
}

/// Keywords that need quotes as a name in some version up to PostgreSQL 18. These are the reserved
/// keywords, and those that may name only functions, only types or only columns. Sorted.
#[rustfmt::skip]
const KEYWORDS: &[&str] = &[
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric",
    "authorization", "between", "bigint", "binary", "bit", "boolean", "both", "case", "cast",
    "char", "character", "check", "coalesce", "collate", "collation", "column", "concurrently",
    "constraint", "create", "cross", "current_catalog", "current_date", "current_role",
    "current_schema", "current_time", "current_timestamp", "current_user", "dec", "decimal",
    "default", "deferrable", "desc", "distinct", "do", "else", "end", "except", "exists",
    "extract", "false", "fetch", "float", "for", "foreign", "freeze", "from", "full", "grant",
    "greatest", "group", "grouping", "having", "ilike", "in", "initially", "inner", "inout",
    "int", "integer", "intersect", "interval", "into", "is", "isnull", "join", "json",
    "json_array", "json_arrayagg", "json_exists", "json_object", "json_objectagg", "json_query",
    "json_scalar", "json_serialize", "json_table", "json_value", "lateral", "leading", "least",
    "left", "like", "limit", "localtime", "localtimestamp", "merge_action", "national", "natural",
    "nchar", "none", "normalize", "not", "notnull", "null", "nullif", "numeric", "offset", "on",
    "only", "or", "order", "out", "outer", "overlaps", "overlay", "placing", "position",
    "precision", "primary", "real", "references", "returning", "right", "row", "select",
    "session_user", "setof", "similar", "smallint", "some", "substring", "symmetric",
    "system_user", "table", "tablesample", "then", "time", "timestamp", "to", "trailing", "treat",
    "trim", "true", "union", "unique", "user", "using", "values", "varchar", "variadic",
    "verbose", "when", "where", "window", "with", "xmlattributes", "xmlconcat", "xmlelement",
    "xmlexists", "xmlforest", "xmlnamespaces", "xmlparse", "xmlpi", "xmlroot", "xmlserialize",
    "xmltable",
];

/// Returns whether two names are equal but for case and outer white space, as far as the server
/// keeps them.
pub fn is_alike(one: &str, other: &str) -> bool {
    truncate_ident(one.trim()).to_lowercase() == truncate_ident(other.trim()).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_unless_they_are_safe_without_quotes() {
        for name in ["a", "_x1", "order_id", "name", "type", "id"] {
            assert_eq!(quote_ident(name), name);
        }
        for name in ["", "A", "1a", "a b", "user", "order", "é", "a$", "time", "json", "select"] {
            assert_eq!(quote_ident(name), format!("\"{name}\""));
        }
        assert_eq!(quote_ident("a\"b"), "\"a\"\"b\"");
    }

    #[test]
    fn keywords_are_sorted() {
        assert!(KEYWORDS.is_sorted());
    }

    #[test]
    fn long_names_are_alike_if_the_server_keeps_the_same() {
        let long = "x".repeat(63);
        assert!(is_alike(&format!("{long}1"), &format!(" {}2", long.to_uppercase())));
        assert!(!is_alike(&long[1..], &long));
    }

    #[test]
    fn long_names_are_truncated_between_characters() {
        assert_eq!(truncate_ident("short"), "short");
        assert_eq!(truncate_ident(&"é".repeat(40)), "é".repeat(31));
    }
}
