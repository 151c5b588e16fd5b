//! From one encoding to another, a few pieces of rows at a time.

use super::{Change, Content, Importance, Item};
use crate::EngineError;
use glimmer_backend::BackendError;
use glimmer_checkpoint::write::Data;
use glimmer_checkpoint::{Checkpoint, TensorInfo};
use glimmer_encoding::{EncodedRows, Encoding, RowOrder, RowSource, Scratch, quantize_rows};
use glimmer_kernels::cores;
use glimmer_kernels::pool::Pool;
use glimmer_model::ModelError;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Elements of a piece, about.
const PIECE: usize = 1 << 19;
/// Pieces that each thread has in memory.
const PIECES: usize = 4;

/// Encodes tensors of a checkpoint, on all threads.
pub struct Transcoder<'a> {
    checkpoint: &'a Checkpoint,
    importance: Option<&'a Importance>,
    pool: Pool,
}

impl<'a> Transcoder<'a> {
    pub fn new(checkpoint: &'a Checkpoint, importance: Option<&'a Importance>, threads: Option<usize>) -> Self {
        Self { checkpoint, importance, pool: Pool::new(threads.unwrap_or_else(cores::usable)) }
    }

    /// Writes a tensor: codes, then scales, then biases. `done` is told the bytes of each step, and may end it by returning false.
    pub fn write(
        &self,
        item: &Item<'_>,
        data: &mut Data,
        done: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool, EngineError> {
        match &item.content {
            Content::Tensor(info, change) if info.shape.len() == 2 => {
                return self.write_matrix(info, *change, item.encoding, data, done);
            }
            Content::Tensor(info, change) => {
                let tensor = self.checkpoint.read(&info.name)?;
                let mut values = tensor.view().to_f32();
                if *change == Change::PlusOne {
                    values.iter_mut().for_each(|value| *value += 1.0);
                }
                data.write(&dense(item.encoding, &values).codes)?;
            }
            Content::Constant(value) => data.write(&dense(item.encoding, &vec![*value; item.shape[0]]).codes)?,
        }
        Ok(done(item.bytes()))
    }

    fn write_matrix(
        &self,
        info: &TensorInfo,
        change: Change,
        encoding: Encoding,
        data: &mut Data,
        done: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool, EngineError> {
        let shape = [info.shape[0], info.shape[1]];
        let source = self.checkpoint.at("").rows(&info.name, shape)?;
        // A head's rows change places, so no piece ends within one.
        let (unit, order) = match change {
            Change::Interleaved { head_dim } => (head_dim, RowOrder::Interleaved { head_dim }),
            _ => (1, RowOrder::Ascending),
        };
        let rows = (PIECE / shape[1]).max(1).next_multiple_of(unit);
        let pieces: Vec<Range<usize>> =
            (0..shape[0]).step_by(rows).map(|start| start..shape[0].min(start + rows)).collect();
        let (mut scales, mut biases) = (Vec::new(), Vec::new());
        for wave in pieces.chunks(self.pool.threads() * PIECES) {
            let slots: Vec<Mutex<Option<_>>> = wave.iter().map(|_| Mutex::new(None)).collect();
            self.pool.run(wave.len(), &|i| {
                let encoded = self.piece(&source, info, wave[i].clone(), order, encoding);
                *slots[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(encoded);
            });
            let mut bytes = 0;
            for slot in slots {
                let encoded = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
                let EncodedRows { codes, scales: s, biases: b, .. } = encoded.expect("every piece was encoded")?;
                data.write(&codes)?;
                bytes += codes.len() + s.len() + b.len();
                scales.extend(s);
                biases.extend(b);
            }
            if !done(bytes as u64) {
                return Ok(false);
            }
        }
        for part in [scales, biases].iter().filter(|part| !part.is_empty()) {
            data.write(part)?;
        }
        Ok(true)
    }

    /// Rows of a matrix in another order and encoding.
    fn piece(
        &self,
        source: &impl RowSource<Error = glimmer_checkpoint::Error>,
        info: &TensorInfo,
        rows: Range<usize>,
        order: RowOrder,
        encoding: Encoding,
    ) -> Result<EncodedRows, EngineError> {
        let mut scratch = Scratch::default();
        let view = source.read(rows.clone(), &mut scratch)?;
        if let Some([row, col]) = view.first_non_finite() {
            let (what, cause) =
                (self.checkpoint.describe(&info.name), BackendError::NonFinite { row: rows.start + row, col });
            return Err(ModelError::Backend { what, cause }.into());
        }
        let (count, cols) = (view.rows(), view.cols());
        if view.encoding() == encoding && order == RowOrder::Ascending && view.parts().global_scale.is_none() {
            let parts = view.parts();
            let [codes, scales, biases] = [parts.codes, parts.scales, parts.biases].map(<[u8]>::to_vec);
            return Ok(EncodedRows { codes, scales, biases, global_scale: None });
        }
        let mut values = vec![0.0; count * cols];
        for (at, values) in values.chunks_exact_mut(cols).enumerate() {
            view.encoding().decode_row(view.row(order.row(at)), values);
        }
        // Whatever a container does to a matrix, its columns are where they were.
        let importance = self.importance.and_then(|importance| importance.of(&info.name));
        Ok(quantize_rows(encoding, &values, count, cols, importance)
            .expect("an encoding was chosen that rows have whole blocks of"))
    }
}

fn dense(encoding: Encoding, values: &[f32]) -> EncodedRows {
    quantize_rows(encoding, values, 1, values.len(), None).expect("vectors are stored as floats")
}
