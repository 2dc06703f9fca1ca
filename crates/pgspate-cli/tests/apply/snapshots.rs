//! The rows that there are when a slot begins: which they are, and what is in their way.

use crate::rows;
use crate::source::{Source, applied_slot};
use crate::support::Case;

const FAMILY: &str = "create table parent (id int primary key, v int);
create table child (extra int, primary key (id)) inherits (parent);
";

/// Each table of a family of tables has its own rows, and keeps them when another one is emptied.
#[test]
fn rows_of_tables_that_inherit_are_their_own() {
    let source = Source::new(&format!(
        "{FAMILY}insert into parent values (1, 1);\ninsert into child values (2, 2, 2);\n\
         create publication p for table parent, child"
    ));
    let case = Case::new(&FAMILY.replace('\n', " "));
    applied_slot(&source, &case, "--snapshot");
    for table in ["only parent", "child"] {
        assert_eq!(rows(&case, table), source.rows(table), "{table}");
    }
}
