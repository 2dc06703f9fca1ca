//! Which table owners are trusted, as SQL that pgspate runs before it reads a table.
//!
//! A statement that reads a table can run functions chosen by the table's owner: in a view, a row
//! security policy, or an index condition. These functions run as the current role. So pgspate
//! reads a table that the user did not name only if its owner could act as the current role anyway.

/// Returns SQL that tests whether the role with oid `owner` can act as the current role. Trusted
/// are the current role itself, superusers and members of the current role. A group that contains
/// the current role is not trusted: its other members could make the current role run their code.
pub(crate) fn is_trusted_sql(owner: &str) -> String {
    format!("pg_has_role({owner}, current_user, 'member')")
}

/// Returns SQL for the name of an untrusted owner, or NULL if all owners are trusted. `other` and
/// `target` are oids of tables. The SQL checks the owners of `other`, of its partitions, and of
/// tables that inherit from it. The owner of `target` and roles that can act as that owner are
/// trusted: pgspate writes to `target`, and so runs its triggers anyway.
pub fn untrusted_owner_sql(other: &str, target: &str) -> String {
    format!(
        "(with recursive tree(oid) as (
            select {other}
            union
            select i.inhrelid from tree join pg_inherits i on i.inhparent = tree.oid)
          select pg_get_userbyid(r.relowner)::text
          from tree join pg_class r on r.oid = tree.oid
          where not {} and not pg_has_role(
              r.relowner, (select relowner from pg_class where oid = {target}), 'member')
          order by 1 limit 1)",
        is_trusted_sql("r.relowner")
    )
}
