//! In which order tables are written: those that are referred to before those that refer to them.

use super::ApplyTable;

/// For each table its place in that order. Tables that refer to each other in a circle come in any.
pub(crate) fn parents_first(tables: &[&ApplyTable]) -> Vec<usize> {
    order(&parents(tables)).0
}

/// A table from which foreign keys lead through others back to it, if there is one.
pub(crate) fn circle<'a>(tables: &[&'a ApplyTable]) -> Option<&'a ApplyTable> {
    order(&parents(tables)).1.map(|at| tables[at])
}

/// For each table those of the others that it refers to.
fn parents(tables: &[&ApplyTable]) -> Vec<Vec<usize>> {
    let at = |oid: &u32| tables.iter().position(|table| table.table.oid == *oid);
    let others = |(nth, table): (usize, &&ApplyTable)| {
        table.parents.iter().filter_map(at).filter(|parent| *parent != nth).collect()
    };
    tables.iter().enumerate().map(others).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum VisitState {
    No,
    Above,
    Done(usize),
}

/// The place of each node after those that it depends on, and a node of a circle.
fn order(above: &[Vec<usize>]) -> (Vec<usize>, Option<usize>) {
    fn visit(
        at: usize,
        above: &[Vec<usize>],
        seen: &mut [VisitState],
        next: &mut usize,
    ) -> Option<usize> {
        match seen[at] {
            VisitState::Above => return Some(at),
            VisitState::Done(_) => return None,
            VisitState::No => seen[at] = VisitState::Above,
        }
        let mut circle = None;
        for parent in &above[at] {
            circle = visit(*parent, above, seen, next).or(circle);
        }
        seen[at] = VisitState::Done(*next);
        *next += 1;
        circle
    }
    let mut seen = vec![VisitState::No; above.len()];
    let mut next = 0;
    let mut circle = None;
    for at in 0..above.len() {
        circle = visit(at, above, &mut seen, &mut next).or(circle);
    }
    let place = |seen: &VisitState| match seen {
        VisitState::Done(place) => *place,
        VisitState::No | VisitState::Above => 0,
    };
    (seen.iter().map(place).collect(), circle)
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn parents_come_first() {
        let (places, circle) = order(&[vec![1, 2], vec![2], vec![], vec![0]]);
        assert_eq!((places, circle), (vec![2, 1, 0, 3], None));
    }

    #[test]
    fn circles_are_found_and_have_an_order() {
        let (mut places, circle) = order(&[vec![1], vec![2], vec![1], vec![]]);
        assert_eq!(circle, Some(1));
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2, 3]);
    }
}
