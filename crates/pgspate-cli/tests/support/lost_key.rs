//! A table whose primary key a killed load has dropped.

use crate::support::LoadCase;

/// Loads a file into table t. Then drops the table's primary key, as a load of it does that is
/// killed before it puts the key back.
pub(crate) fn load_and_lose_key(case: &LoadCase, file: &str) {
    case.load(&format!("{file} --table t --quiet")).success();
    case.db.run(
        "insert into pgspate.change (job, ordinal, table_oid, kind, object, steps, beside) \
         select max(job), 1, 't'::regclass, 'primary key', 't_pkey', '{\"{}\"}', false \
         from pgspate.job; \
         alter table t drop constraint t_pkey",
    );
}
