//! Words and shapes as SVG.
//!
//! All text from results goes through [`escape`]. Widths of words are estimated rather too wide,
//! because the reader's fonts are unknown.

use std::fmt::{Display, Write as _};

/// Pixels of a letter's height.
pub(super) const FONT: f64 = 13.0;

/// Escapes text for elements and attributes of HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML forbids these characters, even as character references.
            c if c.is_control() && !matches!(c, '\n' | '\t') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Estimates the width of a text in pixels, rather too wide.
pub(super) fn width(text: &str) -> f64 {
    let of = |c: char| match c {
        'i' | 'j' | 'l' | '.' | ',' | '\'' | ' ' | 'f' | 't' | 'r' | '(' | ')' | '/' => 0.42,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.95,
        c if c.is_ascii_uppercase() => 0.72,
        c if c.is_ascii() => 0.6,
        _ => 1.0,
    };
    text.chars().map(of).sum::<f64>() * FONT
}

/// Estimates the width of bold text.
pub(super) fn strong_width(text: &str) -> f64 {
    width(text) * 1.1
}

/// Cuts the text to fit into a width in pixels.
pub(super) fn fitted(text: &str, pixels: f64) -> String {
    if width(text) <= pixels {
        return text.to_owned();
    }
    let mut kept = String::new();
    for c in text.chars() {
        if width(&kept) + width("m…") > pixels {
            break;
        }
        kept.push(c);
    }
    format!("{}…", kept.trim_end())
}

/// A drawing of a fixed size.
pub(super) struct Svg {
    body: String,
    width: f64,
}

impl Svg {
    pub(super) fn new(width: f64) -> Svg {
        Svg { body: String::new(), width }
    }

    /// Adds a shape. `attributes` must be safe: they are not escaped. `title` is its tooltip.
    pub(super) fn shape(&mut self, element: &str, attributes: impl Display, title: &str) {
        let _ = match title {
            "" => write!(self.body, "<{element} {attributes}/>"),
            title => {
                let title = escape(title);
                write!(self.body, "<{element} {attributes}><title>{title}</title></{element}>")
            }
        };
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let place = format!(
            "class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\""
        );
        self.shape("line", place, "");
    }

    /// Adds a text; `anchor` is start, middle or end.
    pub(super) fn text(&mut self, class: &str, at: (f64, f64), anchor: &str, text: &str) {
        let (x, y) = at;
        let text = escape(text);
        let _ = write!(
            self.body,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}\
             </text>"
        );
    }

    /// Returns the whole drawing. `class` is the width of the page that it is for.
    pub(super) fn finish(self, class: &str, height: f64, label: &str) -> String {
        let (width, label) = (self.width, escape(label));
        format!(
            "<svg class=\"plot {class}\" role=\"img\" aria-label=\"{label}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\">{}</svg>",
            self.body
        )
    }
}

/// Returns each name's colour: pgspate has two, the other contenders have the rest.
pub(super) fn colours(names: &[&str]) -> Vec<usize> {
    const OURS: [usize; 2] = [0, 1];
    const OTHERS: [usize; 6] = [2, 3, 4, 5, 6, 7];
    let (mut ours, mut others) = (0, 0);
    let next = |name: &&str| match name.starts_with("pgspate") {
        true => {
            ours += 1;
            OURS[(ours - 1) % OURS.len()]
        }
        false => {
            others += 1;
            OTHERS[(others - 1) % OTHERS.len()]
        }
    };
    names.iter().map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_text() {
        let hostile = "<script>alert('x')</script>&\"\u{1}";
        let escaped = escape(hostile);
        assert_eq!(escaped, "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;\u{fffd}");
        let mut svg = Svg::new(100.0);
        svg.text("label", (1.0, 2.0), "start", hostile);
        svg.shape("rect", "width=\"1\"", hostile);
        let drawn = svg.finish("wide", 10.0, hostile);
        assert!(!drawn.contains("<script"), "{drawn}");
        assert_eq!(drawn.matches("&lt;script").count(), 3);
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(fitted("short", 100.0), "short");
        let cut = fitted(&"long ".repeat(30), 120.0);
        assert!(cut.ends_with('…') && width(&cut) <= 130.0, "{cut}");
    }

    #[test]
    fn pgspate_has_its_own_colours() {
        assert_eq!(colours(&["copy", "pgspate", "merge", "pgspate, tuned"]), [2, 0, 3, 1]);
    }
}
