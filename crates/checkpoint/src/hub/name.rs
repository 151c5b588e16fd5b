//! Names of models at the hub.

use crate::source::is_plain;
use std::fmt;

/// `org/repo`, with a revision (`@main`, `@refs/pr/1`, `@` and a commit) and the quantization of a GGUF file (`:Q4_K_M`) where
/// those are given, in either order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// `org/repo`
    pub id: String,
    /// A branch, a tag or a commit.
    pub revision: Option<String>,
    /// The quantization.
    pub quant: Option<String>,
}

impl Repository {
    /// The repository that `text` names, or `None` where it cannot name one. A path to a GGUF file does not.
    pub fn parse(text: &str) -> Option<Self> {
        if text.to_ascii_lowercase().ends_with(".gguf") {
            return None;
        }
        let (id, mut suffixes) = text.split_at(text.find([':', '@']).unwrap_or(text.len()));
        let (org, repo) = id.split_once('/')?;
        if !(is_word(org) && is_word(repo)) {
            return None;
        }
        let mut name = Self { id: id.into(), revision: None, quant: None };
        while let Some(mark) = suffixes.chars().next() {
            let rest = suffixes.get(1..)?;
            let (suffix, next) = rest.split_at(rest.find([':', '@']).unwrap_or(rest.len()));
            let before = match mark {
                ':' if is_word(suffix) => name.quant.replace(suffix.into()),
                '@' if is_revision(suffix) => name.revision.replace(suffix.into()),
                _ => return None,
            };
            if before.is_some() {
                return None;
            }
            suffixes = next;
        }
        Some(name)
    }

    /// The same at another revision, if `revision` can be one.
    pub fn at(self, revision: &str) -> Option<Self> {
        is_revision(revision).then(|| Self { revision: Some(revision.into()), ..self })
    }

    /// The revision that is meant.
    pub(super) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        if let Some(quant) = &self.quant {
            write!(f, ":{quant}")?;
        }
        Ok(())
    }
}

/// What the hub allows in names. `--` stands for `/` in the cache, so it is nothing else.
fn is_word(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphanumeric())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && !word.contains("--")
        && !word.contains("..")
        && word.len() <= 96
}

/// A revision is a path below `refs`, and must not be one to anywhere else.
fn is_revision(text: &str) -> bool {
    let word = |word: &str| is_plain(word) && word.chars().all(|c| c.is_ascii_graphic()) && !word.starts_with('.');
    text.split('/').all(word) && text.len() <= 200
}

/// A full commit.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hex(text)
}

/// Lowercase, as hashes are written everywhere in the cache.
pub(super) fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        for (text, id, revision, quant) in [
            ("org/repo", "org/repo", None, None),
            ("org/repo:Q4_K_M", "org/repo", None, Some("Q4_K_M")),
            ("org/repo@refs/pr/1", "org/repo", Some("refs/pr/1"), None),
            ("o.r-g/re_po@v1.0:q8_0", "o.r-g/re_po", Some("v1.0"), Some("q8_0")),
        ] {
            let name = Repository::parse(text).unwrap_or_else(|| panic!("{text}"));
            let parts = (&*name.id, name.revision.as_deref(), name.quant.as_deref());
            assert_eq!(parts, (id, revision, quant), "{text}");
            assert_eq!(name.to_string(), text);
        }
        assert_eq!(Repository::parse("org/repo:Q8_0@v1").unwrap().to_string(), "org/repo@v1:Q8_0");
    }

    #[test]
    fn what_leads_elsewhere_is_no_name() {
        for text in [
            "",
            "repo",
            "org/",
            "/repo",
            "org/repo/file",
            "../repo",
            "org/..",
            "org/.git",
            "a--b/c",
            "a/b--c",
            "org/repo:",
            "org/repo@",
            "org/repo@..",
            "org/repo@../x",
            "org/repo@/x",
            "org/repo@a//b",
            "org/repo@a\\b",
            "org/repo:a:b",
            "org/repo@a@b",
            "org/repo:a/b",
            "org/model.gguf",
            "org/re po",
            "ünï/cödé",
            "org/repo@.hidden",
            "org/repo@é",
        ] {
            assert_eq!(Repository::parse(text), None, "{text}");
        }
        assert_eq!(Repository::parse("org/repo").unwrap().at("../../x"), None);
    }
}
