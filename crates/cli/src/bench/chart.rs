//! Rows as a chart.

use super::row::{Row, label};
use glimmer_engine::DraftWidth;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width of a group, and height of the whole, in pixels.
const GROUP: u32 = 170;
const HEIGHT: u32 = 420;
/// Room beside the groups, in pixels.
const LEFT: u32 = 80;
const RIGHT: u32 = 90;
/// Colours that are told apart without looking closely.
const COLOURS: [RGBColor; 8] = [
    RGBColor(120, 120, 120),
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(60, 60, 140),
];

/// Tokens per second of each prompt and width, a bar each with the least and the most that was measured.
pub fn svg(rows: &[Row]) -> Result<String, String> {
    let mut svg = String::new();
    draw(rows, &mut svg).map_err(|error| format!("the chart: {error}"))?;
    Ok(svg)
}

fn draw(rows: &[Row], svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let groups: Vec<&[Row]> = rows.chunk_by(|a, b| a.prompt == b.prompt).collect();
    let widths: Vec<DraftWidth> = groups.first().map_or(Vec::new(), |rows| rows.iter().map(|row| row.width).collect());
    let most = rows.iter().filter_map(|row| row.rate()).map(|rate| rate.max).fold(1.0, f64::max);
    let root = SVGBackend::with_string(svg, (LEFT + GROUP * groups.len() as u32 + RIGHT, HEIGHT)).into_drawing_area();
    let font = ("sans-serif", 13).into_text_style(&root);
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("tokens per second, median, with the least and the most", ("sans-serif", 16))
        .margin(10)
        .margin_right(RIGHT)
        .x_label_area_size(30)
        .y_label_area_size(LEFT - 10)
        .build_cartesian_2d(0.0..groups.len() as f64, 0.0..1.1 * most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .y_label_formatter(&|rate| format!("{rate:.0}"))
        .x_labels(0)
        .y_desc("tok/s")
        .label_style(("sans-serif", 12))
        .draw()?;
    let bar = 0.8 / widths.len().max(1) as f64;
    for i in 0..widths.len() {
        let colour = COLOURS[i % COLOURS.len()];
        let rates = groups.iter().enumerate().filter_map(|(group, rows)| {
            let rate = rows.get(i)?.rate()?;
            Some((group as f64 + 0.1 + bar * i as f64, rate))
        });
        let bars = rates.clone().map(|(x, rate)| Rectangle::new([(x, 0.0), (x + bar, rate.median)], colour.filled()));
        chart.draw_series(bars)?;
        let whiskers = rates.map(|(x, rate)| {
            let middle = x + bar / 2.0;
            PathElement::new([(middle, rate.min), (middle, rate.max)], BLACK)
        });
        chart.draw_series(whiskers)?;
    }
    for (i, &width) in widths.iter().enumerate() {
        let (x, y) = (LEFT as i32 + (GROUP * groups.len() as u32) as i32, 50 + 20 * i as i32);
        root.draw(&Rectangle::new([(x, y), (x + 12, y + 12)], COLOURS[i % COLOURS.len()].filled()))?;
        root.draw(&Text::new(label(width), (x + 18, y), font.clone()))?;
    }
    for (group, rows) in groups.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(group as f64 + 0.5, 0.0));
        let name: String = rows[0].prompt.chars().take(24).collect();
        let middle = font.clone().pos(Pos::new(HPos::Center, VPos::Top));
        root.draw(&Text::new(name, (x, y + 10), middle))?;
    }
    drop(chart);
    root.present()?;
    Ok(())
}
