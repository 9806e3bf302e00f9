//! A line chart with bands, as SVG by hand: axes with round ticks, a legend, no script.

use std::fmt::Write;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 42.0;

/// Text for HTML and SVG: markup escaped, control characters (which neither may hold) replaced.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_whitespace() => out.push(' '),
            c if c.is_control() => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
    out
}

/// One line of a chart, with a band below it.
pub(super) struct Series<'a> {
    /// Its name in the legend.
    pub(super) name: &'a str,
    /// Class of its colour: `a`, `b`, `c`.
    pub(super) class: &'a str,
    /// At each place of the x axis; none: a gap.
    pub(super) line: Vec<Option<f64>>,
    /// Low and high at each place.
    pub(super) band: Vec<Option<(f64, f64)>>,
}

/// A chart over equally spaced places.
pub(super) struct Chart<'a> {
    /// What is read out for it.
    pub(super) title: &'a str,
    /// Name of the x axis.
    pub(super) x_name: &'a str,
    /// Name of the y axis with its unit.
    pub(super) y_name: &'a str,
    /// Labels of the places.
    pub(super) places: Vec<String>,
    /// The lines.
    pub(super) series: Vec<Series<'a>>,
}

/// The top of an axis from zero that holds `high`, and its step: about five round steps.
fn round_axis(high: f64) -> (f64, f64) {
    let high = if high.is_finite() && high > 0.0 { high } else { 1.0 };
    let rough = high / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0]
        .into_iter()
        .map(|m| m * power)
        .find(|step| *step >= rough)
        .unwrap_or(10.0 * power);
    ((high / step - 1e-9).ceil() * step, step)
}

/// `250`, `12.5`.
fn tick(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Chart<'_> {
    /// The picture.
    pub(super) fn svg(&self) -> String {
        let values = self.series.iter().flat_map(|series| {
            let band = series.band.iter().flatten().map(|band| band.1);
            series.line.iter().flatten().copied().chain(band)
        });
        let (top, step) = round_axis(values.filter(|value| value.is_finite()).fold(0.0, f64::max));
        let y = |value: f64| HEIGHT - BOTTOM - (value / top).clamp(0.0, 1.0) * (HEIGHT - BOTTOM - TOP);
        let spacing = (WIDTH - LEFT - RIGHT) / self.places.len().max(1) as f64;
        let x = |place: usize| LEFT + spacing * (place as f64 + 0.5);
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(self.title)
        );
        self.axes(&mut out, (top, step));
        for (place, label) in self.places.iter().enumerate() {
            let _ = write!(
                out,
                "<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x(place),
                HEIGHT - BOTTOM + 15.0,
                escape(label)
            );
        }
        for (at, series) in self.series.iter().enumerate() {
            band(&mut out, series, &x, &y);
            line(&mut out, series, &x, &y);
            legend(&mut out, series, at);
        }
        out.push_str("</svg>");
        out
    }

    fn axes(&self, out: &mut String, (top, step): (f64, f64)) {
        let right = WIDTH - RIGHT;
        let steps = (top / step).round().clamp(1.0, 20.0) as usize;
        for at in 0..=steps {
            let y = HEIGHT - BOTTOM - at as f64 / steps as f64 * (HEIGHT - BOTTOM - TOP);
            let class = if at == 0 { "base" } else { "grid" };
            let _ = write!(
                out,
                "<line class=\"{class}\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LEFT - 6.0,
                y + 3.5,
                tick(at as f64 * step)
            );
        }
        let _ = write!(
            out,
            "<text class=\"axis\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
             <text class=\"axis\" text-anchor=\"middle\" transform=\"translate(13 {:.1}) rotate(-90)\">{}</text>",
            f64::midpoint(LEFT, right),
            HEIGHT - 8.0,
            escape(self.x_name),
            f64::midpoint(TOP, HEIGHT - BOTTOM),
            escape(self.y_name)
        );
    }
}

/// Stretches of neighbouring places that have a value.
fn stretches<T: Copy>(values: &[Option<T>]) -> Vec<Vec<(usize, T)>> {
    let mut all: Vec<Vec<(usize, T)>> = vec![Vec::new()];
    for (place, value) in values.iter().enumerate() {
        match (value, all.last_mut()) {
            (Some(value), Some(last)) => last.push((place, *value)),
            (None, Some(last)) if !last.is_empty() => all.push(Vec::new()),
            _ => {}
        }
    }
    all.retain(|stretch| !stretch.is_empty());
    all
}

fn band(out: &mut String, series: &Series<'_>, x: &dyn Fn(usize) -> f64, y: &dyn Fn(f64) -> f64) {
    for stretch in stretches(&series.band) {
        let mut points = String::new();
        if let [(place, (low, high))] = stretch.as_slice() {
            // One place alone: a bar.
            for (dx, value) in [(-7.0, low), (7.0, low), (7.0, high), (-7.0, high)] {
                let _ = write!(points, "{:.1},{:.1} ", x(*place) + dx, y(*value));
            }
        } else {
            for (place, (low, _)) in &stretch {
                let _ = write!(points, "{:.1},{:.1} ", x(*place), y(*low));
            }
            for (place, (_, high)) in stretch.iter().rev() {
                let _ = write!(points, "{:.1},{:.1} ", x(*place), y(*high));
            }
        }
        let _ = write!(out, "<polygon class=\"band {}\" points=\"{}\"/>", series.class, points.trim_end());
    }
}

fn line(out: &mut String, series: &Series<'_>, x: &dyn Fn(usize) -> f64, y: &dyn Fn(f64) -> f64) {
    for stretch in stretches(&series.line) {
        let mut points = String::new();
        for (place, value) in &stretch {
            let _ = write!(points, "{:.1},{:.1} ", x(*place), y(*value));
        }
        let _ = write!(out, "<polyline class=\"line {}\" points=\"{}\"/>", series.class, points.trim_end());
        for (place, value) in stretch {
            let _ = write!(
                out,
                "<circle class=\"dot {}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{}: ceiling {} GB/s</title></circle>",
                series.class,
                x(place),
                y(value),
                escape(series.name),
                tick(value)
            );
        }
    }
}

fn legend(out: &mut String, series: &Series<'_>, at: usize) {
    let x = LEFT + 170.0 * at as f64;
    let with_band = series.band.iter().any(Option::is_some);
    let _ = write!(
        out,
        "<line class=\"line {class}\" x1=\"{x:.1}\" y1=\"14\" x2=\"{:.1}\" y2=\"14\"/>",
        x + 18.0,
        class = series.class
    );
    if with_band {
        let _ = write!(
            out,
            "<rect class=\"band {}\" x=\"{x:.1}\" y=\"17\" width=\"18\" height=\"6\"/>",
            series.class
        );
    }
    let _ = write!(out, "<text class=\"tick\" x=\"{:.1}\" y=\"20\">{}</text>", x + 23.0, escape(series.name));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_round_and_hold_their_values() {
        for (high, top, step) in
            [(100.0, 100.0, 20.0), (97.0, 100.0, 20.0), (56.3, 60.0, 20.0), (1.0, 1.0, 0.2)]
        {
            let (got_top, got_step) = round_axis(high);
            assert!(
                (got_top - top).abs() < 1e-9 && (got_step - step).abs() < 1e-9,
                "{high}: {got_top} {got_step}"
            );
        }
        for high in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300, 1e300] {
            let (top, step) = round_axis(high);
            assert!(top > 0.0 && step > 0.0 && (1.0..=20.0).contains(&(top / step)), "{high}: {top} {step}");
        }
    }

    #[test]
    fn gaps_part_a_line() {
        let all = stretches(&[None, Some(1), Some(2), None, None, Some(3)]);
        assert_eq!(all, [vec![(1, 1), (2, 2)], vec![(5, 3)]]);
        assert!(stretches::<u8>(&[None]).is_empty() && stretches::<u8>(&[]).is_empty());
    }

    #[test]
    fn nothing_escapes() {
        assert_eq!(escape("<a b=\"x\">'&\u{1}\n"), "&lt;a b=&quot;x&quot;&gt;&#39;&amp;\u{FFFD} ");
        let chart = Chart {
            title: "<script>",
            x_name: "<b>",
            y_name: "&",
            places: vec!["<i>".to_owned()],
            series: vec![Series {
                name: "\"><u>",
                class: "a",
                line: vec![Some(1.0)],
                band: vec![Some((0.5, 0.7))],
            }],
        };
        let svg = chart.svg();
        for tag in ["<script", "<b>", "<i>", "<u>"] {
            assert!(!svg.contains(tag), "{tag}: {svg}");
        }
    }
}
