//! The units that wait for a lane, by shape. The shapes take turns, so that no shape starves.

use std::collections::{HashMap, VecDeque};

use super::unit::Unit;

/// The most records, and bytes of records, that a lane takes at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct SetLimits {
    pub(super) rows: usize,
    pub(super) bytes: usize,
}

/// The waiting units.
#[derive(Debug, Default)]
pub(super) struct UnitQueue {
    /// The units of each shape, by the shape's number.
    shapes: HashMap<u64, VecDeque<Unit>>,
    /// The numbers of the shapes that have units, in the order of their turns.
    turns: VecDeque<u64>,
    records: usize,
}

impl UnitQueue {
    /// Appends units of one shape. They are taken in this order.
    pub(super) fn push(&mut self, units: impl IntoIterator<Item = Unit>) {
        for unit in units {
            self.records += unit.rows.len();
            self.of_shape(&unit).push_back(unit);
        }
    }

    /// Puts units back that a lane has taken and not sent.
    pub(super) fn push_front(&mut self, units: impl DoubleEndedIterator<Item = Unit>) {
        for unit in units.rev() {
            self.records += unit.rows.len();
            self.of_shape(&unit).push_front(unit);
        }
    }

    /// Returns the queue of the unit's shape, which gets its turn after the shapes that wait.
    fn of_shape(&mut self, unit: &Unit) -> &mut VecDeque<Unit> {
        let id = unit.shape.id;
        let waiting = self.shapes.entry(id).or_default();
        if waiting.is_empty() {
            self.turns.push_back(id);
        }
        waiting
    }

    /// Takes units of one shape, at least one if any waits. Units of one call stay together.
    pub(super) fn take(&mut self, limits: SetLimits) -> Vec<Unit> {
        let Some(id) = self.turns.pop_front() else { return Vec::new() };
        let Some(waiting) = self.shapes.get_mut(&id) else { return Vec::new() };
        let (mut taken, mut rows, mut bytes) = (Vec::<Unit>::new(), 0, 0);
        while let Some(next) = waiting.front() {
            rows += next.rows.len();
            bytes += next.rows.bytes();
            let is_full = rows > limits.rows || bytes > limits.bytes;
            if is_full && taken.last().is_some_and(|last| last.call != next.call) {
                break;
            }
            taken.extend(waiting.pop_front());
        }
        match waiting.is_empty() {
            // Shapes come and go with the columns that callers send, so an empty queue is dropped.
            true => drop(self.shapes.remove(&id)),
            false => self.turns.push_back(id),
        }
        self.records -= taken.iter().map(|unit| unit.rows.len()).sum::<usize>();
        taken
    }

    /// Returns the number of waiting records.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    /// Returns whether no unit waits.
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}
