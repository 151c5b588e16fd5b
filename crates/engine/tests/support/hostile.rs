//! What is done with any bytes whatever: they are read as a `tokenizer.json`, and text goes through it if that went well. The fuzz
//! target in `fuzz/` does this with its own, and a test with the corpus that is kept there.

use glimmer_engine::tokenizer::Tokenizer;

/// As `tokenizer.json`, a byte of zero, and a text.
pub fn tokenizer(bytes: &[u8]) {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(bytes.get(end + 1..).unwrap_or_default());
    match Tokenizer::from_json(&bytes[..end], "tokenizer.json") {
        Err(error) => assert!(!error.to_string().contains(char::is_control), "{error:?}"),
        Ok(tokenizer) => {
            let Ok(ids) = tokenizer.encode(&text) else { return };
            assert!(ids.iter().all(|&id| tokenizer.token_bytes(id).is_some()), "{ids:?}");
            let _ = tokenizer.decode(&ids);
        }
    }
}
