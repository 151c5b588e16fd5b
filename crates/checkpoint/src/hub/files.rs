//! Which files of a repository make a model. The same rules read the hub's listing and what is in the cache.

use crate::error::brief;
use crate::pair::{DRAFTER, MANIFEST, Manifest};
use crate::source::{Source, is_plain};
use crate::{huggingface, index, json};
use std::path::{Path, PathBuf};

/// Small files that are read beside weights, or will be.
pub(crate) const SIDE_FILES: [&str; 13] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "model.safetensors.index.json",
    MANIFEST,
];

/// Most names that a message lists.
const MAX_LISTED: usize = 40;

/// What is to be fetched, and what of it is to be opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub files: Vec<String>,
    /// A file of them, or the snapshot itself.
    pub open: Option<String>,
}

/// Chooses from all names of a repository; `pair` is its manifest, if it has one. An error says why there is no choice.
pub(super) fn choose(names: &[String], quant: Option<&str>, pair: Option<&Manifest>) -> Result<Choice, String> {
    let of_the_model = |name: &str| is_weight(name) && !name.contains('/');
    if quant.is_none() && (pair.is_some() || names.iter().any(|name| of_the_model(name))) {
        let folders = pair.map_or(vec![DRAFTER], |pair| vec![&*pair.target, &*pair.drafter]);
        let chosen = |name: &&String| match name.rsplit_once('/') {
            _ if folders.contains(&name.as_str()) => true,
            None => is_weight(name) || SIDE_FILES.contains(&name.as_str()),
            Some((folder, file)) => folders.contains(&folder) && (is_weight(file) || SIDE_FILES.contains(&file)),
        };
        let mut files: Vec<String> = names.iter().filter(chosen).cloned().collect();
        // Weights come last, those of the model itself at the very end: where they are, everything is.
        files.sort_by_key(|name| (is_weight(name), of_the_model(name)));
        return Ok(Choice { files, open: None });
    }
    let (chosen, all) = (one(names, quant)?, projectors(names));
    let mut files: Vec<String> = all.into_iter().take(1).chain(chosen.parts.iter().cloned()).collect();
    files.dedup();
    match chosen.parts.first() {
        Some(first) if chosen.is_whole() => Ok(Choice { open: Some(first.clone()), files }),
        _ => Err(format!("{} has only {} of its parts", brief(&chosen.stem), chosen.parts.len())),
    }
}

/// What is to be opened in a snapshot, if all of it is there. That needs no listing: an index names its shards, and a part of a
/// GGUF file says how many there are. An error says why there is no choice.
pub(super) fn complete(snapshot: &Path, quant: Option<&str>) -> Result<Option<PathBuf>, String> {
    let is_there = |name: &str| snapshot.join(name).exists();
    if quant.is_none() {
        let whole = match Manifest::read(snapshot).map_err(|error| error.to_string())? {
            Some(pair) => [pair.target, pair.drafter].iter().all(|part| has_weights(&snapshot.join(part))),
            None => has_weights(snapshot),
        };
        if whole {
            return Ok(Some(snapshot.into()));
        }
        if huggingface::WEIGHTS.into_iter().chain([MANIFEST]).any(is_there) {
            return Ok(None);
        }
    }
    let names: Vec<String> = walk(snapshot).into_iter().filter(|name| is_there(name)).collect();
    let candidates = matching(ggufs(&names), quant);
    match &candidates[..] {
        [] => Ok(None),
        [one] => Ok(one.parts.first().filter(|_| one.is_whole()).map(|first| snapshot.join(first))),
        several => Err(ambiguous(several)),
    }
}

/// Whether a directory has a configuration and every file of weights.
fn has_weights(directory: &Path) -> bool {
    let [single, index] = huggingface::WEIGHTS;
    if !directory.join("config.json").exists() {
        return directory.is_file();
    }
    if directory.join(single).exists() {
        return true;
    }
    let Ok(Some(bytes)) = Source::at(directory).and_then(|source| source.read(index, json::MAX_BYTES)) else {
        return false;
    };
    // Opening it says best what is wrong with an index.
    index::parse(index, &bytes).map_or(true, |shards| shards.values().all(|shard| directory.join(shard).exists()))
}

/// The kinds of weights in a list of names: `safetensors`, and the quantizations of GGUF files.
pub(super) fn kinds(names: &[String]) -> Vec<String> {
    let safetensors = names.iter().any(|name| is_weight(name)).then(|| "safetensors".to_string());
    safetensors.into_iter().chain(labels(&ggufs(names))).collect()
}

/// The names that the quantization selects, projectors left aside.
pub(super) fn of_quant(names: &[String], quant: &str) -> Vec<String> {
    matching(ggufs(names), Some(quant)).into_iter().flat_map(|gguf| gguf.parts).collect()
}

/// Every file below a directory, with `/` between names, sorted. Links to directories are not followed.
pub(super) fn walk(directory: &Path) -> Vec<String> {
    let (mut found, mut open) = (Vec::new(), vec![String::new()]);
    while let Some(below) = open.pop() {
        for entry in std::fs::read_dir(directory.join(&below)).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let name = if below.is_empty() { name } else { format!("{below}/{name}") };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && name.split('/').count() < 16 => open.push(name),
                Ok(kind) if !kind.is_dir() => found.push(name),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// Whether a name of a listing can only be a file below the snapshot.
pub(super) fn is_below(name: &str) -> bool {
    name.len() <= 1024 && name.split('/').count() <= 8 && name.split('/').all(is_plain)
}

fn is_weight(name: &str) -> bool {
    name.ends_with(".safetensors")
}

/// A GGUF file, or the parts of one.
#[derive(Debug)]
struct Gguf {
    /// The name without the number of the part and the extension.
    stem: String,
    parts: Vec<String>,
    expected: usize,
}

impl Gguf {
    fn is_whole(&self) -> bool {
        self.parts.len() == self.expected
    }

    /// What comes last in the name, which is the quantization by custom: `Q4_K_M`, `UD-Q4_K_XL`.
    fn label(&self) -> &str {
        let base = self.stem.rsplit('/').next().unwrap_or_default();
        let Some(at) = base.rfind(['-', '.']) else { return base };
        let before = &base[..at];
        let maker = before.rfind(['-', '.']).map_or(0, |at| at + 1);
        let named = ["UD", "i1"].iter().any(|known| before[maker..].eq_ignore_ascii_case(known));
        &base[if named && maker > 0 { maker } else { at + 1 }..]
    }
}

/// The models in GGUF files, by name.
fn ggufs(names: &[String]) -> Vec<Gguf> {
    let mut all: Vec<Gguf> = Vec::new();
    for name in names.iter().filter(|name| !is_projector(name)) {
        let Some(stem) = without_extension(name) else { continue };
        let (stem, expected) = part(stem).unwrap_or((stem, 1));
        match all.iter_mut().find(|gguf| gguf.stem == stem && gguf.expected == expected) {
            Some(gguf) => gguf.parts.push(name.clone()),
            None => all.push(Gguf { stem: stem.into(), parts: vec![name.clone()], expected }),
        }
    }
    all.iter_mut().for_each(|gguf| gguf.parts.sort());
    all.sort_by(|a, b| a.stem.cmp(&b.stem));
    all
}

fn without_extension(name: &str) -> Option<&str> {
    let at = name.len().checked_sub(".gguf".len())?;
    name.get(at..)?.eq_ignore_ascii_case(".gguf").then(|| &name[..at])
}

/// Takes `stem-00001-of-00003` apart: the stem, and how many parts there are.
fn part(stem: &str) -> Option<(&str, usize)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let five = |text: &str| (text.len() == 5).then(|| text.parse::<usize>().ok()).flatten();
    five(number)
        .zip(five(count))
        .filter(|(number, count)| (1..=*count).contains(number))
        .map(|(_, count)| (stem, count))
}

fn is_projector(name: &str) -> bool {
    let base = name.rsplit('/').next().unwrap_or_default();
    base.to_ascii_lowercase().contains("mmproj")
}

/// The vision tower's files, the best to have first: half precision is what they are made for.
fn projectors(names: &[String]) -> Vec<String> {
    let mut all: Vec<String> =
        names.iter().filter(|name| is_projector(name) && without_extension(name).is_some()).cloned().collect();
    all.sort_by_key(|name| match name.to_ascii_lowercase() {
        name if name.contains("bf16") => 1,
        name if name.contains("f16") => 0,
        _ => 2,
    });
    all
}

/// Those of a quantization, by the strictest reading of it that any name answers to; all where none is asked for.
fn matching(all: Vec<Gguf>, quant: Option<&str>) -> Vec<Gguf> {
    let Some(quant) = quant.map(str::to_ascii_lowercase) else { return all };
    let borders = |c: char| matches!(c, '-' | '.' | '/');
    let at_the_end =
        |stem: &str| stem.strip_suffix(&*quant).is_some_and(|rest| rest.is_empty() || rest.ends_with(borders));
    let inside = |stem: &str| {
        stem.match_indices(&*quant).any(|(at, found)| {
            let (before, after) = (&stem[..at], &stem[at + found.len()..]);
            (before.is_empty() || before.ends_with(borders)) && (after.is_empty() || after.starts_with(borders))
        })
    };
    let readings: [&dyn Fn(&Gguf) -> bool; 3] = [
        &|gguf| gguf.label().eq_ignore_ascii_case(&quant),
        &|gguf| at_the_end(&gguf.stem.to_ascii_lowercase()),
        &|gguf| inside(&gguf.stem.to_ascii_lowercase()),
    ];
    for reading in readings {
        if all.iter().any(reading) {
            return all.into_iter().filter(reading).collect();
        }
    }
    Vec::new()
}

/// The one model that is meant.
fn one(names: &[String], quant: Option<&str>) -> Result<Gguf, String> {
    let all = ggufs(names);
    if all.is_empty() {
        return Err("there are neither safetensors nor GGUF files, and nothing else is read".into());
    }
    let known = listed(&labels(&all));
    let mut found = matching(all, quant);
    match (found.len(), quant) {
        (1, _) => Ok(found.remove(0)),
        (0, Some(quant)) => Err(format!("no GGUF file is {}: there are {known}", brief(quant))),
        _ => Err(ambiguous(&found)),
    }
}

fn ambiguous(several: &[Gguf]) -> String {
    let labels = labels(several);
    let names = match labels.len() == several.len() {
        true => labels,
        false => several.iter().map(|gguf| gguf.stem.clone()).collect(),
    };
    format!("several GGUF files: `:` and one of these says which: {}", listed(&names))
}

/// Sorted, each once.
fn labels(ggufs: &[Gguf]) -> Vec<String> {
    let mut all: Vec<String> = ggufs.iter().map(|gguf| gguf.label().to_string()).collect();
    all.sort();
    all.dedup();
    all
}

/// Names for a message.
pub(super) fn listed(names: &[String]) -> String {
    let mut out: Vec<String> = names.iter().take(MAX_LISTED).map(|name| brief(name)).collect();
    if names.len() > MAX_LISTED {
        out.push(format!("{} more", names.len() - MAX_LISTED));
    }
    out.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str], quant: Option<&str>) -> Result<Vec<String>, String> {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        choose(&names, quant, None).map(|choice| choice.files)
    }

    #[test]
    fn safetensors_come_with_what_is_read_beside_them_and_nothing_else() {
        let names = [
            "model-00001-of-00002.safetensors",
            ".gitattributes",
            "README.md",
            "config.json",
            "drafter/model.safetensors",
            "drafter/config.json",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "original/consolidated.safetensors",
            "pytorch_model.bin",
            "onnx/model.onnx",
            "logo.png",
            "model-Q8_0.gguf",
        ];
        let expected = [
            "config.json",
            "drafter/config.json",
            "model.safetensors.index.json",
            "tokenizer.json",
            "drafter/model.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        assert_eq!(chosen(&names, None).unwrap(), expected);
        assert_eq!(chosen(&names, Some("q8_0")).unwrap(), ["model-Q8_0.gguf"]);
    }

    #[test]
    fn a_quantization_selects_one_model_with_all_its_parts() {
        let names = [
            "M-30B-Q4_K_M.gguf",
            "M-30B-Q4_K_S.gguf",
            "M-30B-UD-Q4_K_XL.gguf",
            "M-30B-Q4_K_XL.gguf",
            "mmproj-F32.gguf",
            "mmproj-BF16.gguf",
            "mmproj-F16.gguf",
            "BF16/M-30B-BF16-00002-of-00002.gguf",
            "config.json",
            "BF16/M-30B-BF16-00001-of-00002.gguf",
            "M-30B-dflash-Q8_0.gguf",
            "M-30B-Q8_0.gguf",
            "M.i1-IQ4_XS.gguf",
            "Q2_K/weights.gguf",
            "M-30B-Q6_K-00001-of-00002.gguf",
        ];
        for (quant, files) in [
            ("q4_k_m", &["M-30B-Q4_K_M.gguf"][..]),
            ("Q4_K_XL", &["M-30B-Q4_K_XL.gguf"]),
            ("ud-q4_k_xl", &["M-30B-UD-Q4_K_XL.gguf"]),
            ("BF16", &["BF16/M-30B-BF16-00001-of-00002.gguf", "BF16/M-30B-BF16-00002-of-00002.gguf"]),
            ("dflash-Q8_0", &["M-30B-dflash-Q8_0.gguf"]),
            ("IQ4_XS", &["M.i1-IQ4_XS.gguf"]),
            ("Q2_K", &["Q2_K/weights.gguf"]),
        ] {
            let expected = [&["mmproj-F16.gguf"], files].concat();
            assert_eq!(chosen(&names, Some(quant)).unwrap(), expected, "{quant}");
        }
        for (quant, parts) in [
            (Some("Q4_K"), &["no GGUF file is Q4_K", "BF16", "Q4_K_M", "UD-Q4_K_XL"][..]),
            (Some("F16"), &["no GGUF file is F16"]),
            (Some("Q8_0"), &["several", "M-30B-dflash-Q8_0", "M-30B-Q8_0"]),
            (Some("Q6_K"), &["only 1 of its parts"]),
            (None, &["several"]),
        ] {
            let error = chosen(&names, quant).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{quant:?}: {error}");
        }
        assert_eq!(chosen(&["README.md", "only.gguf", "drafter/model.safetensors"], None).unwrap(), ["only.gguf"]);
        assert!(chosen(&["pytorch_model.bin"], None).unwrap_err().contains("neither"));
    }

    #[test]
    fn a_snapshot_says_itself_whether_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let found = |quant| complete(dir.path(), quant).unwrap();
        assert_eq!(found(None), None);
        put("M-Q8_0-00001-of-00002.gguf", "");
        assert_eq!((found(None), found(Some("Q8_0"))), (None, None));
        put("M-Q8_0-00002-of-00002.gguf", "");
        let first = dir.path().join("M-Q8_0-00001-of-00002.gguf");
        assert_eq!((found(None), found(Some("q8_0")), found(Some("q4_0"))), (Some(first.clone()), Some(first), None));
        put("M-Q4_0.gguf", "");
        assert!(complete(dir.path(), None).unwrap_err().contains("Q4_0, Q8_0"));
        put("config.json", "{}");
        put("model.safetensors.index.json", r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#);
        put("1.safetensors", "");
        assert_eq!(found(None), None);
        put("2.safetensors", "");
        assert_eq!(found(None), Some(dir.path().into()));
        put("dflash_pair.json", r#"{"backend": "dflash", "layout": {"target": "t", "drafter": "d"}}"#);
        for file in ["t/config.json", "d/config.json", "t/model.safetensors"] {
            put(file, "{}");
            assert_eq!(found(None), None);
        }
        put("d/model.safetensors", "");
        assert_eq!(found(None), Some(dir.path().into()));
    }
}
