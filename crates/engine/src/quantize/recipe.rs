//! Recipes: which encoding each matrix gets.
//!
//! A recipe is a TOML file: a container, the encoding of all matrices, and rules for some of them, of which the last that
//! matches counts.
//!
//! ```toml
//! format = "mlx"                  # mlx, gguf or hf
//! encoding = "affine4g32"
//!
//! [[rule]]
//! modules = ["self_attn.o_proj"]  # a module's whole name, or its end from a dot on; * is any run of characters
//! layers = [-7, -1]               # the first and the last, from 0 on, or from -1 back; all without it
//! every = 1                       # of these the first, and every so-many-th after it
//! encoding = "affine5g32"
//! ```

use crate::EngineError;
use crate::synth::StoredAs;
use glimmer_checkpoint::write::gguf;
use glimmer_encoding::Encoding;
use serde::Deserialize;
use std::path::Path;

/// What to make of a checkpoint's matrices.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The name of a shipped one, or the file.
    pub name: String,
    /// The container.
    pub format: Format,
    /// The encoding of what no rule is for.
    pub encoding: Encoding,
    rules: Vec<Rule>,
}

/// Containers that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A directory as mlx-lm and mlx-vlm read it.
    Mlx,
    /// A file as llama.cpp reads it.
    Gguf,
    /// A directory as Hugging Face has it, of floats.
    Hf,
}

#[derive(Clone, Debug, PartialEq)]
struct Rule {
    modules: Vec<String>,
    layers: Option<[i64; 2]>,
    every: usize,
    encoding: Encoding,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeFile {
    format: String,
    encoding: String,
    #[serde(default)]
    rule: Vec<RuleTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    modules: Vec<String>,
    layers: Option<[i64; 2]>,
    every: Option<usize>,
    encoding: String,
}

macro_rules! shipped {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/", $name, ".toml")))),*]
    };
}

const SHIPPED: &[(&str, &str)] = shipped!(
    "mlx-4bit",
    "mlx-4bit-gs32",
    "mlx-8bit",
    "mlx-mxfp4",
    "ud-q4",
    "gguf-bf16",
    "gguf-q8_0",
    "gguf-q4_k_m",
    "hf-bf16"
);

impl Recipe {
    /// The names of those that are part of the program.
    pub fn shipped() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// A shipped one by its name, or that of a file.
    pub fn open(name: &str) -> Result<Self, EngineError> {
        if let Some((name, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
            return Self::parse(name, text);
        }
        match std::fs::read_to_string(Path::new(name)) {
            Ok(text) => Self::parse(name, &text),
            Err(cause) => {
                let known: Vec<&str> = Self::shipped().collect();
                let what = format!("expected a file ({cause}) or one of {}", known.join(", "));
                Err(EngineError::Recipe { recipe: name.into(), what })
            }
        }
    }

    /// The recipe that `text` is; messages call it `name`.
    pub fn parse(name: &str, text: &str) -> Result<Self, EngineError> {
        let wrong = |what: String| EngineError::Recipe { recipe: name.into(), what };
        let file: RecipeFile = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
            let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            wrong(format!("{line}{}", error.message()))
        })?;
        let format = match file.format.as_str() {
            "mlx" => Format::Mlx,
            "gguf" => Format::Gguf,
            "hf" => Format::Hf,
            other => return Err(wrong(format!("unknown format `{other}` (known: mlx, gguf, hf)"))),
        };
        let encoding = |name: &str| {
            let StoredAs(encoding) = name.parse().map_err(wrong)?;
            match format.holds(encoding) {
                true => Ok(encoding),
                false => Err(wrong(format!("encoding `{name}` cannot be stored as {}", format.name()))),
            }
        };
        let rule = |table: RuleTable| {
            let RuleTable { modules, layers, every, encoding: name } = table;
            match every {
                Some(0) => Err(wrong("`every` is 0, expected at least 1".into())),
                _ => Ok(Rule { modules, layers, every: every.unwrap_or(1), encoding: encoding(&name)? }),
            }
        };
        let rules = file.rule.into_iter().map(rule).collect::<Result<_, _>>()?;
        Ok(Self { name: name.into(), format, encoding: encoding(&file.encoding)?, rules })
    }

    /// Whether some matrices are to have another encoding.
    pub fn is_mixed(&self) -> bool {
        self.rules.iter().any(|rule| rule.encoding != self.encoding)
    }

    /// All encodings that it gives to matrices.
    pub(super) fn encodings(&self) -> impl Iterator<Item = Encoding> {
        std::iter::once(self.encoding).chain(self.rules.iter().map(|rule| rule.encoding))
    }

    /// The encoding of a module, of a model with so many layers.
    pub(super) fn encoding_of(&self, module: &str, layers: usize) -> Encoding {
        let rule = self.rules.iter().rev().find(|rule| rule.matches(module, layers));
        rule.map_or(self.encoding, |rule| rule.encoding)
    }

    /// Refuses a pattern that is for no module at all: it is misspelt, or the recipe is for another model. That a model has fewer
    /// layers than a range is no fault.
    pub(super) fn check<'a>(&self, modules: impl Iterator<Item = &'a str> + Clone) -> Result<(), EngineError> {
        let mut patterns = self.rules.iter().flat_map(|rule| &rule.modules);
        match patterns.find(|pattern| !modules.clone().any(|module| matches(pattern, module))) {
            Some(pattern) => {
                let what = format!("no matrix of the model matches `{pattern}`");
                Err(EngineError::Recipe { recipe: self.name.clone(), what })
            }
            None => Ok(()),
        }
    }
}

impl Rule {
    fn matches(&self, module: &str, layers: usize) -> bool {
        let in_range = || {
            let Some(range) = self.layers else { return true };
            let Some(layer) = layer(module) else { return false };
            let [first, last] = range.map(|at| if at < 0 { at + layers as i64 } else { at });
            (first..=last).contains(&layer) && (layer - first) % self.every as i64 == 0
        };
        self.modules.iter().any(|pattern| matches(pattern, module)) && in_range()
    }
}

/// The number of the layer that a module is in.
fn layer(module: &str) -> Option<i64> {
    let (_, rest) = module.rsplit_once("layers.")?;
    rest.split('.').next()?.parse().ok()
}

/// Whether a pattern is for a module's whole name, or for what follows one of its dots.
fn matches(pattern: &str, module: &str) -> bool {
    let ends = module.match_indices('.').map(|(at, _)| &module[at + 1..]);
    std::iter::once(module).chain(ends).any(|name| glob(pattern, name))
}

fn glob(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            name.char_indices().map(|(at, _)| &name[at..]).chain([""]).any(|name| glob(rest, name))
        }),
    }
}

impl Format {
    /// How it is asked for.
    pub fn name(self) -> &'static str {
        match self {
            Format::Mlx => "mlx",
            Format::Gguf => "gguf",
            Format::Hf => "hf",
        }
    }

    fn holds(self, encoding: Encoding) -> bool {
        match self {
            Format::Mlx => !matches!(encoding, Encoding::Ggml(_)),
            Format::Gguf => gguf::kind(encoding).is_some(),
            Format::Hf => matches!(encoding, Encoding::Dense(_)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glimmer_encoding::{FloatType, GgmlType};

    #[test]
    fn shipped_recipes_parse() {
        for name in Recipe::shipped() {
            let recipe = Recipe::open(name).unwrap();
            assert!(name.starts_with(recipe.format.name()) || name == "ud-q4", "{name}");
        }
    }

    #[test]
    fn the_last_rule_that_matches_counts() {
        let affine = |bits| Encoding::Affine { bits, group: 32, scale: FloatType::BF16 };
        let ud = Recipe::open("ud-q4").unwrap();
        let o_proj = |layer: usize| format!("model.language_model.layers.{layer}.self_attn.o_proj");
        for (module, bits) in
            [("lm_head", 5), (&o_proj(44), 4), (&o_proj(45), 5), (&o_proj(51), 5), ("x.mlp.up_proj", 4)]
        {
            assert_eq!(ud.encoding_of(module, 52), affine(bits), "{module}");
        }
        let medium = Recipe::open("gguf-q4_k_m").unwrap();
        let more = |layer: &usize| {
            medium.encoding_of(&format!("model.language_model.layers.{layer}.mlp.down_proj"), 52)
                == Encoding::Ggml(GgmlType::Q6K)
        };
        // As llama.cpp decides it.
        let theirs = |&i: &usize| !(52 / 8..7 * 52 / 8).contains(&i) || (i - 52 / 8) % 3 == 2;
        assert_eq!((0..52).filter(more).collect::<Vec<_>>(), (0..52).filter(theirs).collect::<Vec<_>>());
    }

    #[test]
    fn patterns_match_whole_names_and_ends() {
        let name = "model.language_model.layers.3.self_attn.o_proj";
        for pattern in [name, "o_proj", "self_attn.o_proj", "self_attn.*", "*", "*o_proj", "layers.3.*.o_proj", "o*j"] {
            assert!(matches(pattern, name), "{pattern}");
        }
        for pattern in ["", "_proj", "attn.o_proj", "self_attn", "o_proj*x", "layers.*.q_proj"] {
            assert!(!matches(pattern, name), "{pattern}");
        }
    }

    #[test]
    fn faults_are_named() {
        let rule = "format = \"mlx\"\nencoding = \"affine4g64\"\n[[rule]]\n";
        for (text, parts) in [
            ("format = \"mlx\"", &["missing field `encoding`"][..]),
            ("format = \"onnx\"\nencoding = \"bf16\"", &["`onnx`", "mlx, gguf, hf"]),
            ("format = \"mlx\"\nencoding = \"q3_x\"", &["`q3_x`"]),
            ("format = \"mlx\"\nencoding = \"q4_k\"", &["`q4_k`", "mlx"]),
            ("format = \"gguf\"\nencoding = \"affine4g64\"", &["`affine4g64`", "gguf"]),
            ("format = \"hf\"\nencoding = \"q8_0\"", &["`q8_0`", "hf"]),
            ("format = \"mlx\"\nencoding = \"bf16\"\ngroup = 3", &["line 3", "`group`"]),
            (&format!("{rule}modules = [\"x\"]\nlayer = 3\nencoding = \"bf16\""), &["line 5", "`layer`"]),
            (&format!("{rule}modules = [\"x\"]\nevery = 0\nencoding = \"bf16\""), &["`every`"]),
            ("format =", &["line 1"]),
        ] {
            let error = Recipe::parse("own.toml", text).unwrap_err().to_string();
            assert!(error.starts_with("recipe own.toml: ") && error.lines().count() == 1, "{error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
        let error = Recipe::open("mlx-5bit").unwrap_err().to_string();
        assert!(error.contains("mlx-5bit") && error.contains("mlx-4bit-gs32"), "{error}");
    }
}
