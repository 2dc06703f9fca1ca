//! The order in which tables are written: referenced tables before the tables that refer to them.

use super::ApplyTable;

/// Returns the place of each table in that order. Tables of a reference cycle are in any order.
pub(crate) fn parents_first(tables: &[&ApplyTable]) -> Vec<usize> {
    topological_order(&parents_of_each(tables)).0
}

/// Returns a table of a cycle of foreign keys, if there is one.
pub(crate) fn find_reference_cycle<'a>(tables: &[&'a ApplyTable]) -> Option<&'a ApplyTable> {
    topological_order(&parents_of_each(tables)).1.map(|at| tables[at])
}

/// Returns, for each table, the positions of the other tables that it references. A table may be at
/// several positions, as the target of several tables of the source.
fn parents_of_each(tables: &[&ApplyTable]) -> Vec<Vec<usize>> {
    let oids: Vec<u32> = tables.iter().map(|table| table.table.oid).collect();
    let others = |table: &&ApplyTable| {
        let is_parent = |oid: u32| oid != table.table.oid && table.parent_oids.contains(&oid);
        (0..oids.len()).filter(|at| is_parent(oids[*at])).collect()
    };
    tables.iter().map(others).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum VisitState {
    Unvisited,
    InProgress,
    Done(usize),
}

/// Returns the place of each node after its parents, and a node of a cycle if there is one.
fn topological_order(above: &[Vec<usize>]) -> (Vec<usize>, Option<usize>) {
    fn visit(
        at: usize,
        above: &[Vec<usize>],
        seen: &mut [VisitState],
        next: &mut usize,
    ) -> Option<usize> {
        match seen[at] {
            VisitState::InProgress => return Some(at),
            VisitState::Done(_) => return None,
            VisitState::Unvisited => seen[at] = VisitState::InProgress,
        }
        let mut cycle = None;
        for parent in &above[at] {
            cycle = visit(*parent, above, seen, next).or(cycle);
        }
        seen[at] = VisitState::Done(*next);
        *next += 1;
        cycle
    }
    let mut seen = vec![VisitState::Unvisited; above.len()];
    let mut next = 0;
    let mut cycle = None;
    for at in 0..above.len() {
        cycle = visit(at, above, &mut seen, &mut next).or(cycle);
    }
    let place = |seen: &VisitState| match seen {
        VisitState::Done(place) => *place,
        VisitState::Unvisited | VisitState::InProgress => 0,
    };
    (seen.iter().map(place).collect(), cycle)
}

#[cfg(test)]
mod tests {
    use super::topological_order;

    #[test]
    fn parents_come_first() {
        let (places, cycle) = topological_order(&[vec![1, 2], vec![2], vec![], vec![0]]);
        assert_eq!((places, cycle), (vec![2, 1, 0, 3], None));
    }

    #[test]
    fn cycles_are_found_and_ordered() {
        let (mut places, cycle) = topological_order(&[vec![1], vec![2], vec![1], vec![]]);
        assert_eq!(cycle, Some(1));
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2, 3]);
    }
}
