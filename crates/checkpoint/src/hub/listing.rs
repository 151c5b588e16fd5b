//! What the hub says that a revision has. It is not believed: names stay below the snapshot, hashes are hashes.

use super::files::is_below;
use super::name::{is_commit, is_hex};
use crate::error::{Error, brief};
use crate::json::shown;
use serde_json::{Map, Value};
use std::fmt;

/// A revision.
#[derive(Debug)]
pub(super) struct Listing {
    pub commit: String,
    pub files: Vec<Listed>,
}

/// A file of it.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub name: String,
    pub size: u64,
    pub hash: Hash,
}

impl Listed {
    /// The name, for messages.
    pub fn shown(&self) -> String {
        brief(&self.name)
    }
}

/// What a file's bytes have to give; as text it is the name of the blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    /// Of a large file.
    Sha256(String),
    /// Of a small one, as git computes it.
    Git(String),
}

impl Hash {
    pub fn hex(&self) -> &str {
        let (Hash::Sha256(hex) | Hash::Git(hex)) = self;
        hex
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hash::Sha256(hex) => write!(f, "SHA-256 {hex}"),
            Hash::Git(hex) => write!(f, "git blob {hex}"),
        }
    }
}

impl Listing {
    /// Reads the hub's answer, which `source` names.
    pub fn parse(source: &str, answer: &Map<String, Value>) -> Result<Self, Error> {
        let malformed = |what: String, expected: &str, found: Option<&Value>| Error::Malformed {
            file: source.into(),
            what,
            expected: expected.into(),
            found: found.map_or_else(|| "none".into(), shown),
        };
        let commit = answer.get("sha").and_then(Value::as_str).filter(|sha| is_commit(sha));
        let commit = commit.ok_or_else(|| malformed("field `sha`".into(), "a commit", answer.get("sha")))?;
        let siblings = answer.get("siblings").and_then(Value::as_array);
        let siblings =
            siblings.ok_or_else(|| malformed("field `siblings`".into(), "a list", answer.get("siblings")))?;
        let file = |(i, entry): (usize, &Value)| {
            let of = |field: &str| (format!("field `siblings[{i}].{field}`"), entry.get(field));
            let (what, name) = of("rfilename");
            let Some(name) = name.and_then(Value::as_str).filter(|name| is_below(name)) else {
                return Err(malformed(what, "the name of a file below the repository", name));
            };
            let (what, size) = of("size");
            let Some(size) = size.and_then(Value::as_u64) else {
                return Err(malformed(what, "a number of bytes", size));
            };
            let hex = |value: Option<&Value>, len: usize| {
                value.and_then(Value::as_str).filter(|hex| hex.len() == len && is_hex(hex)).map(String::from)
            };
            let (what, lfs) = of("lfs");
            let hash = match lfs.filter(|lfs| !lfs.is_null()) {
                Some(lfs) => hex(lfs.get("sha256"), 64).map(Hash::Sha256),
                None => hex(entry.get("blobId"), 40).map(Hash::Git),
            };
            let hash = hash.ok_or_else(|| malformed(what, "a SHA-256, or the git blob in `blobId`", lfs))?;
            Ok(Listed { name: name.into(), size, hash })
        };
        let files = siblings.iter().enumerate().map(file).collect::<Result<_, _>>()?;
        Ok(Self { commit: commit.into(), files })
    }

    pub fn names(&self) -> Vec<String> {
        self.files.iter().map(|file| file.name.clone()).collect()
    }

    pub fn file(&self, name: &str) -> Option<&Listed> {
        self.files.iter().find(|file| file.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(answer: Value) -> Result<Listing, String> {
        Listing::parse("answer", answer.as_object().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_answer_is_read_and_not_believed() {
        let (sha, git, lfs) = ("a".repeat(40), "b".repeat(40), "c".repeat(64));
        let small = json!({ "rfilename": "config.json", "size": 2, "blobId": git });
        let large = json!({ "rfilename": "a/b.gguf", "size": 1u64 << 40, "blobId": git, "lfs": { "sha256": lfs } });
        let listing = parse(json!({ "sha": sha, "siblings": [small, large] })).unwrap();
        assert_eq!((listing.commit, listing.files.len()), (sha.clone(), 2));
        assert_eq!((&listing.files[0].hash, &listing.files[1].hash), (&Hash::Git(git.clone()), &Hash::Sha256(lfs)));

        assert!(parse(json!({ "sha": "../..", "siblings": [] })).unwrap_err().contains("field `sha`"));
        assert!(parse(json!({ "siblings": [] })).unwrap_err().contains("field `sha`"));
        assert!(parse(json!({ "sha": sha })).unwrap_err().contains("field `siblings`"));
        for name in ["../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a\\b", "C:x", "a\nb"] {
            let file = json!({ "rfilename": name, "size": 2, "blobId": git });
            let error = parse(json!({ "sha": sha, "siblings": [file] })).unwrap_err();
            assert!(error.contains("siblings[0].rfilename") && !error.contains('\n'), "{error}");
        }
        for (field, value) in [
            ("size", json!(-1)),
            ("size", json!("2")),
            ("lfs", json!({})),
            ("lfs", json!({ "sha256": "../../x" })),
            ("lfs", json!(7)),
        ] {
            let mut file = json!({ "rfilename": "x", "size": 2, "blobId": git });
            file[field] = value;
            let error = parse(json!({ "sha": sha, "siblings": [file] })).unwrap_err();
            assert!(error.contains(&format!("siblings[0].{field}")), "{error}");
        }
        let unhashed = json!({ "rfilename": "x", "size": 2, "blobId": "B".repeat(40) });
        assert!(parse(json!({ "sha": sha, "siblings": [unhashed] })).unwrap_err().contains("blobId"));
    }
}
