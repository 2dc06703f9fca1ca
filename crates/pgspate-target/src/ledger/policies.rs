//! Row-level security of the ledger: what a role may do with rows of another role.
//!
//! All roles see which jobs, changes and streams there are, as all look for files that are loaded
//! and for keys that are dropped. All else is for the role itself and its members. The version and
//! the key are the owner's alone to change. Policies do not hold the owner of the tables.

/// A job is about a table that its role may write to. Dropped keys are of a table that the role
/// owns. Else a role could say that another's files are loaded, or its keys dropped. Who may empty
/// a table may say that it is emptied.
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

/// The same for streams.
pub(super) const STREAM_POLICIES: &str = "\
alter table pgspate.stream enable row level security;
create policy look on pgspate.stream for select using (true);
create policy record on pgspate.stream for insert with check (role = current_user);
create policy work on pgspate.stream for update using (IS_OURS);
create policy forget on pgspate.stream for delete using (IS_OURS);
alter table pgspate.dead_letter enable row level security;
create policy work on pgspate.dead_letter using (IS_OURS) with check (role = current_user)";

/// That a row's `role` is the current one, or has it as a member. A role may have been dropped.
pub(super) const IS_OURS: &str = "\
exists (select from pg_catalog.pg_roles r where r.rolname = role \
        and pg_catalog.pg_has_role(r.oid, 'member'))";

/// That the role may write to the table that a job is about. It is NULL, which is no, where there
/// is no such table: the oid may become that of another role's table.
const MAY_WRITE: &str = "pg_catalog.has_any_column_privilege(table_oid, 'insert')";

/// That the role owns the table that a change is about, which may be gone. Settings are no table's.
const IS_CHANGED_BY_OWNER: &str = "\
(kind = 'setting' or not exists (select from pg_catalog.pg_class c where c.oid = table_oid \
                                 and not pg_catalog.pg_has_role(c.relowner, 'usage')))";

/// The policies of tables, as SQL.
pub(super) fn sql(of: &str) -> String {
    of.replace("IS_OURS", IS_OURS)
        .replace("MAY_WRITE", MAY_WRITE)
        .replace("IS_CHANGED_BY_OWNER", IS_CHANGED_BY_OWNER)
}
