//! What the report can draw, as data.
//!
//! A figure says what it shows; how wide it is, and in which colours, is the drawing's matter.

use crate::experiment::{TrialPicture, Unit};
use crate::spread::Spread;

/// Something to look at, with its heading.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What is shown, in a few words.
    pub title: String,
    /// What has to be known to read it; may be empty.
    pub note: String,
    /// The drawing.
    pub plot: Plot,
}

impl Figure {
    /// A figure.
    pub fn new(title: &str, note: &str, plot: Plot) -> Figure {
        Figure { title: title.to_owned(), note: note.to_owned(), plot }
    }

    /// Whether there is nothing to be seen.
    pub fn is_empty(&self) -> bool {
        match &self.plot {
            Plot::Bars(bars) => bars.groups.iter().all(|group| group.bars.is_empty()),
            Plot::Lines(lines) => lines.lines.iter().all(|line| line.points.is_empty()),
            Plot::Table(table) => table.rows.is_empty(),
            Plot::Pictures(pictures) => pictures.is_empty(),
            Plot::Strips(strips) => strips.iter().all(|strip| strip.pictures.is_empty()),
        }
    }
}

/// Kinds of drawings.
#[derive(Debug, Clone, PartialEq)]
pub enum Plot {
    /// Lengths to compare.
    Bars(Bars),
    /// Values along an axis.
    Lines(Lines),
    /// Words and numbers.
    Table(PlotTable),
    /// Drawings that trials made, each under its caption.
    Pictures(Vec<(String, TrialPicture)>),
    /// Rows of small drawings.
    Strips(Vec<Strip>),
}

/// Small drawings side by side, such as of what was there after each of several steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Strip {
    /// Whose they are.
    pub name: String,
    /// The drawings from left to right, each with a word that stands below it.
    pub pictures: Vec<(String, TrialPicture)>,
}

/// Bars from zero, in groups.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bars {
    /// What their length counts.
    pub unit: Option<Unit>,
    /// The groups, from top to bottom.
    pub groups: Vec<BarGroup>,
}

/// Bars under one heading.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BarGroup {
    /// The heading; may be empty.
    pub name: String,
    /// The bars, from top to bottom.
    pub bars: Vec<Bar>,
}

/// A median with its spread.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Whose it is.
    pub name: String,
    /// Its length, and the least and greatest value.
    pub value: Spread,
    /// Whether it is computed and not measured: it is drawn hollow.
    pub is_computed: bool,
}

impl Bar {
    /// What was measured.
    pub fn measured(name: &str, value: Spread) -> Bar {
        Bar { name: name.to_owned(), value, is_computed: false }
    }

    /// What was computed from something measured.
    pub fn computed(name: &str, value: f64) -> Bar {
        Bar { name: name.to_owned(), value: Spread::exactly(value), is_computed: true }
    }
}

/// Lines in a frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// From left to right.
    pub x: Axis,
    /// From bottom to top.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<Curve>,
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// What it is, in a few words.
    pub name: String,
    /// What it counts.
    pub unit: Unit,
    /// Whether each step is ten times the last one.
    pub is_log: bool,
}

impl Axis {
    /// An axis of equal steps.
    pub fn linear(name: &str, unit: Unit) -> Axis {
        Axis { name: name.to_owned(), unit, is_log: false }
    }

    /// An axis on which each step is ten times the last one.
    pub fn log(name: &str, unit: Unit) -> Axis {
        Axis { name: name.to_owned(), unit, is_log: true }
    }
}

/// A line.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Whose it is.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, Spread)>,
}

/// Rows under headings. All columns but the first are to the right.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlotTable {
    /// The headings.
    pub columns: Vec<String>,
    /// The rows, each as long as the headings.
    pub rows: Vec<Vec<String>>,
}
