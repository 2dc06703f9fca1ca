//! Finds the table that a mistyped name probably means.

use pgspate_base::nearest;
use tokio_postgres::{Client, Row};

use crate::Error;
use crate::search_path::with_users_path_sql;
use crate::typed_query::TypedQuery;

/// Tables, views and foreign tables that the role can see, at most this many.
const TABLES_MAX: usize = 10_000;

/// Adds a question to the hint of an error about a missing table: whether the user means the table
/// with the most similar name. The error stays as it is if there is none, or if the query fails.
pub async fn suggest_table(client: &Client, name: &str, error: Error) -> Error {
    let tables = format!(
        "array(select c.oid::regclass::text || E'\\n' || c.relname || E'\\n' \
                   || quote_ident(n.nspname) || '.' || quote_ident(c.relname) \
               from pg_class c join pg_namespace n on n.oid = c.relnamespace \
               where c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname !~ '^pg_' \
                 and n.nspname not in ('information_schema', 'pgspate') \
                 and has_schema_privilege(n.oid, 'usage') \
               order by c.relispartition, n.nspname, c.relname limit {TABLES_MAX})"
    );
    let tables = with_users_path_sql(&tables, "tables");
    let sql = format!("with visible as materialized ({tables}) select tables from visible");
    let Ok(row) = client.fetch_one(&sql, &[]).await else { return error };
    let Some(table) = similar_table(name, &row) else { return error };
    let question = format!("Did you mean table {table}?");
    match error.hint_text().map(|hint| format!("{question} {hint}")) {
        Some(hint) => error.hint(hint),
        None => error.hint(question),
    }
}

/// Returns the table of the row that is most similar to `name`, as the user would write it. Quotes
/// do not count, because `MC` without quotes may mean the table `"MC"`.
fn similar_table(name: &str, row: &Row) -> Option<String> {
    let tables: Vec<String> = row.get(0);
    // A name in SQL, the bare name, and the name with its schema.
    let tables: Vec<Vec<&str>> = tables.iter().map(|table| table.split('\n').collect()).collect();
    let unquoted = |name: &str| name.replace('"', "");
    let name = unquoted(name);
    // The table may be in a schema that is not in the search path, so the bare name comes last.
    [(0, 0), (2, 2), (1, 0)].into_iter().find_map(|(compared, written)| {
        let spelled: Vec<String> =
            tables.iter().map(|it| unquoted(it.get(compared).unwrap_or(&""))).collect();
        let found = nearest(&name, spelled.iter().map(String::as_str))?;
        let at = spelled.iter().position(|it| it == found)?;
        tables.get(at)?.get(written).map(|table| (*table).to_owned())
    })
}
