//! The engine of this crate's own tests: an alphabet that counts on, and faults on demand.
//!
//! Tokens 0 to 255 are bytes, 256 is `<|end|>` (ends a reply), 257 `<|start|>`, 258 and 259 have no piece. After a letter
//! comes the next one, after `z` the end, after anything else `a`. A sequence whose prompt begins with `N` gets logits
//! that are not numbers.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    ops::Range,
    sync::Arc,
};

use crate::*;

pub(crate) const END: u32 = 256;
pub(crate) const START: u32 = 257;
pub(crate) const VOCABULARY: u32 = 260;
pub(crate) const CONTEXT: u32 = 64;

thread_local! {
    /// What is to go wrong on this thread, such as `panic in forward`.
    static FAULT: RefCell<String> = const { RefCell::new(String::new()) };
    /// Slots that are started and not ended, and models that are loaded and not dropped.
    static HELD: Cell<(i32, i32)> = const { Cell::new((0, 0)) };
}

/// Makes `place` panic or fail, until the next call.
pub(crate) fn set_fault(fault: &str) {
    FAULT.set(fault.to_owned());
}

pub(crate) fn slots_held() -> i32 {
    HELD.get().0
}

pub(crate) fn models_held() -> i32 {
    HELD.get().1
}

fn hold(slots: i32, models: i32) {
    HELD.set((HELD.get().0 + slots, HELD.get().1 + models));
}

fn check(place: &str) -> Result<(), Status> {
    let fault = FAULT.with_borrow(Clone::clone);
    assert!(fault != format!("panic in {place}"), "asked to panic in {place}");
    if fault == format!("status in {place}") {
        return Err(Status::oom_vram(format!("asked to fail in {place}"), 7, 5));
    }
    Ok(())
}

pub(crate) struct TestEngine;

impl Engine for TestEngine {
    type Model = TestModel;

    fn info() -> EngineInfo {
        EngineInfo { id: "test", version: "1.2.3" }
    }

    fn devices() -> Result<Vec<Device>, Status> {
        check("devices")?;
        let device = |id: &str| Device {
            id: id.to_owned(),
            kind: "cpu".to_owned(),
            name: format!("the {id}"),
            memory_total: 1000,
            memory_free: 10,
        };
        Ok(vec![device("cpu"), device("cpu:1")])
    }

    fn estimate(files: &ModelFiles, settings: &Settings) -> Result<Estimate, Status> {
        check("estimate")?;
        files.path(&files.primary)?;
        let need = DeviceNeed {
            device: settings.devices.first().cloned().unwrap_or_else(|| "cpu".to_owned()),
            weights: 1,
            weights_mapped: 2,
            workspace: 3,
            per_sequence: 4,
            kv_per_token: 5,
            kv_fixed: 6,
        };
        Ok(Estimate { devices: vec![need], context_length_max: CONTEXT })
    }

    fn load(
        _files: &ModelFiles,
        settings: &Settings,
        budget: &[DeviceBytes],
        progress: &mut Progress<'_>,
    ) -> Result<TestModel, Status> {
        progress.report(0, 2)?;
        check("load")?;
        progress.report(1, 2)?;
        if let Some(tight) = budget.iter().find(|b| b.bytes < 10) {
            return Err(Status::oom_ram(format!("{} is too small", tight.device), 10, tight.bytes));
        }
        Ok(TestModel::new(settings.sequences_max.unwrap_or(2), settings.context_length.unwrap_or(CONTEXT), 8))
    }
}

pub(crate) struct TestModel {
    /// Numbers of it: the sum of the tokens, how many there are, 1.
    pub(crate) embeddings: Option<EmbeddingSpec>,
    kv: Vec<Option<Vec<u32>>>,
    context_length: u32,
    batch_tokens_max: u32,
    /// With one, tokens are in blocks, and slots hold nothing.
    layout: Option<KvLayout>,
    blocks: HashMap<(BlockId, u32), u32>,
    /// What slots held when they ended, and whose it was; none: it keeps nothing.
    left: Option<Vec<(u64, Vec<u32>)>>,
    /// By slot.
    salts: Vec<u64>,
}

impl TestModel {
    pub fn new(sequences_max: u32, context_length: u32, batch_tokens_max: u32) -> TestModel {
        hold(0, 1);
        TestModel {
            kv: vec![None; sequences_max as usize],
            context_length,
            batch_tokens_max,
            layout: None,
            blocks: HashMap::new(),
            left: None,
            embeddings: None,
            salts: vec![0; sequences_max as usize],
        }
    }

    /// Without blocks; what slots held is found again.
    pub fn keeping(sequences_max: u32, context_length: u32) -> TestModel {
        let mut model = TestModel::new(sequences_max, context_length, 8);
        model.left = Some(Vec::new());
        model
    }

    /// Blocks of four positions.
    pub fn paged(sequences_max: u32, context_length: u32, blocks: u32) -> TestModel {
        let layout = KvLayout {
            block_tokens: 4,
            block_bytes: 100,
            blocks,
            groups: vec![KvGroup { window: None }],
            memory: KvMemory::Vram,
        };
        let mut model = TestModel::new(sequences_max, context_length, 64);
        model.layout = Some(layout);
        model
    }

    /// All tokens of a sequence up to the end of this row, as they lie in the KV.
    fn store(&mut self, row: Row<'_>) -> Vec<u32> {
        if self.layout.is_none() {
            let kv = self.kv[row.slot.index()].as_mut().expect("a row of a started slot");
            assert_eq!(kv.len(), row.position as usize);
            kv.extend_from_slice(row.tokens);
            return kv.clone();
        }
        assert!(self.kv[row.slot.index()].is_some(), "a row of a started slot");
        let table = row.table(0);
        let place = |position: u32| (table.blocks[(position / 4) as usize], position % 4);
        for (position, token) in (row.position..).zip(row.tokens) {
            self.blocks.insert(place(position), *token);
        }
        (0..row.position + row.tokens.len() as u32).map(|position| self.blocks[&place(position)]).collect()
    }
}

impl Drop for TestModel {
    fn drop(&mut self) {
        hold(-(self.kv.iter().flatten().count() as i32), -1);
        check("drop").unwrap();
    }
}

impl Model for TestModel {
    fn spec(&self) -> ModelSpec {
        check("spec").unwrap();
        ModelSpec {
            vocabulary_size: VOCABULARY,
            context_length: self.context_length,
            sequences_max: self.kv.len() as u32,
            batch_tokens_max: self.batch_tokens_max,
            end_tokens: vec![END],
        }
    }

    fn tokenizer(&self) -> Arc<dyn Tokenize> {
        Arc::new(Bytes)
    }

    fn kv(&self) -> Option<KvLayout> {
        self.layout.clone()
    }

    fn start(&mut self, slot: Slot, tokens_max: u32) -> Result<(), Status> {
        check("start")?;
        assert!(self.kv[slot.index()].is_none(), "slot {} is started twice", slot.0);
        assert!(tokens_max <= self.context_length);
        self.kv[slot.index()] = Some(Vec::new());
        hold(1, 0);
        Ok(())
    }

    fn reuse(&mut self, slot: Slot, prompt: &[u32], salt: u64) -> u32 {
        assert!(self.layout.is_none(), "the SDK finds what is in blocks");
        self.salts[slot.index()] = salt;
        let common = |left: &Vec<u32>| {
            left.iter().zip(&prompt[..prompt.len() - 1]).take_while(|(left, wanted)| left == wanted).count()
        };
        let left = self.left.iter().flatten().filter(|(of, _)| *of == salt);
        let count = left.map(|(_, left)| common(left)).max().unwrap_or(0);
        self.kv[slot.index()] = Some(prompt[..count].to_vec());
        count as u32
    }

    fn end(&mut self, slot: Slot) {
        let held = self.kv[slot.index()].take().expect("only what was started ends");
        if let Some(left) = &mut self.left {
            left.push((self.salts[slot.index()], held));
        }
        hold(-1, 0);
        check("end").unwrap();
    }

    fn forward(
        &mut self,
        batch: &Batch,
        logits: &mut Logits<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        assert!(batch.tokens().len() <= self.batch_tokens_max as usize);
        check("forward")?;
        let mut row = 0;
        for part in batch.rows() {
            let kv = self.store(part);
            progress.report(kv.len() as u64, 0)?;
            if part.wants_logits {
                let next = match *kv.last().unwrap() {
                    last if (u32::from(b'a')..u32::from(b'z')).contains(&last) => last + 1,
                    last if last == u32::from(b'z') => END,
                    _ => u32::from(b'a'),
                };
                let out = logits.row_mut(row);
                out.fill(if kv[0] == u32::from(b'N') { f32::NAN } else { 0.0 });
                out[next as usize] = 10.0;
                row += 1;
            }
        }
        assert_eq!(row, logits.rows());
        Ok(())
    }

    fn embeddings(&self) -> Option<EmbeddingSpec> {
        self.embeddings
    }

    fn embed(&mut self, slot: Slot, out: &mut [f32]) -> Result<(), Status> {
        check("embed")?;
        let kv = self.kv[slot.index()].as_ref().expect("what is embedded is started");
        out.copy_from_slice(&[kv.iter().sum::<u32>() as f32, kv.len() as f32, 1.0]);
        if kv[0] == u32::from(b'N') {
            out[1] = f32::NAN;
        }
        Ok(())
    }

    fn memory(&self) -> MemoryUse {
        check("memory").unwrap();
        MemoryUse {
            devices: vec![DeviceBytes { device: "cpu".to_owned(), bytes: 42 }],
            kv_bytes_used: self.kv.iter().flatten().map(|kv| kv.len() as u64).sum(),
            kv_bytes_total: 128,
            details_json: "{\"a\":1}".to_owned(),
        }
    }
}

pub(crate) struct Bytes;

const ALL_BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut i = 0;
    while i < 256 {
        bytes[i] = i as u8;
        i += 1;
    }
    bytes
};

impl Tokenize for Bytes {
    fn encode(&self, text: &str, literal: &[Range<usize>]) -> Result<Vec<u32>, Status> {
        check("encode")?;
        let mut ids = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let control = [("<|end|>", END), ("<|start|>", START)].into_iter().find(|(spelling, _)| {
                text[at..].starts_with(spelling)
                    && !literal.iter().any(|l| l.start < at + spelling.len() && at < l.end)
            });
            let (id, length) = control.map_or((u32::from(text.as_bytes()[at]), 1), |(s, id)| (id, s.len()));
            ids.push(id);
            at += length;
            while !text.is_char_boundary(at) {
                ids.push(u32::from(text.as_bytes()[at]));
                at += 1;
            }
        }
        Ok(ids)
    }

    fn piece(&self, id: u32) -> Option<Piece<'_>> {
        match id {
            0..=255 => Some(Piece { bytes: &ALL_BYTES[id as usize..=id as usize], control: false }),
            END => Some(Piece { bytes: b"<|end|>", control: true }),
            START => Some(Piece { bytes: b"<|start|>", control: true }),
            _ => None,
        }
    }
}
