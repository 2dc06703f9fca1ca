//! Tips for flags of psql, pgloader and other programs, and for a sync without a scope.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

const SERVER: &str = "name the server with '--to postgres://user@host:port/dbname', or by PGHOST, \
                      PGPORT, PGUSER and PGDATABASE";
const REPLACE: &str = "'--replace' replaces the rows of the table";
const UPSERT: &str = "'pgspate sync --no-delete' updates rows and inserts new ones";
const LANES: &str = "'--lanes' sets the number of sessions that write at once";
const HEADER: &str = "'--header no' says that the first line is a row";
const BATCHES: &str = "leave it out: pgspate divides the rows itself";

const WORDS: &[(&str, &str)] = &[
    ("-U", SERVER),
    ("--username", SERVER),
    ("--user", SERVER),
    ("-d", SERVER),
    ("--dbname", SERVER),
    ("--database", SERVER),
    ("-p", SERVER),
    ("--port", SERVER),
    ("--host", SERVER),
    ("--truncate", REPLACE),
    ("--overwrite", REPLACE),
    ("--upsert", UPSERT),
    ("--merge", UPSERT),
    ("--on-conflict", UPSERT),
    ("--dry-run", "'--plan' shows what would be done, and changes nothing"),
    ("--append", "leave it out: rows are appended to a table that exists"),
    ("-j", LANES),
    ("--jobs", LANES),
    ("--workers", LANES),
    ("--threads", LANES),
    ("--parallel", LANES),
    ("--no-header", HEADER),
    ("--skip-header", "leave it out: a header is detected, and names the columns"),
    ("--on-error-stop", "leave it out: only '--rejects FILE' sets bad rows aside"),
    ("--batch-size", BATCHES),
    ("--chunk-size", BATCHES),
    ("--schema", "write the schema in the table's name: '--table schema.table'"),
    ("--separator", "'--delimiter' sets the delimiter"),
];

/// The ways to say which rows a sync replaces.
const SCOPES: &[&str] = &[
    "'--scope all' makes the whole table equal to the source",
    "'--scope-by COLUMNS' replaces the rows whose values in these columns occur in the source",
    "'--no-delete' updates and inserts rows, but deletes none",
    "'--insert-only' inserts missing rows only",
];

/// Replaces clap's tips for a flag that another program has, and for a sync without a scope.
pub(crate) fn explain(mut error: clap::Error) -> clap::Error {
    let tips = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => {
            let known = WORDS.iter().find(|(known, _)| known == word);
            known.map(|(_, tip)| vec![*tip])
        }
        (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(missing))) => {
            let lacks_scope = missing.iter().any(|flags| flags.contains("--scope-by"));
            lacks_scope.then(|| SCOPES.to_vec())
        }
        _ => None,
    };
    if let Some(tips) = tips {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedValue);
        let tips = tips.into_iter().map(StyledStr::from).collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
    error
}
