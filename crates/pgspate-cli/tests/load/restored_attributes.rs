//! Comments and marks of restored indexes, if a user has changed the table during the load.

use crate::dropped_keys::{SELECT_DEFINITIONS, new_case, run_restore, start_and_kill_load};
use crate::support::LoadCase;

/// Returns the index that the table is clustered on.
fn cluster_index(case: &LoadCase) -> String {
    case.value(
        "select relname from pg_index join pg_class c on c.oid = indexrelid \
         where indrelid = 't'::regclass and indisclustered",
    )
}

#[test]
fn an_index_that_a_user_clusters_the_table_on_during_the_load_stays() {
    let other = "create index other on t (b); alter table t cluster on other";
    for (set, expected) in [("", "t_key"), (other, "other")] {
        let (case, _) = new_case();
        case.db.run("alter table t cluster on t_key");
        start_and_kill_load(&case);
        case.db.run(set);
        run_restore(&case).success();
        assert_eq!(cluster_index(&case), expected);
    }
}

#[test]
fn indexes_that_a_user_creates_during_the_load_get_their_comments_and_marks() {
    let (case, shape) = new_case();
    case.db.run("alter table t cluster on t_key; alter table t replica identity using index t_key");
    start_and_kill_load(&case);
    case.db.run("create index t_a on t (a); alter table t add constraint t_key primary key (id)");
    run_restore(&case).success();
    assert_eq!(case.value(SELECT_DEFINITIONS), shape);
    assert_eq!(cluster_index(&case), "t_key");
    let identity = "select relreplident from pg_class where oid = 't'::regclass";
    assert_eq!(case.value(identity), "i");
}

#[test]
fn a_key_that_a_user_creates_otherwise_during_the_load_stays() {
    let (case, _) = new_case();
    start_and_kill_load(&case);
    case.db.run(
        "alter table t add constraint t_far foreign key (a) references far on delete cascade; \
         comment on constraint t_far on t is 'mine'",
    );
    run_restore(&case).success();
    let key = "select pg_get_constraintdef(oid) || ' ' || obj_description(oid) \
               from pg_constraint where conname = 't_far'";
    assert_eq!(case.value(key), "FOREIGN KEY (a) REFERENCES far(a) ON DELETE CASCADE mine");
}
