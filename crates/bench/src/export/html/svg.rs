//! A few SVG shapes on a plot with axes.

use std::fmt::Write;

/// Text for HTML and SVG: markup escaped, control characters (which neither may hold) replaced.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(' '),
            c if c.is_control() => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
    out
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;

/// The values along one axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    pub(super) low: f64,
    pub(super) high: f64,
    step: f64,
}

impl Scale {
    /// A scale with about five round steps that holds `low` to `high`.
    pub(super) fn holding(low: f64, high: f64) -> Self {
        let span = if high > low { high - low } else { high.abs().max(1.0) };
        let rough = span / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            power * [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|m| m * power >= rough).unwrap_or(10.0);
        let bottom = (low / step).floor() * step;
        let top = (high / step).ceil() * step;
        Self { low: bottom, high: if top > bottom { top } else { bottom + step }, step }
    }

    /// From zero.
    pub(super) fn from_zero(high: f64) -> Self {
        Self::holding(0.0, high.max(0.0))
    }

    fn ticks(self) -> impl Iterator<Item = f64> {
        let count = ((self.high - self.low) / self.step).round().clamp(0.0, 20.0) as usize;
        (0..=count).map(move |i| self.low + self.step * i as f64)
    }

    fn part(self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

/// A value on an axis, short: `1.2k`, `35`, `0.25`.
pub(super) fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.2}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
}

/// A plot under construction.
pub(super) struct Plot {
    body: String,
    y: Scale,
}

impl Plot {
    /// An empty plot with its y axis, grid and axis names.
    pub(super) fn new(y: Scale, x_name: &str, y_name: &str) -> Self {
        let mut plot = Self { body: String::new(), y };
        for tick in y.ticks() {
            let at = plot.y_at(tick);
            plot.add(&format!(
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"tick\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 3.5,
                short(tick)
            ));
        }
        plot.add(&format!(
            "<text class=\"axis\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
             <text class=\"axis\" text-anchor=\"middle\" transform=\"translate(13 {:.1}) rotate(-90)\">{}</text>",
            f64::midpoint(LEFT, WIDTH - RIGHT),
            HEIGHT - 6.0,
            escape(x_name),
            f64::midpoint(TOP, HEIGHT - BOTTOM),
            escape(y_name)
        ));
        plot
    }

    fn add(&mut self, shape: &str) {
        self.body.push_str(shape);
    }

    fn y_at(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.part(value) * (HEIGHT - BOTTOM - TOP)
    }

    /// X of a part (0 to 1) of the width.
    fn x_at(part: f64) -> f64 {
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }

    /// A bar from zero (or the axis' low end) to `value`, over the part of the width from `from` to `to`,
    /// with a text shown when pointed at.
    pub(super) fn bar(&mut self, class: &str, (from, to): (f64, f64), value: f64, hint: &str) {
        let (x, y) = (Self::x_at(from), self.y_at(value));
        self.add(&format!(
            "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{:.2}\"><title>{}</title></rect>",
            (Self::x_at(to) - x).max(0.5),
            HEIGHT - BOTTOM - y,
            escape(hint)
        ));
    }

    /// A line through points of (part of the width, value).
    pub(super) fn polyline(&mut self, class: &str, points: impl Iterator<Item = (f64, f64)>) {
        let mut text = String::new();
        for (part, value) in points {
            let _ = write!(text, "{:.1},{:.1} ", Self::x_at(part), self.y_at(value));
        }
        self.add(&format!("<polyline class=\"{class}\" points=\"{}\"/>", text.trim_end()));
    }

    /// A dot at (part of the width, value).
    pub(super) fn dot(&mut self, class: &str, (part, value): (f64, f64), hint: &str) {
        self.add(&format!(
            "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.2\"><title>{}</title></circle>",
            Self::x_at(part),
            self.y_at(value),
            escape(hint)
        ));
    }

    /// A dashed level over the whole width.
    pub(super) fn level(&mut self, value: f64) {
        let y = self.y_at(value);
        self.add(&format!(
            "<line class=\"mark\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>",
            WIDTH - RIGHT
        ));
    }

    /// A dashed upright at a part of the width, named at its top: on its left when `left` is set (and there
    /// is room), so that the names of two close ones do not overlap; `row` moves the name down.
    pub(super) fn upright(&mut self, part: f64, name: &str, (left, row): (bool, usize)) {
        let x = Self::x_at(part);
        let left = (left && part > 0.2) || part > 0.8;
        let (anchor, text_x) = if left { ("end", x - 4.0) } else { ("start", x + 4.0) };
        self.add(&format!(
            "<line class=\"mark\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>\
             <text class=\"mark-name\" text-anchor=\"{anchor}\" x=\"{text_x:.1}\" y=\"{:.1}\">{}</text>",
            HEIGHT - BOTTOM,
            TOP + 10.0 + 13.0 * row as f64,
            escape(name)
        ));
    }

    /// A label below the axis at a part of the width.
    pub(super) fn label(&mut self, part: f64, text: &str) {
        self.add(&format!(
            "<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            Self::x_at(part),
            HEIGHT - BOTTOM + 15.0,
            escape(text)
        ));
    }

    /// Labels of a number axis.
    pub(super) fn x_ticks(&mut self, x: Scale) {
        for tick in x.ticks().filter(|tick| *tick <= x.high) {
            self.label(x.part(tick), &short(tick));
        }
    }

    /// Part of the width where `value` lies on `x`.
    pub(super) fn part(x: Scale, value: f64) -> f64 {
        x.part(value)
    }

    /// The finished picture; `title` and `about` are read out by screen readers.
    pub(super) fn finish(self, title: &str, about: &str) -> String {
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}: {about}\">{}\
             <line class=\"base\" x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{:.1}\" y2=\"{bottom}\"/></svg>",
            self.body,
            WIDTH - RIGHT,
            title = escape(title),
            about = escape(about),
            bottom = HEIGHT - BOTTOM,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_round_and_hold_their_values() {
        for (low, high) in [(0.0, 1.0), (0.0, 37.0), (3987.0, 4123.0), (5.0, 5.0), (0.0, 0.0), (0.0, 1e12)] {
            let s = Scale::holding(low, high);
            assert!(s.low <= low && s.high >= high && s.high > s.low, "{s:?}");
            assert!((2..=12).contains(&s.ticks().count()), "{s:?}");
        }
        assert_eq!(Scale::from_zero(97.0).ticks().collect::<Vec<_>>(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    }

    #[test]
    fn values_are_short() {
        assert_eq!(["0", "0.25", "100", "5000", "12.5k", "3M"], {
            [0.0, 0.25, 100.0, 5000.0, 12_500.0, 3e6].map(short)
        });
    }

    #[test]
    fn nothing_escapes() {
        assert_eq!(escape("<a href=\"x\">'&\u{1}"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;\u{FFFD}");
    }
}
