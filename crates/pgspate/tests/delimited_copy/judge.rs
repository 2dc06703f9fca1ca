//! Loads a case by COPY and by pgspate on one server, and compares the results.

use std::pin::pin;

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, TryStreamExt};
use pgspate::format::EncodeMode;
use pgspate::format::delimited::{CopyFormat, Eol, parse_records};
use pgspate::target::{SessionSettings, read_session};
use tokio_postgres::{Client, NoTls, Statement};

use crate::case::DelimitedCase;
use crate::encoded_case::{EncodedCase, encode_case};

const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
const TRAILER: &[u8] = b"\xff\xff";
/// The number of cases after which the tables are truncated. Until then, rolled back rows stay in
/// the tables' files.
const CASES_PER_TABLE: usize = 100;

type Row = Vec<Option<Vec<u8>>>;

/// The rows of a table, or the SQLSTATE and message of an error.
type CopiedRows = Result<Vec<Row>, (String, String)>;

/// A connection with a table for each number and kind of columns.
pub(crate) struct CopyJudge {
    client: Client,
    pub(crate) session: SessionSettings,
    statements: Vec<[Statement; 2]>,
    cases: usize,
}

impl CopyJudge {
    pub(crate) async fn new(dsn: &str) -> CopyJudge {
        let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.unwrap();
        tokio::spawn(connection);
        let mut statements = Vec::new();
        for table in 0..8 {
            let columns = 1 + table % 4;
            let ty = |nth| if table >= 4 && nth + 1 == columns { "int" } else { "text" };
            let columns: Vec<_> = (0..columns).map(|nth| format!("c{nth} {}", ty(nth))).collect();
            let create = format!("create temp table t{table} ({})", columns.join(", "));
            client.batch_execute(&create).await.unwrap();
            let binary = format!("copy t{table} from stdin (format binary)");
            let text = format!("copy t{table} from stdin");
            statements.push([
                client.prepare(&binary).await.unwrap(),
                client.prepare(&text).await.unwrap(),
            ]);
        }
        let session = read_session(&client).await.unwrap();
        CopyJudge { client, session, statements, cases: 0 }
    }

    /// Returns a description of how pgspate's result differs from COPY's, or `None`.
    pub(crate) async fn difference(&mut self, case: &DelimitedCase) -> Option<String> {
        self.cases += 1;
        if self.cases.is_multiple_of(CASES_PER_TABLE) {
            let tables: Vec<_> = (0..8).map(|table| format!("t{table}")).collect();
            let sql = format!("truncate {}", tables.join(", "));
            self.client.batch_execute(&sql).await.unwrap();
        }
        let is_csv = case.dialect.format == CopyFormat::Csv;
        if case.header && !is_csv && self.session.server_version < 150_000 {
            // Before version 15, only csv can have a header.
            return None;
        }
        let theirs = self.copy_by_server(case).await;
        let text = encode_case(case, EncodeMode::Text, &self.session);
        let as_text = self.copy_by_pgspate(case, &text).await;
        if let Some(why) = compare(case, &theirs, &as_text, &text, self.session.server_version) {
            return Some(format!("as text: {why}"));
        }
        let binary = encode_case(case, EncodeMode::Binary, &self.session);
        let as_binary = self.copy_by_pgspate(case, &binary).await;
        // Two errors may differ, because pgspate reports the error of the rows as text.
        match (&as_text, &as_binary) {
            (Ok(text), Ok(binary)) if text == binary => {}
            (Err(_), Err(_)) => {}
            _ => return Some(format!("as binary: {as_binary:?}, but as text: {as_text:?}")),
        }
        compare_parsed(case, &theirs, &text, self.session.server_version)
    }

    async fn copy_by_server(&self, case: &DelimitedCase) -> CopiedRows {
        let sql = format!("copy t{} from stdin ({})", case.table(), case.options());
        self.begin(case).await;
        let statement = self.client.prepare(&sql).await;
        let statement = statement.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let copied = self.copy(&statement, &[&case.input]).await;
        self.rows_after(case, copied).await
    }

    async fn copy_by_pgspate(&self, case: &DelimitedCase, stream: &EncodedCase) -> CopiedRows {
        let [binary, text] = &self.statements[case.table()];
        self.begin(case).await;
        let mut copied = Ok(());
        if !stream.binary.is_empty() {
            copied = self.copy(binary, &[HEADER, &stream.binary, TRAILER]).await;
        }
        if copied.is_ok() && !stream.text.is_empty() {
            copied = self.copy(text, &[&stream.text]).await;
        }
        let rows = self.rows_after(case, copied).await?;
        if let Some(error) = &stream.error {
            let code = error.sqlstate().map_or("", |code| code.code());
            return Err((code.to_owned(), error.to_string()));
        }
        let (mut binary, mut text) =
            (rows[..stream.binary_rows].iter(), rows[stream.binary_rows..].iter());
        let row = |nth| {
            let is_text = stream.text_rows.binary_search(&nth).is_ok();
            if is_text { text.next() } else { binary.next() }
        };
        Ok((0..rows.len()).map(row).map(|row| row.unwrap().clone()).collect())
    }

    async fn begin(&self, case: &DelimitedCase) {
        let sql = format!("begin; set local client_encoding = '{}'", case.client_encoding);
        self.client.batch_execute(&sql).await.unwrap();
    }

    async fn copy(
        &self,
        statement: &Statement,
        parts: &[&[u8]],
    ) -> Result<(), tokio_postgres::Error> {
        let mut sink = pin!(self.client.copy_in(statement).await?);
        for part in parts {
            sink.feed(Bytes::copy_from_slice(part)).await?;
        }
        sink.finish().await.map(drop)
    }

    /// Returns the table's rows, or the error. Then rolls the transaction back.
    async fn rows_after(
        &self,
        case: &DelimitedCase,
        copied: Result<(), tokio_postgres::Error>,
    ) -> CopiedRows {
        let rows = match copied {
            Ok(()) => {
                let sql = format!("copy t{} to stdout", case.table());
                let stream = self.client.copy_out(&sql).await.unwrap();
                let bytes: BytesMut = stream.try_collect().await.unwrap();
                Ok(rows_of(&bytes))
            }
            Err(error) => {
                let error = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
                Err((error.code().code().to_owned(), error.message().to_owned()))
            }
        };
        self.client.batch_execute("rollback").await.unwrap();
        rows
    }
}

impl DelimitedCase {
    fn table(&self) -> usize {
        self.columns - 1 + if self.has_number { 4 } else { 0 }
    }

    /// Returns whether the bytes are certainly valid text in the client's encoding.
    fn is_valid(&self, bytes: &[u8]) -> bool {
        let is_foreign = self.client_encoding != "UTF8";
        let is_text = if is_foreign { bytes.is_ascii() } else { str::from_utf8(bytes).is_ok() };
        is_text && !bytes.contains(&0)
    }

    pub(crate) fn is_number(&self, column: usize) -> bool {
        self.has_number && column + 1 == self.columns
    }
}

/// Returns the rows of COPY's text output. Values keep COPY's escapes.
fn rows_of(text: &[u8]) -> Vec<Row> {
    let field = |field: &[u8]| (field != b"\\N").then(|| field.to_vec());
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines
        .map(|line| line[..line.len() - 1].split(|byte| *byte == b'\t').map(field).collect())
        .collect()
}

/// Returns a value with the escapes of COPY's text format.
fn as_written(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in value {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            8 => out.extend_from_slice(b"\\b"),
            11 => out.extend_from_slice(b"\\v"),
            12 => out.extend_from_slice(b"\\f"),
            byte => out.push(*byte),
        }
    }
    out
}

fn compare(
    case: &DelimitedCase,
    theirs: &CopiedRows,
    ours: &CopiedRows,
    stream: &EncodedCase,
    version: u32,
) -> Option<String> {
    let differs = || Some(format!("{ours:?}, but COPY: {theirs:?}"));
    match (theirs, ours) {
        (Ok(theirs), Ok(ours)) if theirs == ours => None,
        (Err((theirs, _)), Err((ours, _))) if theirs == ours => None,
        (theirs, Err((code, message)))
            if code == "22P04" && is_excused(case, theirs, message, stream, version) =>
        {
            None
        }
        // If lines end with a carriage return, COPY reads the next line's first byte, which may be
        // invalid.
        (Err((theirs, _)), Err(_))
            if is_encoding(theirs)
                && stream.eol == Some(Eol::Cr)
                && !case.is_valid(&case.input) =>
        {
            None
        }
        // Before version 18, such a quote may be part of an end-of-copy marker.
        _ if version < 180_000
            && matches!(case.dialect.quote, Some(b'\\' | b'.'))
            && has_marker(case) =>
        {
            None
        }
        // Before version 18, an end-of-copy marker may be in the place of the header.
        _ if version < 180_000 && case.header && case.input.starts_with(b"\\.") => None,
        // pgspate does not check the encoding of the names in a header.
        (Err((theirs, _)), _)
            if is_encoding(theirs) && case.header && !case.is_valid(&case.input) =>
        {
            None
        }
        // pgspate refuses a header without a line end. COPY returns no rows.
        (Ok(rows), Err(_)) if case.header && stream.eol.is_none() && rows.is_empty() => None,
        _ => differs(),
    }
}

/// Returns whether pgspate's error is intended although COPY accepts the input or reports another
/// error.
fn is_excused(
    case: &DelimitedCase,
    theirs: &CopiedRows,
    message: &str,
    stream: &EncodedCase,
    version: u32,
) -> bool {
    let place = stream.error.as_ref().and_then(|error| error.place());
    let byte = place.and_then(|place| place.byte).unwrap_or(0) as usize;
    let rest = &case.input[byte.min(case.input.len())..];
    match theirs {
        Ok(rows) => match message {
            "data follows the end-of-copy marker" => rows.len() == stream.text_rows.len(),
            "end-of-copy marker is not alone on its line" => {
                version < 180_000 && rows.len() == stream.text_rows.len() + 1
            }
            _ => false,
        },
        // COPY reported an error of the record before the invalid marker.
        Err(_) if version < 180_000 && message.starts_with("end-of-copy marker is not") => true,
        // COPY reported an invalid byte before the invalid line end, quote or marker.
        Err((code, _)) => {
            let is_foreign = case.client_encoding != "UTF8";
            is_encoding(code) && !case.is_valid(rest) && (is_foreign || !is_count(message))
        }
    }
}

/// Returns whether an error is about the number of fields.
fn is_count(message: &str) -> bool {
    message.contains("expected column") || message.contains("missing data")
}

fn is_encoding(code: &str) -> bool {
    matches!(code, "22021" | "22P05")
}

fn has_marker(case: &DelimitedCase) -> bool {
    case.input.windows(2).any(|two| two == b"\\.")
}

/// Compares the rows with the records that `parse_records` returns, which pgspate uses for samples.
fn compare_parsed(
    case: &DelimitedCase,
    theirs: &CopiedRows,
    stream: &EncodedCase,
    version: u32,
) -> Option<String> {
    let (Ok(rows), Some(eol)) = (theirs, stream.eol) else { return None };
    if case.force_null | case.force_not_null != 0 || case.header || case.has_number {
        return None;
    }
    if case.client_encoding != "UTF8" {
        return None;
    }
    let parsed = parse_records(&case.dialect, eol, &case.input, true, usize::MAX);
    let mut parsed: Vec<Row> = parsed
        .into_iter()
        .map(|row| row.into_iter().map(|value| value.map(|value| as_written(&value))).collect())
        .collect();
    if has_marker(case) && (version < 180_000 || case.dialect.format == CopyFormat::Text) {
        parsed.truncate(rows.len());
        return (parsed.len() + 1 < rows.len()).then(|| format!("parsed {parsed:?}, not {rows:?}"));
    }
    if parsed != *rows {
        return Some(format!("parsed {parsed:?}, but COPY: {rows:?}"));
    }
    // From the first half of the input, the truncated record must be left out.
    let half = parse_records(&case.dialect, eol, &case.input[..case.input.len() / 2], false, 1000);
    if half.len() > rows.len() { Some(format!("parsed {half:?} of a half")) } else { None }
}
