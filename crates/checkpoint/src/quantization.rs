//! What `config.json` says about quantized modules, in the way of MLX.

use crate::error::{Error, brief};
use crate::fields::Fields;
use crate::json::shown;
use glimmer_encoding::{Encoding, FloatType};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

const KEYS: [&str; 2] = ["quantization", "quantization_config"];

/// The setting of every module, and the settings of some.
pub(crate) struct Quantization {
    all: Setting,
    /// By canonical name; `None` for a module that is not quantized.
    modules: BTreeMap<String, Option<Setting>>,
}

/// How a module is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub bits: u8,
    pub group: u16,
    pub mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Affine,
    MxFp4,
    MxFp8,
    NvFp4,
}

impl Quantization {
    /// `None` where the config has nothing of it. `canonical` turns the names of modules into canonical ones.
    pub fn parse(
        file: &str,
        config: &Map<String, Value>,
        canonical: fn(&str) -> String,
    ) -> Result<Option<Self>, Error> {
        let top = Fields::new(file, config);
        for key in KEYS {
            // MLX writes no method; others (gptq, compressed-tensors, ...) do.
            let Some(method) = top.get(key).and_then(|value| value.get("quant_method")) else { continue };
            let method = method.as_str().map_or_else(|| shown(method), brief);
            let what = format!("field `{key}`: weights quantized with {method} cannot be read by this version yet");
            return Err(Error::Unsupported { file: file.into(), what });
        }
        let [first, second] = KEYS.map(|key| top.get(key));
        if first.is_some() && second.is_some() && first != second {
            return Err(top.invalid(KEYS[1], format!("the same as in `{}`", KEYS[0])));
        }
        let key = if first.is_some() { KEYS[0] } else { KEYS[1] };
        let Some(fields) = top.object(key)? else { return Ok(None) };
        let all = Setting::parse(&fields)?;
        let mut modules = BTreeMap::new();
        for key in fields.keys().filter(|key| !Setting::KEYS.contains(key)) {
            let setting = match fields.get(key) {
                None => continue,
                Some(Value::Bool(quantized)) => quantized.then_some(all),
                Some(Value::Object(_)) => fields.object(key)?.map(|own| Setting::parse(&own)).transpose()?,
                Some(_) => return Err(fields.invalid(key, "a module's settings, or true or false")),
            };
            if modules.insert(canonical(key), setting).is_some_and(|before| before != setting) {
                return Err(fields.invalid(key, "the same as under its other name"));
            }
        }
        Ok(Some(Self { all, modules }))
    }

    /// The setting of a module, by its canonical name; `None` where it must not be quantized.
    pub fn of(&self, module: &str) -> Option<Setting> {
        self.modules.get(module).copied().unwrap_or(Some(self.all))
    }
}

impl Setting {
    const KEYS: [&str; 3] = ["group_size", "bits", "mode"];

    /// Settings that are left out are those of the mode, and the mode is affine, even beside other settings for all.
    fn parse(fields: &Fields<'_>) -> Result<Self, Error> {
        let (mode, bits, group) = match fields.opt_str("mode")?.unwrap_or("affine") {
            "affine" => (Mode::Affine, 4, 64),
            "mxfp4" => (Mode::MxFp4, 4, 32),
            "mxfp8" => (Mode::MxFp8, 8, 32),
            "nvfp4" => (Mode::NvFp4, 4, 16),
            _ => return Err(fields.invalid("mode", "affine, mxfp4, mxfp8 or nvfp4")),
        };
        let one_of = |key: &str, default: u16, known: &[usize]| {
            let known = if mode == Mode::Affine { known } else { &[usize::from(default)] };
            match fields.opt_usize(key, 0..=usize::MAX)? {
                None => Ok(default),
                Some(found) if known.contains(&found) => Ok(found as u16),
                Some(_) => {
                    let list: Vec<String> = known.iter().map(usize::to_string).collect();
                    Err(fields.invalid(key, format!("one of {}", list.join(", "))))
                }
            }
        };
        let bits = one_of("bits", bits, &[2, 3, 4, 5, 6, 8])? as u8;
        Ok(Self { bits, group: one_of("group_size", group, &[32, 64, 128])?, mode })
    }

    /// With scales of the type `scale`, which only affine modules have.
    pub fn encoding(self, scale: FloatType) -> Encoding {
        match self.mode {
            Mode::Affine => Encoding::Affine { bits: self.bits, group: self.group, scale },
            Mode::MxFp4 => Encoding::MxFp4,
            Mode::MxFp8 => Encoding::MxFp8,
            Mode::NvFp4 => Encoding::NvFp4,
        }
    }
}
