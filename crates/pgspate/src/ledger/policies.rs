//! Row-level security of the ledger: what a role may do with rows of another role.
//!
//! All roles see which jobs, changes and streams there are, as all look for files that are loaded
//! and for keys that are dropped. All else is for the role itself and its members. Policies do not
//! hold the owner of the tables.

/// A job counts no more when another role that may empty its table does so.
pub(super) const POLICIES: &str = "\
alter table pgspate.job enable row level security;
create policy look on pgspate.job for select using (true);
create policy record on pgspate.job for insert with check (role = current_user);
create policy work on pgspate.job for update using (IS_OURS);
create policy void on pgspate.job for update
    using (has_table_privilege(table_oid, 'truncate')) with check (table_oid = 0);
create policy forget on pgspate.job for delete using (IS_OURS);
alter table pgspate.ledger enable row level security;
create policy work on pgspate.ledger using (exists (
    select from pgspate.job where job.job = ledger.job and IS_OURS));
alter table pgspate.reject enable row level security;
create policy work on pgspate.reject using (exists (
    select from pgspate.job where job.job = reject.job and IS_OURS));
alter table pgspate.change enable row level security;
create policy look on pgspate.change for select using (true);
create policy record on pgspate.change for insert with check (role = current_user);
create policy undo on pgspate.change for update using (IS_OURS);
create policy forget on pgspate.change for delete using (IS_OURS)";

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

/// The policies of tables, as SQL.
pub(super) fn sql(of: &str) -> String {
    of.replace("IS_OURS", IS_OURS)
}
