//! Bars for what takes long enough to be noticed.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// Work that is done before a bar is worth the flicker.
const PATIENCE: Duration = Duration::from_millis(200);

/// A bar on stderr, if that is a terminal.
pub struct Progress {
    template: &'static str,
    /// How work per second is written.
    rate: fn(f64) -> String,
    started: Instant,
    /// What was done when it began, which took no time.
    before: Option<u64>,
    shown: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// For bytes of weights.
    pub fn loading() -> Self {
        Self::new("loading {bar:30} {bytes} of {total_bytes}{msg}", |rate| format!("{:.2} GB/s", rate / 1e9))
    }

    /// For bytes of weights that are made.
    pub fn writing() -> Self {
        Self::new("writing {bar:30} {bytes} of {total_bytes}{msg}", |rate| format!("{:.2} GB/s", rate / 1e9))
    }

    /// For bytes that are downloaded.
    pub fn pulling() -> Self {
        Self::new("pulling {bar:30} {bytes} of {total_bytes}{msg}", |rate| format!("{:.1} MB/s", rate / 1e6))
    }

    /// For tokens of a text.
    pub fn scoring() -> Self {
        Self::new("scoring {bar:30} {pos} of {len} tokens{msg}", |rate| format!("{rate:.1} tok/s"))
    }

    /// For tokens of a text that columns are weighed by.
    pub fn measuring() -> Self {
        Self::new("measuring {bar:30} {pos} of {len} tokens{msg}", |rate| format!("{rate:.1} tok/s"))
    }

    /// For texts that are continued to see how fast.
    pub fn benchmarking() -> Self {
        Self::new("measuring {bar:30} {pos} of {len} outputs{msg}", |rate| format!("{:.1} a minute", 60.0 * rate))
    }

    /// For generations.
    pub fn tuning() -> Self {
        Self::new("tuning {bar:30} {pos} of {len} generations{msg}", |rate| format!("{rate:.1} a second"))
    }

    /// For tokens of a prompt.
    pub fn reading() -> Self {
        Self::new("reading the prompt {bar:30} {pos} of {len} tokens{msg}", |rate| format!("{rate:.1} tok/s"))
    }

    fn new(template: &'static str, rate: fn(f64) -> String) -> Self {
        Self { template, rate, started: Instant::now(), before: None, shown: io::stderr().is_terminal(), bar: None }
    }

    /// So much of so much.
    pub fn update(&mut self, done: u64, total: u64) {
        let before = *self.before.get_or_insert(done);
        if !self.shown || (self.bar.is_none() && self.started.elapsed() < PATIENCE) {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(self.template).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr())
                .with_style(style.progress_chars("=> "))
                .with_elapsed(self.started.elapsed())
        });
        let (new, left, elapsed) = (
            done.saturating_sub(before) as f64,
            total.saturating_sub(done) as f64,
            self.started.elapsed().as_secs_f64(),
        );
        if new > 0.0 {
            bar.set_message(format!(", {}, {:.0} s left", (self.rate)(new / elapsed), left * elapsed / new));
        }
        bar.set_position(done);
    }

    /// Takes the bar away.
    pub fn clear(&mut self) {
        self.shown = false;
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
