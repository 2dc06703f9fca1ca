//! The tables that clients may write into.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pgspate::Result;
use pgspate::target::quote_ident;
use pgspate::writer::{InsertRequest, Writer};

use crate::options::TableCounts;

/// A table, and what was written into it.
#[derive(Debug)]
pub(crate) struct ServedTable {
    /// Schema and name, as SQL takes them.
    pub(crate) sql_name: String,
    /// Schema and name, unquoted.
    pub(crate) name: String,
    requests: AtomicU64,
    rows: AtomicU64,
    refused: AtomicU64,
}

impl ServedTable {
    /// Returns a request for these columns.
    pub(crate) fn request(&self, columns: Vec<String>) -> InsertRequest {
        InsertRequest { table: self.sql_name.clone(), columns, ..InsertRequest::default() }
    }

    pub(crate) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_rows(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> TableCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TableCounts {
            table: self.name.clone(),
            requests: read(&self.requests),
            rows: read(&self.rows),
            refused: read(&self.refused),
        }
    }
}

/// The tables by the names that addresses may have.
#[derive(Debug)]
pub(crate) struct ServedTables {
    pub(crate) all: Vec<Arc<ServedTable>>,
    /// `None` stands for several tables with this name.
    by_name: HashMap<String, Option<usize>>,
}

impl ServedTables {
    /// Looks the tables up.
    ///
    /// # Errors
    /// [`pgspate::ErrorKind::Usage`] if a table does not exist.
    pub(crate) async fn look_up(names: &[String], writer: &Writer) -> Result<ServedTables> {
        let mut tables = ServedTables { all: Vec::new(), by_name: HashMap::new() };
        for asked in names {
            let request = InsertRequest { table: asked.clone(), ..InsertRequest::default() };
            let shape = writer.shape(&request).await?;
            let (schema, name) = &shape.table_name;
            let full = format!("{schema}.{name}");
            if tables.all.iter().any(|table| table.name == full) {
                continue;
            }
            let number = tables.all.len();
            tables.by_name.insert(full.clone(), Some(number));
            let short = tables.by_name.entry(name.clone()).or_insert(Some(number));
            *short = short.filter(|it| *it == number);
            tables.all.push(Arc::new(ServedTable {
                sql_name: format!("{}.{}", quote_ident(schema), quote_ident(name)),
                name: full,
                requests: AtomicU64::new(0),
                rows: AtomicU64::new(0),
                refused: AtomicU64::new(0),
            }));
        }
        Ok(tables)
    }

    /// Returns the table with this name, with or without its schema.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<ServedTable>> {
        let number = (*self.by_name.get(name)?)?;
        self.all.get(number).cloned()
    }
}
