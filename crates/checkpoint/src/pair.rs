//! Pair bundles: a directory with a target, a drafter that was made for it, and a manifest that says which is where.

use crate::Fields;
use crate::error::{Error, brief};
use crate::json::{self, parse_object};
use crate::source::{Source, is_plain};
use crate::write::replace_file;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The manifest. A directory that has it is a bundle.
pub const MANIFEST: &str = "dflash_pair.json";

/// The folder of a target's directory where its drafter is, if it has one and no manifest says otherwise.
pub const DRAFTER: &str = "drafter";

/// A target and a drafter that go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The manifest, as messages name it.
    pub manifest: String,
    /// The target's checkpoint.
    pub target: PathBuf,
    /// The drafter's checkpoint.
    pub drafter: PathBuf,
    /// Rows of a round that were found to be the fastest.
    pub width: Option<usize>,
}

impl Pair {
    /// The pair in the directory `at`, or `None` where that is no bundle.
    ///
    /// # Errors
    /// [`Error::Malformed`] and [`Error::Missing`] for a manifest that cannot be honoured, with the field, and for a part
    /// that is not where the manifest has it.
    pub fn read(at: &Path) -> Result<Option<Pair>, Error> {
        let Some(Manifest { file, target, drafter, width }) = Manifest::read(at)? else { return Ok(None) };
        for (field, part) in [("target", &target), ("drafter", &drafter)] {
            if !at.join(part).exists() {
                let what = format!("field `layout.{field}`");
                let expected = format!("a checkpoint at {}", brief(&at.join(part).to_string_lossy()));
                return Err(Error::Missing { file, what, expected, more: 0 });
            }
        }
        Ok(Some(Pair { manifest: file, target: at.join(target), drafter: at.join(drafter), width }))
    }
}

/// The manifest of a bundle with these parts, whose best width is known or is not.
pub fn manifest(target: &str, drafter: &str, width: Option<usize>) -> Vec<u8> {
    let mut manifest = json!({ "layout": { "target": target, "drafter": drafter }, "backend": "dflash" });
    if let Some(width) = width {
        manifest["benchmark"] = json!({ "best_block_size": width });
    }
    format!("{manifest:#}\n").into_bytes()
}

/// Writes into the manifest of the bundle `at` which width is the best. All else that it says stays.
///
/// # Errors
/// As [`Pair::read`]; [`Error::Missing`] where there is no manifest, [`Error::Io`] where it cannot be written.
pub fn set_best_width(at: &Path, width: usize) -> Result<(), Error> {
    let source = Source::at(at)?;
    let file = source.describe(MANIFEST);
    let Some(bytes) = source.read(MANIFEST, json::MAX_BYTES)? else {
        let expected = "the manifest of a pair bundle".into();
        return Err(Error::Missing { file: source.to_string(), what: MANIFEST.into(), expected, more: 0 });
    };
    let mut manifest = parse_object(&file, "manifest", &bytes)?;
    Manifest::parse(&file, &manifest)?;
    let benchmark = manifest.entry("benchmark").or_insert_with(|| json!({}));
    benchmark["best_block_size"] = json!(width);
    replace_file(&at.join(MANIFEST), format!("{:#}\n", Value::Object(manifest)).as_bytes())
}

/// What a manifest says.
pub(crate) struct Manifest {
    file: String,
    /// Below the directory, with `/` between names.
    pub target: String,
    pub drafter: String,
    width: Option<usize>,
}

impl Manifest {
    /// That of the directory `at`, if it has one.
    pub fn read(at: &Path) -> Result<Option<Manifest>, Error> {
        if !at.is_dir() {
            return Ok(None);
        }
        let source = Source::at(at)?;
        let Some(bytes) = source.read(MANIFEST, json::MAX_BYTES)? else { return Ok(None) };
        let file = source.describe(MANIFEST);
        let manifest = parse_object(&file, "manifest", &bytes)?;
        Self::parse(&file, &manifest).map(Some)
    }

    fn parse(file: &str, manifest: &Map<String, Value>) -> Result<Self, Error> {
        let fields = Fields::new(file, manifest);
        if fields.opt_str("backend")? != Some("dflash") {
            return Err(fields.invalid("backend", "\"dflash\""));
        }
        let layout = fields.object("layout")?.ok_or_else(|| fields.invalid("layout", "an object"))?;
        let part = |field: &str| match layout.opt_str(field)? {
            Some(path) if path.split('/').all(is_plain) => Ok(path.to_string()),
            _ => Err(layout.invalid(field, "a path that stays below the bundle's directory")),
        };
        let (target, drafter) = (part("target")?, part("drafter")?);
        if target == drafter {
            return Err(layout.invalid("drafter", "another path than the target's"));
        }
        // More than one step of denoising is another drafter than the one there is.
        if let Some(diffusion) = fields.object("diffusion")? {
            diffusion.opt_usize("num_steps", 1..=1)?;
        }
        let width = match fields.object("benchmark")? {
            Some(benchmark) => benchmark.opt_usize("best_block_size", 2..=1024)?,
            None => None,
        };
        Ok(Self { file: file.into(), target, drafter, width })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(manifest: &str) -> Result<Manifest, String> {
        let manifest = parse_object("pair", "manifest", manifest.as_bytes()).unwrap();
        Manifest::parse("pair", &manifest).map_err(|error| error.to_string())
    }

    #[test]
    fn a_manifest_is_honoured_or_refused_by_field() {
        let whole = r#"{"layout": {"target": "a/t", "drafter": "d"}, "backend": "dflash", "benchmark": {"best_block_size": 4}}"#;
        let manifest = parse(whole).unwrap();
        assert_eq!((&*manifest.target, &*manifest.drafter, manifest.width), ("a/t", "d", Some(4)));
        for (from, to, field) in [
            ("\"dflash\"", "\"eagle\"", "field `backend`"),
            ("\"dflash\"", "null", "field `backend`"),
            ("\"a/t\"", "\"../t\"", "field `layout.target`"),
            ("\"a/t\"", "\"/t\"", "field `layout.target`"),
            ("\"a/t\"", "\"a//t\"", "field `layout.target`"),
            ("\"a/t\"", "\"C:\\\\t\"", "field `layout.target`"),
            ("\"a/t\"", "\"\"", "field `layout.target`"),
            ("\"a/t\"", "7", "field `layout.target`"),
            ("\"a/t\"", "\"d\"", "field `layout.drafter`"),
            ("\"drafter\"", "\"draughts\"", "field `layout.drafter`"),
            ("\"layout\"", "\"layouts\"", "field `layout`"),
            ("4", "1", "field `benchmark.best_block_size`"),
            ("4", "\"4\"", "field `benchmark.best_block_size`"),
            ("\"benchmark\"", "\"diffusion\": {\"num_steps\": 2}, \"benchmark\"", "field `diffusion.num_steps`"),
        ] {
            let error = parse(&whole.replacen(from, to, 1)).err().unwrap_or_default();
            assert!(error.contains(field), "{from} {to}: {error}");
        }
    }
}
