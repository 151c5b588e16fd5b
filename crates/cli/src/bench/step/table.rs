//! A measurement, for people and as JSON.

use super::Measured;
use crate::output::{object, settings_json};
use glimmer_engine::step::{PRODUCT_SHARE, READ_SHARE, Timing};
use glimmer_engine::{Limits, memory};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// What a pass of some width did, in units that people compare.
pub struct Row {
    pub rows: usize,
    pub min_ms: f64,
    pub median_ms: f64,
    pub cpu_ms: Option<f64>,
    /// Bytes of matrices per second of the shortest pass, in GB/s.
    pub gb_s: f64,
    /// Products per second of the shortest pass, in GMAC/s.
    pub gmac_s: f64,
    /// Of the best read bandwidth.
    bandwidth_share: f64,
    /// Of the best peak of vectors, in the arithmetic in use; matrices may make more.
    peak_share: f64,
    bound_ms: f64,
    /// The shortest time to the bound by the best limits.
    bound_ratio: f64,
    /// The median time to the bound by the median limits.
    median_bound_ratio: f64,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Row {
    /// Of passes whose rows meet the layers `timing.rows` times and the head `logits` times. All in one pass, or the bytes
    /// are read more than once.
    pub fn new(measured: &Measured<'_>, timing: &Timing, logits: usize) -> Self {
        let report = &measured.report;
        let (rows, seconds) = (timing.rows, timing.min.as_secs_f64());
        let bound = |limits: &Limits| report.bound(limits, rows, logits).as_secs_f64();
        let products = report.products(rows, logits);
        let (gb_s, best) = (report.bytes() as f64 / seconds / 1e9, &report.best);
        let peak = products / report.arithmetic(best, rows, logits).as_secs_f64();
        Self {
            rows,
            min_ms: ms(timing.min),
            median_ms: ms(timing.median),
            cpu_ms: timing.cpu.map(ms),
            gb_s,
            gmac_s: products / seconds / 1e9,
            bandwidth_share: gb_s * 1e9 / best.bytes,
            peak_share: products / seconds / peak,
            bound_ms: 1e3 * bound(best),
            bound_ratio: seconds / bound(best),
            median_bound_ratio: timing.median.as_secs_f64() / bound(&report.median),
        }
    }

    fn json(&self, relative: Option<f64>) -> Value {
        json!({
            "width": self.rows,
            "min_ms": self.min_ms,
            "median_ms": self.median_ms,
            "cpu_ms": self.cpu_ms,
            "relative": relative,
            "gb_s": self.gb_s,
            "gmac_s": self.gmac_s,
            "bandwidth_share": self.bandwidth_share,
            "peak_share": self.peak_share,
            "bound_ms": self.bound_ms,
            "bound_ratio": self.bound_ratio,
            "median_bound_ratio": self.median_bound_ratio,
        })
    }
}

/// The shortest time of one row.
fn one_row(measured: &Measured<'_>) -> Option<Duration> {
    measured.report.widths.iter().find(|timing| timing.rows == 1).map(|timing| timing.min)
}

/// Tokens per second, of the shortest and of the median time.
fn rates(timing: &Timing) -> (f64, f64) {
    let rate = |time: Duration| timing.rows as f64 / time.as_secs_f64();
    (rate(timing.min), rate(timing.median))
}

/// For people.
pub fn table(measured: &Measured<'_>) -> String {
    let report = &measured.report;
    let (best, median) = (&report.best, &report.median);
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    for (name, best, median, unit) in [
        ("reads", Some(best.bytes), Some(median.bytes), "GB/s"),
        ("int8", Some(best.integers), Some(median.integers), "GMAC/s"),
        ("int8, matrices", best.matrices, median.matrices, "GMAC/s"),
        ("f32", Some(best.floats), Some(median.floats), "GMAC/s"),
    ] {
        let (Some(best), Some(median)) = (best, median) else { continue };
        line(format!("this machine, {name:<14} {:>8.1} {unit} best, {:>8.1} median", best / 1e9, median / 1e9));
    }
    let work = report.matrices.layers + report.matrices.head;
    line(format!(
        "a pass of one row: {:.3} GB, {:.3} GMAC; {} rounds at depth {}",
        work.bytes as f64 / 1e9,
        work.products() as f64 / 1e9,
        report.rounds,
        measured.plan.depth
    ));
    line(format!(
        "limit: {:.0} % of the bandwidth or {:.0} % of the peak of vectors, whichever takes longer",
        100.0 * READ_SHARE,
        100.0 * PRODUCT_SHARE
    ));
    line(String::new());
    line(
        "rows   min ms  median ms   cpu ms  x 1 row     GB/s  of best   GMAC/s  of peak  limit ms  x limit  x (medians)"
            .into(),
    );
    for timing in &report.widths {
        let row = Row::new(measured, timing, timing.rows);
        let relative = one_row(measured).map_or("-".into(), |one| format!("{:.2}", timing.min.div_duration_f64(one)));
        let cpu = row.cpu_ms.map_or("-".into(), |ms| format!("{ms:.2}"));
        line(format!(
            "{:>4} {:>8.2} {:>10.2} {cpu:>8} {relative:>8} {:>8.1} {:>7.0} % {:>7.0} {:>7.0} % {:>9.2} {:>8.2} {:>12.2}",
            row.rows,
            row.min_ms,
            row.median_ms,
            row.gb_s,
            100.0 * row.bandwidth_share,
            row.gmac_s,
            100.0 * row.peak_share,
            row.bound_ms,
            row.bound_ratio,
            row.median_bound_ratio,
        ));
    }
    line(String::new());
    if let Some(timing) = &report.decode {
        let (best, median) = rates(timing);
        line(format!("decode of {} tokens: {best:.2} tok/s best, {median:.2} median", timing.rows));
    }
    if let Some(timing) = &report.prefill {
        let (best, median) = rates(timing);
        let row = Row::new(measured, timing, 1);
        line(format!(
            "prefill of {} tokens: {best:.1} tok/s best, {median:.1} median; {:.0} GMAC/s, {:.0} % of the peak of vectors",
            timing.rows,
            row.gmac_s,
            100.0 * row.peak_share
        ));
    }
    out
}

/// Everything there is to know.
pub fn json(measured: &Measured<'_>) -> Value {
    let Measured { settings, shape, plan, report, load } = measured;
    let giga = |best: f64, median: f64| json!({ "best": best / 1e9, "median": median / 1e9 });
    let (best, median, matrices) = (&report.best, &report.median, &report.matrices);
    let work = matrices.layers + matrices.head;
    let relative = |timing: &Timing| one_row(measured).map(|one| timing.min.div_duration_f64(one));
    let tokens = |timing: &Timing| {
        let (best, median) = rates(timing);
        json!({
            "tokens": timing.rows,
            "min_ms": ms(timing.min),
            "median_ms": ms(timing.median),
            "cpu_ms": timing.cpu.map(ms),
            "tok_s": best,
            "median_tok_s": median,
        })
    };
    let mut all = settings_json(settings);
    all.extend(object(json!({ "shape": shape, "depth": plan.depth, "seed": plan.seed })));
    json!({
        "settings": all,
        "matrices": {
            "bytes": work.bytes,
            "int8_macs": work.integers,
            "f32_macs": work.floats,
        },
        "limits": {
            "read_gb_s": giga(best.bytes, median.bytes),
            "int8_gmac_s": giga(best.integers, median.integers),
            "int8_matrix_gmac_s": best.matrices.zip(median.matrices).map(|(best, median)| giga(best, median)),
            "f32_gmac_s": giga(best.floats, median.floats),
        },
        "rounds": report.rounds,
        "widths": report
            .widths
            .iter()
            .map(|timing| Row::new(measured, timing, timing.rows).json(relative(timing)))
            .collect::<Value>(),
        "decode": report.decode.as_ref().map(tokens),
        "prefill": report.prefill.as_ref().map(|timing| {
            let (row, mut all) = (Row::new(measured, timing, 1), tokens(timing));
            all["gmac_s"] = json!(row.gmac_s);
            all["peak_share"] = json!(row.peak_share);
            all
        }),
        "load_s": load.as_secs_f64(),
        "peak_memory_bytes": memory::peak(),
    })
}
