//! Flags of psql, pgloader and other programs, with the flags of pgspate that do the same.

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

/// Replaces clap's tips for a flag that another program has.
pub(crate) fn explain(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return error };
    let Some((_, tip)) = WORDS.iter().find(|(known, _)| known == word) else { return error };
    error.remove(ContextKind::SuggestedArg);
    error.remove(ContextKind::SuggestedValue);
    let tips = vec![StyledStr::from(*tip)];
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    error
}
