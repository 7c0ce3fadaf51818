//! The percentiles of every case as an SVG: time to the first token, and between tokens.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::report::Report;
use super::summary::{Percentiles, Summary};

const WIDTH: u32 = 900;
const HEIGHT: u32 = 760;
/// Above the largest value, so that its line does not lie on the edge.
const HEADROOM: f64 = 1.1;
type Percentile = fn(&Percentiles) -> Option<f64>;
const PERCENTILES: [(&str, Percentile, RGBColor); 3] = [
    ("p50", |p| p.p50, RGBColor(31, 119, 180)),
    ("p90", |p| p.p90, RGBColor(255, 127, 14)),
    ("p99", |p| p.p99, RGBColor(214, 39, 40)),
];

/// The whole file. Cases without an answer have no point.
pub fn svg(report: &Report) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE).map_err(wrong)?;
        let title = format!("{} at {}", report.model, report.url);
        let area = area.titled(&title, ("sans-serif", 18)).map_err(wrong)?;
        let halves = area.split_evenly((2, 1));
        for (half, (name, of)) in halves.iter().zip(PANELS) {
            panel(half, name, report, of).map_err(wrong)?;
        }
        area.present().map_err(wrong)?;
    }
    Ok(text)
}

type Of = fn(&Summary) -> &Percentiles;
const PANELS: [(&str, Of); 2] = [
    ("time to the first token, ms", |case| &case.first_token_ms),
    ("between tokens, ms", |case| &case.between_tokens_ms),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>>;

fn panel(area: &Area<'_>, name: &str, report: &Report, of: Of) -> Drawn {
    let cases = report.cases.len();
    let highest = report.cases.iter().filter_map(|case| of(case).p99).fold(f64::MIN_POSITIVE, f64::max);
    // Half a place left and right of the cases, which stand at 0, 1, 2, …
    #[expect(clippy::cast_precision_loss, reason = "a handful of cases")]
    let width = cases as f64 - 0.5;
    let mut chart = ChartBuilder::on(area)
        .caption(name, ("sans-serif", 15))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(60)
        .build_cartesian_2d(-0.5..width, 0.0..highest * HEADROOM)?;
    let label = |x: &f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just before")]
        let index = (x.fract().abs() < 1e-6 && *x >= 0.0).then_some(*x as usize);
        let case = index.and_then(|i| report.cases.get(i));
        case.map(|c| format!("{}, {} words", c.case.load, c.case.prompt_words)).unwrap_or_default()
    };
    chart.configure_mesh().disable_x_mesh().x_labels(2 * cases + 1).x_label_formatter(&label).draw()?;
    for (percentile, get, color) in PERCENTILES {
        #[expect(clippy::cast_precision_loss, reason = "a handful of cases")]
        let points: Vec<(f64, f64)> = report
            .cases
            .iter()
            .enumerate()
            .filter_map(|(index, case)| Some((index as f64, get(of(case))?)))
            .collect();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?
            .label(percentile)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()
}

fn wrong(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}
