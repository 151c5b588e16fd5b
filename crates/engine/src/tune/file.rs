//! The user's file of what was measured: `tuned.json`.

use super::WidthCost;
use crate::EngineError;
use glimmer_checkpoint::Error;
use glimmer_checkpoint::write::replace_file;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The version of the format.
const VERSION: u64 = 1;
/// The largest file that is read.
const MAX_BYTES: u64 = 4 << 20;
/// The most that a pass can have taken, in milliseconds: an hour.
const MAX_MS: f64 = 3.6e6;
/// The most rows of a round.
const MAX_ROWS: usize = 1024;

/// What measured values belong to. Those of another machine or model are no guide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuningKey {
    /// The target: its path, or its name.
    pub target: String,
    /// Bytes of its text tensors.
    pub target_bytes: u64,
    /// The drafter.
    pub drafter: String,
    /// Bytes of its tensors.
    pub drafter_bytes: u64,
    /// What the processor calls itself.
    pub cpu: String,
    /// Threads.
    pub threads: usize,
    /// The instruction set.
    pub isa: String,
    /// What activations are multiplied as.
    pub activations: String,
    /// Whether weights stay in their files.
    pub mmap: bool,
}

/// Values that were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// What they belong to.
    pub key: TuningKey,
    /// When it was, as RFC 3339 writes it.
    pub tuned: String,
    /// The width that is the best where one has to do for all; 1 where drafting does not pay.
    pub best_block_size: usize,
    /// What each width took.
    pub widths: Vec<WidthCost>,
}

impl Tuning {
    /// Of now.
    pub fn new(key: TuningKey, best_block_size: usize, widths: Vec<WidthCost>) -> Self {
        Self { key, tuned: Timestamp::now().to_string(), best_block_size, widths }
    }

    /// The day on which it was measured.
    pub fn day(&self) -> String {
        self.time().map(|time| time.strftime("%Y-%m-%d").to_string()).unwrap_or_default()
    }

    fn time(&self) -> Option<Timestamp> {
        self.tuned.parse().ok()
    }

    /// What about it cannot be.
    fn fault(&self) -> Option<String> {
        if self.time().is_none() {
            return Some("`tuned` to be a time".into());
        }
        let rows: Vec<usize> = self.widths.iter().map(|width| width.rows).collect();
        if rows.first() != Some(&1) || !rows.is_sorted_by(|a, b| a < b) || rows.iter().any(|&rows| rows > MAX_ROWS) {
            return Some(format!("`widths` with ascending `rows` from 1 to at most {MAX_ROWS}"));
        }
        if !rows.contains(&self.best_block_size) {
            return Some("`best_block_size` among the `rows` of `widths`".into());
        }
        let time = |ms: f64| (0.0..=MAX_MS).contains(&ms);
        let whole = |width: &WidthCost| {
            width.verify_ms > 0.0 && [width.verify_ms, width.draft_ms, width.observe_ms].into_iter().all(time)
        };
        (!self.widths.iter().all(whole)).then(|| format!("`widths` with times from 0 to {MAX_MS} ms"))
    }
}

/// All that is in the file.
#[derive(Serialize, Deserialize)]
struct Tunings {
    version: u64,
    tunings: Vec<Tuning>,
}

/// The file with the measured values of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuningFile {
    path: PathBuf,
}

impl TuningFile {
    /// `glimmer/tuned.json` under `XDG_CONFIG_HOME`, by default `~/.config`; `None` where nothing says where that is. A relative path counts as
    /// none.
    pub fn from_environment() -> Option<Self> {
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let config = path("XDG_CONFIG_HOME").or_else(|| Some(path("HOME")?.join(".config")))?;
        Some(Self { path: config.join("glimmer/tuned.json") })
    }

    /// Where it is, or will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The values that belong to this key.
    ///
    /// # Errors
    /// Where there is a file that cannot be read, or has something else in it.
    pub fn find(&self, key: &TuningKey) -> Result<Option<Tuning>, EngineError> {
        Ok(self.read()?.into_iter().find(|tuning| tuning.key == *key))
    }

    /// Refuses a file that [`store`](Self::store) could not add to.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn check(&self) -> Result<(), EngineError> {
        self.read().map(drop)
    }

    /// Adds values, in place of earlier ones of the same key.
    ///
    /// # Errors
    /// As [`find`](Self::find), and where it cannot be written.
    pub fn store(&self, tuning: Tuning) -> Result<(), EngineError> {
        let mut tunings = self.read()?;
        tunings.retain(|known| known.key != tuning.key);
        tunings.push(tuning);
        if let Some(directory) = self.path.parent() {
            fs::create_dir_all(directory).map_err(|cause| self.io(cause))?;
        }
        let all = Tunings { version: VERSION, tunings };
        let text = serde_json::to_string_pretty(&all).map_err(|cause| self.io(cause.into()))?;
        Ok(replace_file(&self.path, format!("{text}\n").as_bytes())?)
    }

    fn read(&self) -> Result<Vec<Tuning>, EngineError> {
        let mut bytes = Vec::new();
        // Only a regular file ends.
        match fs::metadata(&self.path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(cause) => return Err(self.io(cause).into()),
            Ok(meta) if !meta.is_file() => return Err(self.malformed("a file", "something else")),
            Ok(_) => {}
        }
        let file = File::open(&self.path).map_err(|cause| self.io(cause))?;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|cause| self.io(cause))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(self.malformed(&format!("at most {MAX_BYTES} bytes"), "more"));
        }
        let invalid =
            |cause: serde_json::Error| self.malformed("what `glimmer tune` writes", &format!("an error: {cause}"));
        let json: serde_json::Value = serde_json::from_slice(&bytes).map_err(invalid)?;
        if json["version"] != VERSION {
            return Err(self.malformed(&format!("field `version`: {VERSION}"), "another"));
        }
        let Tunings { tunings, .. } = serde_json::from_value(json).map_err(invalid)?;
        match tunings.iter().find_map(Tuning::fault) {
            Some(expected) => Err(self.malformed(&expected, "others")),
            None => Ok(tunings),
        }
    }

    fn io(&self, cause: io::Error) -> Error {
        Error::Io { file: self.path.display().to_string(), cause }
    }

    fn malformed(&self, expected: &str, found: &str) -> EngineError {
        let found = found.chars().take(200).collect();
        let (file, what) = (self.path.display().to_string(), "measured values".into());
        Error::Malformed { file, what, expected: expected.into(), found }.into()
    }
}
