//! A loaded model, on whichever device it is.

use std::sync::Arc;
use std::time::Duration;

use engine_sdk::{
    Batch, Choice, Draw, KvLayout, Logits, MemoryUse, Model, ModelSpec, Progress, Sampler, Sampling, Slot,
    Status, Tokenize,
};

use crate::cuda::CudaGptOss;
use crate::model::GptOssModel;
use crate::portable::WgpuGptOss;

/// gpt-oss on the cpu or on a GPU.
pub enum Either {
    Cpu(Box<GptOssModel>),
    Cuda(Box<CudaGptOss>),
    Portable(Box<WgpuGptOss>),
}

macro_rules! with {
    ($self:expr, $model:ident => $work:expr) => {
        match $self {
            Either::Cpu($model) => $work,
            Either::Cuda($model) => $work,
            Either::Portable($model) => $work,
        }
    };
}

impl Model for Either {
    fn spec(&self) -> ModelSpec {
        with!(self, model => model.spec())
    }

    fn tokenizer(&self) -> Arc<dyn Tokenize> {
        with!(self, model => model.tokenizer())
    }

    fn kv(&self) -> Option<KvLayout> {
        with!(self, model => model.kv())
    }

    fn prefill_gap(&self) -> Duration {
        with!(self, model => model.prefill_gap())
    }

    fn start(&mut self, slot: Slot, tokens_max: u32) -> Result<(), Status> {
        with!(self, model => model.start(slot, tokens_max))
    }

    fn end(&mut self, slot: Slot) {
        with!(self, model => model.end(slot));
    }

    fn forward(
        &mut self,
        batch: &Batch,
        logits: &mut Logits<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        with!(self, model => model.forward(batch, logits, progress))
    }

    fn chooses(&self) -> bool {
        with!(self, model => model.chooses())
    }

    fn forward_and_choose(
        &mut self,
        batch: &Batch,
        draws: &[Draw<'_>],
        sampler: &mut Sampler,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Result<Choice, Status>>, Status> {
        with!(self, model => model.forward_and_choose(batch, draws, sampler, progress))
    }

    fn launches(&self) -> bool {
        with!(self, model => model.launches())
    }

    fn chooses_unaided(&self, sampling: &Sampling) -> bool {
        with!(self, model => model.chooses_unaided(sampling))
    }

    fn launch(
        &mut self,
        batch: &Batch,
        draws: &[Draw<'_>],
        progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        with!(self, model => model.launch(batch, draws, progress))
    }

    fn collect(
        &mut self,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Option<Result<Choice, Status>>>, Status> {
        with!(self, model => model.collect(progress))
    }

    fn logits(&mut self, draw: usize, logits: &mut [f32]) -> Result<(), Status> {
        with!(self, model => model.logits(draw, logits))
    }

    fn memory(&self) -> MemoryUse {
        with!(self, model => model.memory())
    }
}
