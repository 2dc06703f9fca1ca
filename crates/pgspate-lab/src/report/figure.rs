//! The figures of the report, as data.
//!
//! A figure has titles and values. The drawing modules choose sizes and colours.

use crate::experiment::{TrialPicture, Unit};
use crate::spread::Spread;

/// A plot with its title and a note.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The title, a few words long.
    pub title: String,
    /// An explanation for the reader; may be empty.
    pub note: String,
    /// The values to draw.
    pub plot: Plot,
}

impl Figure {
    /// Returns a figure with this title, note and plot.
    pub fn new(title: &str, note: &str, plot: Plot) -> Figure {
        Figure { title: title.to_owned(), note: note.to_owned(), plot }
    }

    /// Returns whether the plot has nothing to draw.
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

/// A plot of one of several kinds.
#[derive(Debug, Clone, PartialEq)]
pub enum Plot {
    /// Bars whose lengths are compared.
    Bars(Bars),
    /// Lines between two axes.
    Lines(Lines),
    /// A table of words and numbers.
    Table(PlotTable),
    /// Pictures that trials recorded, each with its caption.
    Pictures(Vec<(String, TrialPicture)>),
    /// Rows of small pictures.
    Strips(Vec<Strip>),
}

/// Small pictures side by side, such as the state of a table after each of several steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Strip {
    /// The contender or case that the pictures belong to.
    pub name: String,
    /// The pictures from left to right, each with the label below the picture.
    pub pictures: Vec<(String, TrialPicture)>,
}

/// Groups of bars that begin at zero.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bars {
    /// The unit of the bars' lengths.
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
    /// The label of the bar.
    pub name: String,
    /// The median, which is the bar's length, and the least and greatest value.
    pub value: Spread,
    /// Whether the value was computed rather than measured. Computed bars are drawn hollow.
    pub is_computed: bool,
}

impl Bar {
    /// Returns a bar for a measured value.
    pub fn measured(name: &str, value: Spread) -> Bar {
        Bar { name: name.to_owned(), value, is_computed: false }
    }

    /// Returns a bar for a value that was computed from measured values.
    pub fn computed(name: &str, value: f64) -> Bar {
        Bar { name: name.to_owned(), value: Spread::exactly(value), is_computed: true }
    }
}

/// Lines between a horizontal and a vertical axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<Curve>,
}

/// An axis of a line plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// The quantity on the axis, in a few words.
    pub name: String,
    /// The unit of the values.
    pub unit: Unit,
    /// Whether the axis is logarithmic.
    pub is_log: bool,
}

impl Axis {
    /// Returns a linear axis.
    pub fn linear(name: &str, unit: Unit) -> Axis {
        Axis { name: name.to_owned(), unit, is_log: false }
    }

    /// Returns a logarithmic axis.
    pub fn log(name: &str, unit: Unit) -> Axis {
        Axis { name: name.to_owned(), unit, is_log: true }
    }
}

/// A line through the spreads of several trials.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// The label of the line.
    pub name: String,
    /// The points from left to right: the horizontal position and the spread of the values there.
    pub points: Vec<(f64, Spread)>,
}

/// Rows under headings. All columns but the first are right-aligned.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlotTable {
    /// The headings of the columns.
    pub columns: Vec<String>,
    /// The rows. Each row has one cell for each heading.
    pub rows: Vec<Vec<String>>,
}
