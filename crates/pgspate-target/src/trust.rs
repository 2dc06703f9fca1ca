//! Which owners of tables are trusted, as SQL: asked of the catalog before a table is read.
//!
//! A statement that reads a table can run functions of its owner: those of a view, of a policy, of
//! an index's condition. They run as the current role. So pgspate reads a table that it was not
//! told to read only if its owner could do all that this role can.

/// Returns SQL for whether the role of the oid `owner` can do all that the current role can. The
/// current role itself, a superuser and a member of the current role can. A group that the current
/// role is in does not count: its other members could have the current role run something.
pub(crate) fn is_trusted_sql(owner: &str) -> String {
    format!("pg_has_role({owner}, current_user, 'member')")
}

/// Returns SQL for the name of an owner who is not trusted; NULL if all are trusted. Looked at are
/// the owners of the table `other`, of its partitions, and of tables that inherit from it. The
/// owner of `target` counts as trusted, and roles that can act for that owner: pgspate writes to
/// `target`, and so runs the triggers of its owner anyway. `other` and `target` are oids.
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
