//! Where the cache is and how the hub is reached, by the same environment that every tool of the hub reads.

use super::Hub;
use crate::error::{Error, escape};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The longest token file that is read.
const MAX_TOKEN: u64 = 4096;

impl Hub {
    /// As the environment has it: the cache is at `HF_HUB_CACHE`, else in `hub` under `HF_HOME`, which by default is
    /// `huggingface` under `XDG_CACHE_HOME` or `~/.cache`; the token is `HF_TOKEN`, else what is in the file `HF_TOKEN_PATH`, by
    /// default `token` under `HF_HOME`; `HF_ENDPOINT` is another hub, and `HF_HUB_OFFLINE` forbids every request.
    ///
    /// # Errors
    /// [`Error::Hub`] where a variable cannot be honoured, or where nothing says where the cache is.
    pub fn from_environment() -> Result<Self, Error> {
        Self::read(&|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn read(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let invalid = |name: &str, what: &str| Err(Error::Hub { name: name.into(), what: what.into() });
        let text = |name: &str| variable(name).map(|value| value.to_string_lossy().into_owned());
        let user = variable("HOME").or_else(|| variable("USERPROFILE")).map(PathBuf::from);
        let path = |name: &str| variable(name).map(|value| expanded(value.into(), user.as_deref()));
        let cache_home = path("XDG_CACHE_HOME").or_else(|| Some(user.as_ref()?.join(".cache")));
        let home = path("HF_HOME").or_else(|| Some(cache_home?.join("huggingface")));
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let Some(cache) = cache.or_else(|| Some(home.as_ref()?.join("hub"))) else {
            return invalid("HF_HOME", "not set, and neither is HOME: one of them has to say where models are kept");
        };
        let token_file = path("HF_TOKEN_PATH").or_else(|| Some(home?.join("token")));
        let given = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN"));
        let token = given.or_else(|| token_in(token_file.as_deref()?)).map(|token| token.trim().to_string());
        if token.as_ref().is_some_and(|token| token.contains(|c: char| !c.is_ascii_graphic())) {
            return invalid("HF_TOKEN", "there are characters in it that no token has");
        }
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        let endpoint = endpoint.trim_end_matches('/');
        if !(endpoint.starts_with("https://") || endpoint.starts_with("http://"))
            || endpoint.contains(|c: char| !c.is_ascii_graphic())
        {
            return invalid("HF_ENDPOINT", &format!("expected https://HOST, found {}", escape(endpoint)));
        }
        let set = |name: &str| {
            text(name).is_some_and(|value| matches!(&*value.to_ascii_lowercase(), "1" | "on" | "yes" | "true"))
        };
        Ok(Self {
            cache,
            endpoint: endpoint.into(),
            token: token.filter(|token| !token.is_empty()),
            offline: set("HF_HUB_OFFLINE") || set("TRANSFORMERS_OFFLINE"),
        })
    }
}

/// With the user's own directory in the place of `~`.
fn expanded(path: PathBuf, user: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), user) {
        (Ok(rest), Some(user)) => user.join(rest),
        _ => path,
    }
}

fn token_in(file: &Path) -> Option<String> {
    let mut token = String::new();
    File::open(file).ok()?.take(MAX_TOKEN).read_to_string(&mut token).ok()?;
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(variables: &[(&str, &str)]) -> Result<Hub, String> {
        let value = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value));
        Hub::read(&value).map_err(|error| error.to_string())
    }

    #[test]
    fn the_nearest_variable_says_where_the_cache_is() {
        let user = ("HOME", "/u");
        for (variables, cache) in [
            (&[user][..], "/u/.cache/huggingface/hub"),
            (&[user, ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[user, ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/h")], "/u/h/hub"),
            (&[user, ("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
            (&[("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/c")], "/c"),
        ] {
            assert_eq!(hub(variables).unwrap().cache, Path::new(cache), "{variables:?}");
        }
        assert!(hub(&[]).unwrap_err().contains("HF_HOME"));
    }

    #[test]
    fn a_variable_is_honoured_or_refused() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let home = ("HF_HOME", home.path().to_str().unwrap());
        let token = |variables: &[_]| hub(variables).unwrap().token;
        assert_eq!(token(&[home]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[home, ("HF_TOKEN", "hf_given")]).as_deref(), Some("hf_given"));
        assert_eq!(token(&[home, ("HF_TOKEN_PATH", "/absent")]), None);
        assert!(hub(&[home, ("HF_TOKEN", "a\nb: c")]).unwrap_err().contains("HF_TOKEN"));
        assert_eq!(hub(&[home]).unwrap().endpoint, "https://huggingface.co");
        assert_eq!(hub(&[home, ("HF_ENDPOINT", "http://mirror/")]).unwrap().endpoint, "http://mirror");
        assert!(hub(&[home, ("HF_ENDPOINT", "mirror")]).unwrap_err().contains("HF_ENDPOINT"));
        for (value, offline) in [("1", true), ("True", true), ("yes", true), ("0", false), ("off", false)] {
            assert_eq!(hub(&[home, ("HF_HUB_OFFLINE", value)]).unwrap().offline, offline, "{value}");
        }
    }
}
