//! From the entries of safetensors files to tensors: a quantized module is stored as several of them.

use crate::error::{Error, brief};
use crate::quantization::{Mode, Quantization, Setting};
use crate::safetensors::{Dtype, Entry};
use crate::source::Source;
use crate::tensor::{Layout, TensorInfo};
use glimmer_encoding::FloatType;
use std::collections::BTreeMap;

/// What is needed to name and to understand entries.
pub(crate) struct Assembly<'a> {
    pub source: &'a Source,
    /// `config.json`, as messages name it.
    pub config_file: &'a str,
    pub quantization: Option<Quantization>,
    pub canonical: fn(&str) -> String,
}

impl Assembly<'_> {
    /// The tensors, under their canonical names. A module whose weight has `scales` beside it is quantized.
    pub fn tensors(&self, entries: Vec<Entry>) -> Result<Vec<TensorInfo>, Error> {
        let mut entries: BTreeMap<String, Entry> = entries.into_iter().map(|e| (e.extent.name.clone(), e)).collect();
        let modules: Vec<String> =
            entries.keys().filter_map(|name| name.strip_suffix(".scales")).map(String::from).collect();
        let mut tensors = Vec::with_capacity(entries.len());
        for module in &modules {
            tensors.push(self.quantized(module, &mut entries)?);
        }
        for (name, entry) in entries {
            let Dtype::Float(float) = entry.dtype else { return Err(self.not_a_weight(&entry)) };
            let encoding = glimmer_encoding::Encoding::Dense(float);
            tensors.push(TensorInfo::whole((self.canonical)(&name), encoding, entry.shape, entry.extent));
        }
        if let Some(info) = tensors.iter().find(|info| !info.fits()) {
            return Err(Error::Malformed {
                file: self.source.describe(&info.codes.file),
                what: format!("tensor `{}`", brief(&info.codes.name)),
                expected: "a size that fits this machine".into(),
                found: format!("shape {:?} of {}", info.shape, info.encoding),
            });
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        match tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
            Some([first, second]) => Err(Error::Unknown {
                file: self.source.describe(&second.codes.file),
                what: format!("tensor `{}`", brief(&second.codes.name)),
                expected: "one name for a tensor".into(),
                found: format!("`{}` as well", brief(&first.codes.name)),
                more: 0,
            }),
            _ => Ok(tensors),
        }
    }

    /// Takes the parts of `module` out of `entries`.
    fn quantized(&self, module: &str, entries: &mut BTreeMap<String, Entry>) -> Result<TensorInfo, Error> {
        let mut take = |part: &str| entries.remove(&format!("{module}.{part}"));
        let lacks = |part: &str, beside: &Entry| Error::Missing {
            file: self.source.describe(&beside.extent.file),
            what: format!("tensor `{}`", brief(&format!("{module}.{part}"))),
            expected: format!("it beside `{}`", brief(&beside.extent.name)),
            more: 0,
        };
        let scales = take("scales").ok_or_else(|| self.broken(module))?;
        let weight = take("weight").ok_or_else(|| lacks("weight", &scales))?;
        let setting = self.setting(module)?;
        let cols = self.cols(setting, &weight)?;
        let shape = vec![weight.shape[0], cols];
        let per_group = [shape[0], cols / usize::from(setting.group)];
        let beside = |entry: &Entry, dtype: &str| self.check(setting, &weight, entry, &per_group, dtype);
        let (scale, biases) = match setting.mode {
            Mode::Affine => {
                let biases = take("biases").ok_or_else(|| lacks("biases", &scales))?;
                let Dtype::Float(scale) = scales.dtype else {
                    return Err(self.malformed(&scales, "BF16, F16 or F32".into(), scales.dtype.to_string()));
                };
                beside(&biases, &scales.dtype.to_string())?;
                (scale, Some(biases))
            }
            _ => (FloatType::F32, None),
        };
        beside(&scales, if biases.is_some() { "" } else { "U8" })?;
        let global_scale = if setting.mode == Mode::NvFp4 { take("global_scale") } else { None };
        if let Some(entry) = &global_scale
            && (entry.dtype != Dtype::Float(FloatType::F32) || entry.shape.iter().any(|&d| d != 1))
        {
            return Err(self.malformed(entry, "one F32".into(), format!("{} {:?}", entry.dtype, entry.shape)));
        }
        Ok(TensorInfo {
            name: (self.canonical)(&weight.extent.name),
            encoding: setting.encoding(scale),
            shape,
            codes: weight.extent,
            scales: Some(scales.extent),
            biases: biases.map(|entry| entry.extent),
            global_scale: global_scale.map(|entry| entry.extent),
            layout: Layout::Canonical,
        })
    }

    fn setting(&self, module: &str) -> Result<Setting, Error> {
        let Some(quantization) = &self.quantization else { return Err(self.broken(module)) };
        quantization.of(&(self.canonical)(module)).ok_or_else(|| Error::Malformed {
            file: self.config_file.into(),
            what: format!("module `{}`", brief(module)),
            expected: "settings, since the weights have its scales".into(),
            found: "false".into(),
        })
    }

    /// Scales that nothing says how to read.
    fn broken(&self, module: &str) -> Error {
        Error::Missing {
            file: self.config_file.into(),
            what: "field `quantization`".into(),
            expected: format!("settings, since the weights have `{}`", brief(&format!("{module}.scales"))),
            more: 0,
        }
    }

    /// Elements of a row of codes that are packed into 32-bit words.
    fn cols(&self, setting: Setting, weight: &Entry) -> Result<usize, Error> {
        let Setting { bits, group, .. } = setting;
        if weight.dtype != Dtype::U32 || weight.shape.len() != 2 {
            let expected = "U32 of two dimensions, since it has scales".into();
            return Err(self.malformed(weight, expected, format!("{} {:?}", weight.dtype, weight.shape)));
        }
        let cols = weight.shape[1].checked_mul(32).filter(|all| all.is_multiple_of(bits.into()));
        cols.map(|all| all / usize::from(bits)).filter(|cols| cols.is_multiple_of(group.into())).ok_or_else(|| {
            let expected = format!("rows of {bits}-bit codes in groups of {group}, as {} says", self.config_file);
            self.malformed(weight, expected, format!("shape {:?}", weight.shape))
        })
    }

    /// Whether a part has `shape`, and the dtype called `dtype` unless that is empty.
    fn check(&self, s: Setting, weight: &Entry, part: &Entry, shape: &[usize], dtype: &str) -> Result<(), Error> {
        let found = part.dtype.to_string();
        if part.shape == shape && (dtype.is_empty() || dtype == found) {
            return Ok(());
        }
        let dtype = if dtype.is_empty() { &found } else { dtype };
        let (name, stored) = (brief(&weight.extent.name), &weight.shape);
        let why = format!("as `{name}` {stored:?} with {} bits and groups of {} of config.json has", s.bits, s.group);
        Err(self.malformed(part, format!("{dtype} {shape:?}, {why}"), format!("{found} {:?}", part.shape)))
    }

    fn malformed(&self, entry: &Entry, expected: String, found: String) -> Error {
        let (file, what) =
            (self.source.describe(&entry.extent.file), format!("tensor `{}`", brief(&entry.extent.name)));
        Error::Malformed { file, what, expected, found }
    }

    fn not_a_weight(&self, entry: &Entry) -> Error {
        if let (Dtype::U32, Some(module)) = (entry.dtype, entry.extent.name.strip_suffix(".weight")) {
            return Error::Missing {
                file: self.source.describe(&entry.extent.file),
                what: format!("tensor `{}`", brief(&format!("{module}.scales"))),
                expected: format!("it beside `{}`, which is U32", brief(&entry.extent.name)),
                more: 0,
            };
        }
        crate::safetensors::unused_dtype(
            &self.source.describe(&entry.extent.file),
            &format!("tensor `{}`", brief(&entry.extent.name)),
            &entry.dtype.to_string(),
        )
    }
}
