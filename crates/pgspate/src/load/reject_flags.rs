//! The flags with which pgspate reads a file of rejects as it has read the inputs.
//!
//! The file is small, so its format could be guessed otherwise than that of the inputs. So the
//! flags also say what this load has guessed.

use std::borrow::Cow;

use super::Load;
use crate::format::RowForm;
use crate::format::delimited::{CopyFormat, Dialect};
use crate::plan::RowRequest;
use pgspate_base::{quote_ident, shell_word};

impl Load {
    /// Returns the flags for reading the file of rejects, quoted for a shell.
    pub(super) fn rejects_read_as(&self) -> String {
        let format = self.reading.reject_format();
        let mut flags = Flags(format!("--format={}", format.name()));
        let RowRequest { columns, snake_case, ignore_unknown, .. } = &self.request.rows;
        if let RowForm::Delimited = format.rows() {
            let has_header = !self.reading.reject_header().is_empty();
            flags.add("header", if has_header { "yes" } else { "no" });
            if let Some(dialect) = self.reading.dialect() {
                flags.add_dialect(dialect);
            }
        }
        if let Some(columns) = columns {
            flags.add_names("columns", columns);
        }
        for (name, is_set) in [("snake-case", snake_case), ("ignore-unknown", ignore_unknown)] {
            if *is_set {
                flags.0 += &format!(" --{name}");
            }
        }
        if let Some(encoding) = &self.plan.rows.encoding {
            flags.add("encoding", encoding);
        }
        flags.add_values(&self.request.rows);
        if let Some(column) = &self.request.rows.file_name_column {
            match self.reading.names().as_slice() {
                [name] => flags.add("set", &format!("{column}={name}")),
                _ => flags.add("file-name-column", column),
            }
        }
        flags.0
    }
}

/// Flags of a command line.
struct Flags(String);

impl Flags {
    fn add(&mut self, name: &str, value: &str) {
        // A value may begin like a flag.
        self.0 += &format!(" --{name}={}", shell_word(value));
    }

    fn add_byte(&mut self, name: &str, byte: u8) {
        match byte {
            b'\t' => self.add(name, "\\t"),
            _ => self.add(name, &char::from(byte).to_string()),
        }
    }

    fn add_names(&mut self, flag: &str, names: &[String]) {
        if !names.is_empty() {
            let names: Vec<Cow<'_, str>> = names.iter().map(|name| quote_ident(name)).collect();
            self.add(flag, &names.join(","));
        }
    }

    fn add_dialect(&mut self, dialect: &Dialect) {
        self.add_byte("delimiter", dialect.delimiter);
        if dialect.format == CopyFormat::Csv {
            match dialect.quote {
                Some(quote) => self.add_byte("quote", quote),
                None => self.add("quote", "none"),
            }
            if dialect.quote.is_some_and(|quote| quote != dialect.escape) {
                self.add_byte("escape", dialect.escape);
            }
        }
        self.add("null", &String::from_utf8_lossy(&dialect.null));
    }

    /// Adds the flags that decide on values.
    fn add_values(&mut self, request: &RowRequest) {
        self.add_names("force-null", &request.force_null);
        self.add_names("force-not-null", &request.force_not_null);
        for (column, format) in &request.date_formats.0 {
            let column = column.as_ref().map_or_else(String::new, |name| format!("{name}="));
            self.add("date-format", &format!("{column}{}", format.pattern()));
        }
        for (column, value) in &request.constants {
            self.add("set", &format!("{column}={}", value.as_deref().unwrap_or("\\N")));
        }
    }
}
