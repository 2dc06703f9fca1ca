//! Row-level security of the ledger: what a role may do with rows of other roles.
//!
//! All roles can see jobs and their files, changes, streams and emptied tables, since every load
//! checks for loaded files and dropped keys. Only the role that wrote a row, and members of that
//! role, can change or delete the row. Only these roles can see chunks, rejected rows and dead
//! letters. Only the owner may change the ledger's version and its key. Policies do not apply to
//! the owner of the tables.

/// Policies of the main tables. A role may record a job only for a table that it may write to. It
/// may record dropped keys only for a table that it owns. Otherwise a role could claim that another
/// role's files are loaded, or its keys dropped. A role that may TRUNCATE a table may record that
/// the table was emptied.
pub(super) const POLICIES: &str = "\
alter table pgspate.version enable row level security;
create policy look on pgspate.version for select using (true);
alter table pgspate.job enable row level security;
create policy look on pgspate.job for select using (true);
create policy record on pgspate.job for insert
    with check (role = current_user and MAY_WRITE);
create policy work on pgspate.job for update using (IS_OURS) with check (IS_OURS and MAY_WRITE);
create policy forget on pgspate.job for delete using (IS_OURS);
alter table pgspate.ledger enable row level security;
create policy work on pgspate.ledger using (exists (
    select from pgspate.job where job.job = ledger.job and IS_OURS));
alter table pgspate.reject enable row level security;
create policy work on pgspate.reject using (exists (
    select from pgspate.job where job.job = reject.job and IS_OURS));
alter table pgspate.change enable row level security;
create policy look on pgspate.change for select using (true);
create policy record on pgspate.change for insert
    with check (role = current_user and IS_CHANGED_BY_OWNER);
create policy undo on pgspate.change for update using (IS_OURS)
    with check (IS_OURS and IS_CHANGED_BY_OWNER);
create policy forget on pgspate.change for delete using (IS_OURS);
alter table pgspate.emptied enable row level security;
create policy look on pgspate.emptied for select using (true);
create policy record on pgspate.emptied for insert with check (
    role = current_user and has_table_privilege(table_oid, 'truncate'));
create policy forget on pgspate.emptied for delete using (IS_OURS)";

/// Policies of the files of jobs. All roles can see the files, as they can see the jobs.
pub(super) const FILE_POLICIES: &str = "\
alter table pgspate.source_file enable row level security;
create policy look on pgspate.source_file for select using (true);
create policy record on pgspate.source_file for insert with check (exists (
    select from pgspate.job where job.job = source_file.job and IS_OURS));
create policy work on pgspate.source_file for update using (exists (
    select from pgspate.job where job.job = source_file.job and IS_OURS));
create policy forget on pgspate.source_file for delete using (exists (
    select from pgspate.job where job.job = source_file.job and IS_OURS))";

/// Policies of the tables for streams.
pub(super) const STREAM_POLICIES: &str = "\
alter table pgspate.stream enable row level security;
create policy look on pgspate.stream for select using (true);
create policy record on pgspate.stream for insert with check (role = current_user);
create policy work on pgspate.stream for update using (IS_OURS);
create policy forget on pgspate.stream for delete using (IS_OURS);
alter table pgspate.dead_letter enable row level security;
create policy work on pgspate.dead_letter using (IS_OURS) with check (role = current_user)";

/// A condition: the current role is the row's `role`, or a member of it. The row's role may have
/// been dropped.
pub(super) const IS_OURS: &str = "\
exists (select from pg_catalog.pg_roles r where r.rolname = role \
        and pg_catalog.pg_has_role(r.oid, 'member'))";

/// A condition: the role may write to the job's table. NULL, which means no, if the table does not
/// exist: its oid may later belong to another role's table.
const MAY_WRITE: &str = "pg_catalog.has_any_column_privilege(table_oid, 'insert')";

/// A condition: the role owns the changed table, or the table no longer exists. Settings belong to
/// no table.
const IS_CHANGED_BY_OWNER: &str = "\
(kind = 'setting' or not exists (select from pg_catalog.pg_class c where c.oid = table_oid \
                                 and not pg_catalog.pg_has_role(c.relowner, 'usage')))";

/// Returns the policies as SQL, with their conditions inserted.
pub(super) fn sql(policies: &str) -> String {
    policies
        .replace("IS_OURS", IS_OURS)
        .replace("MAY_WRITE", MAY_WRITE)
        .replace("IS_CHANGED_BY_OWNER", IS_CHANGED_BY_OWNER)
}
