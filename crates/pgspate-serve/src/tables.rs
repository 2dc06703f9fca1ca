//! The tables that clients may write into.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pgspate::target::quote_ident;
use pgspate::writer::{InsertOutcome, InsertRequest, Writer};
use pgspate::{Error, ErrorKind, Result};

use crate::options::TableCounts;

/// A table, and what was written into it.
#[derive(Debug)]
pub(crate) struct ServedTable {
    /// Schema and name, as SQL takes them.
    pub(crate) sql_name: String,
    /// Schema and name, unquoted.
    pub(crate) name: String,
    oid: u32,
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

    /// Counts the rows, unless an earlier request with the same idempotency key wrote them.
    pub(crate) fn count_written(&self, outcome: &InsertOutcome) {
        if !outcome.is_repeat {
            self.rows.fetch_add(outcome.rows, Ordering::Relaxed);
        }
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
    /// [`ErrorKind::Usage`] if a table does not exist, or no name stands for the table alone.
    pub(crate) async fn look_up(names: &[String], writer: &Writer) -> Result<ServedTables> {
        let mut tables = ServedTables { all: Vec::new(), by_name: HashMap::new() };
        for asked in names {
            let request = InsertRequest { table: asked.clone(), ..InsertRequest::default() };
            let shape = writer.shape(&request).await?;
            let (schema, name) = &shape.table_name;
            let full = format!("{schema}.{name}");
            if tables.all.iter().any(|table| table.oid == shape.table_oid) {
                continue;
            }
            let number = tables.all.len();
            for address in [&full, name] {
                let known = tables.by_name.entry(address.clone()).or_insert(Some(number));
                *known = known.filter(|it| *it == number);
            }
            tables.all.push(Arc::new(ServedTable {
                sql_name: format!("{}.{}", quote_ident(schema), quote_ident(name)),
                name: full,
                oid: shape.table_oid,
                requests: AtomicU64::new(0),
                rows: AtomicU64::new(0),
                refused: AtomicU64::new(0),
            }));
        }
        for (number, table) in tables.all.iter().enumerate() {
            if !tables.by_name.values().any(|known| *known == Some(number)) {
                let message = format!("the name {} stands for several tables", table.name);
                let hint = "A name with a dot is spelled like a schema and a name. Serve one of \
                            the tables by a process of its own, or rename the table.";
                return Err(Error::new(ErrorKind::Usage, message).hint(hint));
            }
        }
        Ok(tables)
    }

    /// Returns the table with this name, with or without its schema.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<ServedTable>> {
        let number = (*self.by_name.get(name)?)?;
        self.all.get(number).cloned()
    }
}
