//! A random table, a random session and a random file.

use pgspate::format::sniff::{Format, SniffOverrides};
use pgspate::plan::RowRequest;
use pgspate::reading;

use crate::random::CopyRandom;
use crate::spellings::spelling;

/// Types with encoders, and some without. A column without an encoder makes its whole table use
/// text format.
const TYPES: [&str; 42] = [
    "int2",
    "int4",
    "int8",
    "numeric",
    "numeric(10,2)",
    "numeric(3,3)",
    "float4",
    "float8",
    "bool",
    "text",
    "varchar(5)",
    "char(4)",
    "date",
    "timestamp",
    "timestamp(3)",
    "timestamptz",
    "timestamptz(0)",
    "time",
    "time(2)",
    "timetz",
    "interval",
    "interval(2)",
    "uuid",
    "json",
    "jsonb",
    "bytea",
    "inet",
    "cidr",
    "macaddr",
    "mood",
    "small",
    "short",
    "int4[]",
    "text[]",
    "numeric[]",
    "date[]",
    "mood[]",
    "int4range",
    "numrange",
    "tsrange",
    "daterange",
    "oid",
];
const TYPES_OF_THE_SERVER: [&str; 6] = ["money", "point", "varbit", "bit(3)", "name", "tsvector"];

/// Creates the types and domains of `TYPES`, and a function that checks a spelling.
pub(crate) const TYPES_SQL: &str = "\
create type mood as enum ('sad', 'ok', 'very happy', 'größer', 'it''s, \"x\"');
create domain small as int check (value < 30);
create domain short as varchar(3) not null;
create function is_valid(type text, value text) returns bool language plpgsql as $$
begin execute format('select %L::%s', value, type); return true;
exception when others then return false; end $$;";

const SETTINGS: [(&str, &[&str]); 4] = [
    ("datestyle", &["iso,mdy", "iso,dmy", "iso,ymd", "sql,dmy", "german", "postgres,mdy"]),
    ("timezone", &["UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "EST5EDT"]),
    ("intervalstyle", &["postgres", "iso_8601", "sql_standard", "postgres_verbose"]),
    ("array_nulls", &["on", "on", "on", "off"]),
];

/// One column of the table.
#[derive(Clone)]
pub(crate) struct CopyColumn {
    pub(crate) ty: &'static str,
    pub(crate) constraint: &'static str,
    pub(crate) force_null: bool,
    pub(crate) force_not_null: bool,
}

/// The value of a field. `None` is NULL.
pub(crate) type Field = Option<String>;

/// The settings, the table and the file of one comparison.
#[derive(Clone)]
pub(crate) struct CopyCase {
    pub(crate) settings: Vec<(&'static str, &'static str)>,
    pub(crate) columns: Vec<CopyColumn>,
    pub(crate) rows: Vec<Vec<Field>>,
    pub(crate) dialect: RandomDialect,
    /// Invalid bytes inserted into the file.
    pub(crate) rubbish: Vec<(usize, &'static [u8])>,
}

/// Bytes that parsers often handle wrongly.
const RUBBISH: [&[u8]; 14] = [
    b"\"",
    b"'",
    b"\\",
    b"\n",
    b"\r",
    b"\r\n",
    b",",
    b"\t",
    b"\0",
    b"\xe9",
    b"\xf0\x9f",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\\x4",
];

/// How the file is written.
#[derive(Clone)]
pub(crate) struct RandomDialect {
    pub(crate) text: bool,
    header: bool,
    delimiter: u8,
    quote: u8,
    escape: u8,
    null: &'static str,
    eol: &'static str,
    ends: bool,
    /// Decides, together with a field's position, whether a field that needs no quotes is quoted.
    salt: u64,
}

impl CopyCase {
    /// Returns a random case without rows.
    pub(crate) fn new(random: &mut CopyRandom) -> CopyCase {
        let only_encoded = !random.once_in(20);
        let column = |random: &mut CopyRandom| CopyColumn {
            ty: if only_encoded || random.once_in(2) {
                random.pick(&TYPES)
            } else {
                random.pick(&TYPES_OF_THE_SERVER)
            },
            constraint: random.pick(&["", "", "", "", "not null", "default null"]),
            force_null: random.once_in(20),
            force_not_null: random.once_in(20),
        };
        let columns = (0..=random.below(5)).map(|_| column(random)).collect();
        let settings = SETTINGS.map(|(name, values)| (name, random.pick(values)));
        CopyCase {
            settings: settings.into(),
            columns,
            rows: Vec::new(),
            dialect: RandomDialect::new(random),
            rubbish: Vec::new(),
        }
    }

    /// Returns random spellings for each column. Some spellings are invalid.
    pub(crate) fn spellings(&self, random: &mut CopyRandom) -> Vec<Vec<String>> {
        let some = |random: &mut CopyRandom, ty| (0..24).map(|_| spelling(ty, random)).collect();
        self.columns.iter().map(|column| some(random, column.ty)).collect()
    }

    /// Adds random rows. All spellings are valid, or a few are invalid.
    pub(crate) fn fill(
        &mut self,
        valid: &[Vec<String>],
        all: &[Vec<String>],
        random: &mut CopyRandom,
    ) {
        let is_clean = !random.once_in(3);
        for _ in 0..random.below(50) {
            let field = |(nth, column): (usize, &CopyColumn)| {
                let from = if is_clean || !random.once_in(30) { &valid[nth] } else { &all[nth] };
                let is_required = column.constraint == "not null" || column.ty == "short";
                let is_null = random.once_in(if is_required { 200 } else { 8 });
                (!is_null && !from.is_empty()).then(|| random.pick(from))
            };
            let mut row: Vec<Field> = self.columns.iter().enumerate().map(field).collect();
            if !is_clean && random.once_in(60) {
                row.push(None);
            } else if !is_clean && random.once_in(60) {
                row.pop();
            }
            self.rows.push(row);
        }
        if random.once_in(6) {
            let file = self.file();
            // pgspate does not send the header, so the server does not see its bytes.
            let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
            let header = file.iter().position(is_end).map_or(file.len(), |at| at + 1);
            let from = if self.dialect.header { header } else { 0 };
            let len = file.len() - from + 1;
            let place = |random: &mut CopyRandom| from + random.below(len);
            let some = (0..=random.below(3)).map(|_| (place(random), random.pick(&RUBBISH)));
            self.rubbish = some.collect();
        }
    }

    /// Returns the connection options that set the case's settings.
    pub(crate) fn options(&self) -> String {
        let each = self.settings.iter().map(|(name, value)| format!("-c {name}={value}"));
        each.collect::<Vec<_>>().join(" ")
    }

    /// Returns the SQL that creates the table.
    pub(crate) fn create(&self, table: &str) -> String {
        let each = self.columns.iter().enumerate();
        let each = each.map(|(nth, column)| format!("c{nth} {} {}", column.ty, column.constraint));
        let columns = each.collect::<Vec<_>>().join(", ");
        format!("create table {table} ({columns}, extra int default 7)")
    }

    fn names(&self) -> Vec<String> {
        (0..self.columns.len()).map(|nth| format!("c{nth}")).collect()
    }

    /// Returns the COPY statement that reads the file.
    pub(crate) fn copy(&self, table: &str) -> String {
        let RandomDialect { text, header, delimiter, quote, escape, null, .. } = self.dialect;
        let literal = |byte: u8| format!("E'\\x{byte:02x}'");
        let mut options = format!("null '{null}', delimiter {}", literal(delimiter));
        if text {
            return format!("copy {table} ({}) from stdin ({options})", self.names().join(", "));
        }
        options += &format!(", format csv, header {header}");
        options += &format!(", quote {}, escape {}", literal(quote), literal(escape));
        for (name, columns) in
            [("force_null", self.force_null()), ("force_not_null", self.force_not_null())]
        {
            if !columns.is_empty() {
                options += &format!(", {name} ({})", columns.join(", "));
            }
        }
        format!("copy {table} ({}) from stdin ({options})", self.names().join(", "))
    }

    fn force_null(&self) -> Vec<String> {
        self.named(|column| column.force_null && !self.dialect.text)
    }

    fn force_not_null(&self) -> Vec<String> {
        self.named(|column| column.force_not_null && !column.force_null && !self.dialect.text)
    }

    fn named(&self, which: impl Fn(&CopyColumn) -> bool) -> Vec<String> {
        let each = self.columns.iter().zip(self.names());
        each.filter(|(column, _)| which(column)).map(|(_, name)| name).collect()
    }

    /// Returns the case's options for pgspate.
    pub(crate) fn load(&self, table: &str, source: &str) -> pgspate::load::LoadOptions {
        let dialect = &self.dialect;
        pgspate::load::LoadOptions {
            reading: reading::ReadingOptions {
                read: SniffOverrides {
                    format: Some(if dialect.text { Format::Text } else { Format::Csv }),
                    delimiter: Some(dialect.delimiter),
                    quote: (!dialect.text).then_some(Some(dialect.quote)),
                    escape: (!dialect.text).then_some(dialect.escape),
                    header: Some(dialect.header),
                    null: Some(dialect.null.to_owned()),
                    likely_escape: None,
                },
                rows: RowRequest {
                    columns: Some(self.names()),
                    force_null: self.force_null(),
                    force_not_null: self.force_not_null(),
                    ..RowRequest::default()
                },
                ..reading::ReadingOptions::of_sources(vec![source.to_owned()])
            },
            table: Some(table.to_owned()),
            ..pgspate::load::LoadOptions::default()
        }
    }

    /// Returns the number of the row that begins at a line, as pgspate counts lines. The first row
    /// is
    /// 1. Returns 0 if no row begins there.
    pub(crate) fn row_beginning_at(&self, line: u64) -> u64 {
        let line_end = if self.dialect.eol == "\r" { '\r' } else { '\n' };
        self.row_where(|_| line_end, |begins, _| begins == line)
    }

    /// Returns the number of the row that ends at a line, as COPY counts lines. Within quotes, COPY
    /// counts carriage returns until it knows that lines end with a newline.
    pub(crate) fn row_ending_at(&self, line: u64) -> u64 {
        let is_known = |nth| nth > 0 || self.dialect.header;
        let is_lf = |nth| self.dialect.eol == "\n" && is_known(nth);
        self.row_where(|nth| if is_lf(nth) { '\n' } else { '\r' }, |_, ends| ends == line)
    }

    fn row_where(&self, counted: impl Fn(usize) -> char, is_it: impl Fn(u64, u64) -> bool) -> u64 {
        let mut begins = 1 + u64::from(self.dialect.header);
        if !self.rubbish.is_empty() {
            return 0;
        }
        for (nth, row) in self.rows.iter().enumerate() {
            let ends = begins + self.line(nth, row).matches(counted(nth)).count() as u64;
            if is_it(begins, ends) {
                return nth as u64 + 1;
            }
            begins = ends + 1;
        }
        0
    }

    fn line(&self, nth: usize, row: &[Field]) -> String {
        let fields = row.iter().enumerate();
        let fields = fields.map(|(at, field)| self.dialect.field(field, nth * 31 + at));
        fields.collect::<Vec<_>>().join(&char::from(self.dialect.delimiter).to_string())
    }

    /// Returns what a developer needs to reproduce the case: settings, SQL and file.
    pub(crate) fn reproduction(&self) -> String {
        let file = self.file();
        let shown = String::from_utf8_lossy(&file);
        format!(
            "{}\n{}\n{}\n{shown:?} ({:?})\n",
            self.options(),
            self.create("t"),
            self.copy("t"),
            self.rubbish
        )
    }

    /// Returns the bytes of the file.
    pub(crate) fn file(&self) -> Vec<u8> {
        let RandomDialect { delimiter, eol, ends, header, .. } = self.dialect;
        let delimiter = char::from(delimiter).to_string();
        let mut lines = Vec::new();
        if header {
            lines.push(self.names().join(&delimiter));
        }
        for (nth, row) in self.rows.iter().enumerate() {
            lines.push(self.line(nth, row));
        }
        let mut file = lines.join(eol);
        if ends && !lines.is_empty() {
            file += eol;
        }
        let mut file = file.into_bytes();
        for (at, bytes) in &self.rubbish {
            let at = (*at).min(file.len());
            file.splice(at..at, bytes.iter().copied());
        }
        file
    }
}

impl RandomDialect {
    fn new(random: &mut CopyRandom) -> RandomDialect {
        let text = random.once_in(6);
        let eol = random.pick(&["\n", "\n", "\n", "\r\n", "\r"]);
        let (ends, salt) = (!random.once_in(4), random.next());
        if text {
            let delimiter = random.pick(b"\t\t\t,|");
            let null = random.pick(&["\\N", "\\N", "", "NULL"]);
            let (header, quote, escape) = (false, b'"', b'\\');
            return RandomDialect { text, header, delimiter, quote, escape, null, eol, ends, salt };
        }
        let quote = random.pick(b"\"\"\"\"'");
        RandomDialect {
            text,
            header: random.once_in(2),
            delimiter: random.pick(b",,,,;\t|"),
            quote,
            escape: if random.once_in(5) { b'\\' } else { quote },
            null: random.pick(&["", "", "", "\\N", "NULL", "-"]),
            eol,
            ends,
            salt,
        }
    }

    fn field(&self, field: &Field, at: usize) -> String {
        let Some(value) = field else { return self.null.to_owned() };
        if self.text {
            return self.escaped(value);
        }
        let (quote, escape) = (char::from(self.quote), char::from(self.escape));
        let special = [char::from(self.delimiter), quote, '\n', '\r'];
        let by_chance = (self.salt ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0;
        if value != self.null && !value.contains(special) && value != "\\." && !by_chance {
            return value.clone();
        }
        let mut text = String::from(quote);
        for c in value.chars() {
            if c == quote || c == escape {
                text.push(escape);
            }
            text.push(c);
        }
        text.push(quote);
        text
    }

    fn escaped(&self, value: &str) -> String {
        let mut text = String::new();
        for c in value.chars() {
            match c {
                '\\' => text += "\\\\",
                '\n' => text += "\\n",
                '\r' => text += "\\r",
                '\t' => text += "\\t",
                c if c == char::from(self.delimiter) => {
                    text.push('\\');
                    text.push(c);
                }
                c => text.push(c),
            }
        }
        text
    }
}
