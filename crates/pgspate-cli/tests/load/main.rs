//! Tests of the command `pgspate load`, with real files and a real PostgreSQL server.

mod added_columns;
mod autovacuum_statistics_sequences;
mod changed_columns;
mod changed_files;
mod column_names;
mod concurrent_sessions;
mod constant_columns;
mod created_tables;
mod date_formats;
#[path = "../support/disk.rs"]
mod disk;
mod dropped_keys;
mod embedded;
mod exchange_conditions;
mod expression_statistics;
mod failed_shadows;
mod formats;
mod growing_folders;
mod guessed_types;
mod header_guesses;
mod help;
mod hints;
mod hostile;
mod index_plans;
mod indexes;
mod interruptions;
mod kept_rows;
mod late_keys;
mod ledger;
mod lost_rows;
mod memory_limits;
#[path = "../../../pgspate/tests/support/moto.rs"]
mod moto;
mod object_store;
mod output;
mod refused_rows;
mod rejects;
mod replace_by_shadow;
mod replace_in_transaction;
mod replaced_tables;
mod restored_attributes;
#[path = "../support/run.rs"]
mod run;
mod side_by_side;
mod support;
mod table_properties;
mod tables;
mod terminal;
mod unlogged;
mod unreadable_input;
mod unseen_marks;
mod unusable_targets;
mod web_servers;
