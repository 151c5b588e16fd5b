//! Measurements that are kept: a CSV file for each day and architecture, to which lines are added.

use super::Measured;
use super::table::Row;
use crate::failure::{Failure, Outcome};
use glimmer_engine::step::cpu_model;
use jiff::Timestamp;
use std::env::consts::ARCH;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const HEADER: &str = "date,cpu,threads,isa,model,shape,encoding,activations,cache_k,cache_v,depth,kind,width,min_ms,\
                      median_ms,cpu_ms,gb_s,read_gb_s,gmac_s,int8_gmac_s\n";

/// Where lines are added.
pub struct Record {
    file: PathBuf,
    time: String,
}

impl Record {
    /// Today's file under `dir`, whose directory is made if need be.
    pub fn new(dir: &Path) -> Outcome<Self> {
        let time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let dir = dir.join(ARCH);
        fs::create_dir_all(&dir).map_err(|error| failed(&dir, &error))?;
        Ok(Self { file: dir.join(format!("{}.csv", &time[..10])), time })
    }

    /// Adds a line for each width, and for prefill and decoding.
    pub fn append(&self, measured: &Measured<'_>) -> Outcome {
        let (settings, report) = (measured.settings, &measured.report);
        let start = [
            self.time.clone(),
            cpu_model().unwrap_or_default(),
            settings.threads.to_string(),
            settings.isa.to_string(),
            // Its name alone: a record is for others too, and where a file lies is not their business.
            Path::new(&settings.model).file_name().unwrap_or_default().to_string_lossy().into_owned(),
            measured.shape.clone(),
            settings.encoding.clone(),
            settings.activations.clone(),
            settings.cache.keys.to_string(),
            settings.cache.values.to_string(),
            measured.plan.depth.to_string(),
        ];
        let mut lines = String::new();
        let widths = report.widths.iter().map(|timing| ("step", timing, timing.rows));
        let prefill = report.prefill.iter().map(|timing| ("prefill", timing, 1));
        let decode = report.decode.iter().map(|timing| ("decode", timing, timing.rows));
        for (kind, timing, logits) in widths.chain(prefill).chain(decode) {
            let row = Row::new(measured, timing, logits);
            // Decoding reads the matrices once for each token.
            let reads = if kind == "decode" { timing.rows as f64 } else { 1.0 };
            let fields = [
                kind.to_string(),
                row.rows.to_string(),
                format!("{:.3}", row.min_ms),
                format!("{:.3}", row.median_ms),
                row.cpu_ms.map(|ms| format!("{ms:.3}")).unwrap_or_default(),
                format!("{:.2}", reads * row.gb_s),
                format!("{:.2}", report.best.bytes / 1e9),
                format!("{:.2}", row.gmac_s),
                format!("{:.2}", report.best.integers / 1e9),
            ];
            let quoted: Vec<String> = start.iter().chain(&fields).map(|field| quote(field)).collect();
            lines.push_str(&quoted.join(","));
            lines.push('\n');
        }
        let mut write = || {
            let mut file = OpenOptions::new().create(true).append(true).open(&self.file)?;
            if file.metadata()?.len() == 0 {
                lines.insert_str(0, HEADER);
            }
            file.write_all(lines.as_bytes())
        };
        write().map_err(|error| failed(&self.file, &error))
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Runtime(format!("{}: {error}", path.display()))
}

/// A field of CSV (RFC 4180).
fn quote(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_have_to_be() {
        assert_eq!(quote("Q4_K + Q6_K"), "Q4_K + Q6_K");
        assert_eq!(quote("a, \"b\""), "\"a, \"\"b\"\"\"");
    }
}
