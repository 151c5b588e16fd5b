//! Which checkpoint it was: a hash that tells one from another.

use crate::{Checkpoint, Error};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// Checkpoints of more bytes are known by their tables.
const WHOLE: u64 = 256 << 20;

/// A hash of what a checkpoint is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The checkpoint.
    pub label: String,
    /// SHA-256, in hexadecimal.
    pub sha256: String,
    /// The tensors' data are part of it. Otherwise it is of the configuration, and of name, encoding, shape and bytes of every
    /// tensor: two sets of weights of one shape are not told apart.
    pub data: bool,
    /// Bytes of all tensors.
    pub bytes: u64,
}

impl Checkpoint {
    /// The hash. The data of small checkpoints are read for it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn fingerprint(&self) -> Result<Fingerprint, Error> {
        let bytes = self.tensors().iter().map(|info| info.byte_len() as u64).sum();
        let data = bytes <= WHOLE;
        let mut hash = Sha256::new();
        let config = serde_json::to_string(self.config()).unwrap_or_default();
        hash.update(format!("{config}\n"));
        for info in self.tensors() {
            hash.update(format!("{} {} {:?} {}\n", info.name, info.encoding, info.shape, info.byte_len()));
            if data {
                let tensor = self.read(&info.name)?;
                let parts = tensor.parts();
                [parts.codes, parts.scales, parts.biases].into_iter().for_each(|part| hash.update(part));
                hash.update(parts.global_scale.map(f32::to_le_bytes).unwrap_or_default());
            }
        }
        let sha256 = hash.finalize().iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        Ok(Fingerprint { label: self.label().to_string(), sha256, data, bytes })
    }
}
