//! Every kernel against plain f64, at every kind of edge.

use gpt_oss_model::GptOssConfig;

use super::*;
use crate::kv::{Kv, KvShape, RowParts, StoredRows, Table};

/// Deterministic noise in -1..1.
fn noise(seed: u32) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    })
}

/// Two layers, the first of which looks back 100 positions.
fn config(heads: usize, kv_heads: usize, head_dim: usize) -> GptOssConfig {
    let json = format!(
        r#"{{"num_hidden_layers":2,"hidden_size":96,"intermediate_size":96,"num_local_experts":4,
        "num_experts_per_tok":2,"num_attention_heads":{heads},"num_key_value_heads":{kv_heads},"head_dim":{head_dim},
        "sliding_window":100,"vocab_size":1024,"quantization_config":{{"quant_method":"mxfp4"}}}}"#
    );
    GptOssConfig::parse(json.as_bytes()).unwrap()
}

/// Everything there is to compute with here.
fn arithmetics() -> Vec<Arithmetic> {
    let mut all = Vec::new();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        all.push(Arithmetic::new(isa, KvFormat::F32, false));
        all.push(Arithmetic::new(isa, KvFormat::Bf16, false));
        let pairs = Arithmetic::new(isa, KvFormat::Bf16, true);
        if pairs.pairs {
            all.push(pairs);
        }
    }
    all
}

/// Sequences of these lengths, each in blocks of its own, in an order that is not theirs.
struct World {
    config: GptOssConfig,
    kv: Kv,
    lengths: Vec<usize>,
    tables: Vec<Vec<Vec<u32>>>,
}

impl World {
    fn new(config: GptOssConfig, format: KvFormat, lengths: &[usize]) -> World {
        let shape = KvShape::of(&config, format);
        let groups = shape.windows().len();
        let blocks_of = |length: &usize| length.div_ceil(BLOCK_TOKENS);
        let count = lengths.iter().map(|l| groups * blocks_of(l)).sum::<usize>() as u32;
        let mut next = (0..count).rev();
        let tables: Vec<Vec<Vec<u32>>> = lengths
            .iter()
            .map(|l| (0..groups).map(|_| next.by_ref().take(blocks_of(l)).collect()).collect())
            .collect();
        let mut world =
            World { config, kv: Kv::new(shape, count as usize), lengths: lengths.to_vec(), tables };
        world.fill();
        world
    }

    /// Stores noise at all positions, and what is no number behind them.
    fn fill(&mut self) {
        let pool = Pool::new(2).unwrap();
        for sequence in 0..self.lengths.len() {
            let length = self.lengths[sequence];
            let all = length.next_multiple_of(BLOCK_TOKENS);
            let tables: Vec<Table<'_>> =
                self.tables[sequence].iter().map(|blocks| Table { first: 0, blocks }).collect();
            self.kv.provide(&tables, 0..length);
            for layer in 0..2 {
                let width = self.config.kv_width();
                let number = |seed: usize| noise((seed * 10 + sequence * 2 + layer) as u32);
                let keys: Vec<f32> = number(1).take(all * width).map(|x| 3.0 * x).collect();
                let values: Vec<f32> = number(2).take(all * width).collect();
                for count in [all, length] {
                    let rows = StoredRows { tables: &tables, rows: 0..count, position: 0 };
                    let (mut keys, mut values) = (keys.clone(), values.clone());
                    if count == all {
                        keys[length * width..].fill(f32::NAN);
                        values[length * width..].fill(f32::NAN);
                    }
                    let (keys, values) = (RowParts::all(&keys, width), RowParts::all(&values, width));
                    self.kv.store(&pool, layer, &[rows], keys, values, |_, _| {});
                }
            }
        }
    }

    fn layer(&self, layer: usize, sequence: usize) -> LayerKv<'_> {
        let tables: Vec<Table<'_>> =
            self.tables[sequence].iter().map(|blocks| Table { first: 0, blocks }).collect();
        self.kv.layer(layer, &tables)
    }

    /// The last `rows` of every sequence, through the kernels.
    fn attend(
        &self,
        arithmetic: Arithmetic,
        layer: usize,
        rows: &[usize],
        sinks: &[f32],
        threads: usize,
    ) -> Vec<f32> {
        let width = self.config.query_width();
        let total: usize = rows.iter().sum();
        let mut spans = Vec::new();
        let (mut queries, mut turns, mut end) = (Vec::new(), Vec::new(), 0);
        for (sequence, (&rows, &length)) in rows.iter().zip(&self.lengths).enumerate() {
            spans.push(AttentionSpan {
                kv: self.layer(layer, sequence),
                rows: end..end + rows,
                position: length - rows,
            });
            end += rows;
            for position in length - rows..length {
                queries.extend(query(sequence, position, width));
                turns.extend(turn(position, self.config.head_dim));
            }
        }
        let (head_dim, kv_heads) = (self.config.head_dim, self.config.kv_heads);
        let heads =
            Heads { queries: RowParts::all(&queries, width), sinks, turns: &turns, head_dim, kv_heads };
        let mut out = vec![f32::NAN; total * width];
        attend(&Pool::new(threads).unwrap(), arithmetic, &spans, heads, &mut out);
        out
    }

    /// One head of one row in f64.
    fn plain(&self, layer: usize, sequence: usize, position: usize, head: usize, sink: f32) -> Vec<f64> {
        let GptOssConfig { head_dim, heads, kv_heads, .. } = self.config;
        let kv = self.layer(layer, sequence);
        let mut query =
            query(sequence, position, self.config.query_width())[head * head_dim..][..head_dim].to_vec();
        let turn = turn(position, head_dim);
        rotate(&mut query, &turn[..head_dim / 2], &turn[head_dim / 2..]);
        let seen: Vec<_> = kv.visible(position).map(|p| kv.at(head / (heads / kv_heads), p)).collect();
        let dot = |key: &[f32]| -> f64 {
            key.iter().zip(&query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum::<f64>()
                / (head_dim as f64).sqrt()
        };
        let weights: Vec<f64> = seen.iter().map(|(key, _)| dot(key)).collect();
        let largest = weights.iter().copied().fold(f64::from(sink), f64::max);
        let weights: Vec<f64> = weights.iter().map(|w| (w - largest).exp()).collect();
        let sum = weights.iter().sum::<f64>() + (f64::from(sink) - largest).exp();
        let value = |d: usize| {
            weights.iter().zip(&seen).map(|(w, (_, value))| w * f64::from(value[d])).sum::<f64>() / sum
        };
        (0..head_dim).map(value).collect()
    }

    fn check(&self, rows: &[usize], sinks: &[f32]) {
        for arithmetic in arithmetics().into_iter().filter(|a| a.format == self.kv.shape().format()) {
            // Scores are below 20; as bf16 a query is off by 2^-9, so a weight by 20 * 2^-9, and it is rounded itself.
            let bound = if arithmetic.pairs { 20.0 / 512.0 } else { 2e-5 };
            for layer in 0..2 {
                let got = self.attend(arithmetic, layer, rows, sinks, 2);
                let mut row = 0;
                for (sequence, (&rows, &length)) in rows.iter().zip(&self.lengths).enumerate() {
                    for position in length - rows..length {
                        for (head, sink) in sinks.iter().enumerate() {
                            let at = row * self.config.query_width() + head * self.config.head_dim;
                            let expected = self.plain(layer, sequence, position, head, *sink);
                            for (d, expected) in expected.into_iter().enumerate() {
                                let error = (f64::from(got[at + d]) - expected).abs();
                                assert!(
                                    error <= bound,
                                    "{arithmetic:?} layer {layer} sequence {sequence} position {position} head {head}: \
                                     {}, not {expected}",
                                    got[at + d]
                                );
                            }
                        }
                        row += 1;
                    }
                }
            }
        }
    }
}

fn query(sequence: usize, position: usize, width: usize) -> Vec<f32> {
    noise((sequence * 100_000 + position + 50) as u32).take(width).map(|x| 2.0 * x).collect()
}

fn turn(position: usize, head_dim: usize) -> Vec<f32> {
    let angle = |i: usize| position as f32 * 0.7f32.powi(i as i32);
    (0..head_dim / 2).map(|i| angle(i).cos()).chain((0..head_dim / 2).map(|i| angle(i).sin())).collect()
}

const FORMATS: [KvFormat; 2] = [KvFormat::F32, KvFormat::Bf16];

#[test]
fn one_row_at_every_edge_of_a_block() {
    for format in FORMATS {
        for length in [1, 2, 31, 32, 33, 63, 64, 65, 100, 101, 127, 128, 129, 200] {
            World::new(config(8, 1, 64), format, &[length]).check(&[1], &[0.5; 8]);
        }
    }
}

#[test]
fn one_to_seventy_rows() {
    for format in FORMATS {
        for rows in [2, 3, 16, 17, 70] {
            World::new(config(8, 1, 64), format, &[rows]).check(&[rows], &[0.0; 8]);
            World::new(config(8, 1, 64), format, &[rows + 141]).check(&[rows], &[1.0; 8]);
        }
    }
}

#[test]
fn rows_of_many_sequences_at_once() {
    for format in FORMATS {
        let world = World::new(config(16, 2, 64), format, &[1, 300, 65, 77, 128, 9, 230]);
        world.check(&[1, 1, 1, 13, 40, 9, 1], &[-0.5; 16]);
    }
}

#[test]
fn groups_and_heads_of_other_sizes() {
    for (heads, kv_heads, head_dim) in
        [(1, 1, 2), (3, 3, 6), (6, 2, 32), (5, 1, 64), (12, 1, 96), (9, 1, 128)]
    {
        for format in FORMATS {
            let world = World::new(config(heads, kv_heads, head_dim), format, &[150, 40]);
            world.check(&[17, 1], &vec![0.1; heads]);
        }
    }
}

#[test]
fn a_sink_that_dominates_and_one_that_is_not_there() {
    for format in FORMATS {
        let world = World::new(config(8, 1, 64), format, &[130]);
        let sinks = [50.0, -50.0, f32::NEG_INFINITY, 0.0, 30.0, 88.0, -88.0, 300.0];
        world.check(&[5], &sinks);
    }
}

#[test]
fn long_contexts_in_parts() {
    for format in FORMATS {
        let world =
            World::new(config(8, 1, 64), format, &[PART_TOKENS * 2 + 70, PART_TOKENS, PART_TOKENS + 1]);
        world.check(&[1, 1, 1], &[0.5; 8]);
        world.check(&[3, 2, 33], &[0.5; 8]);
    }
}

/// The bits of a row do not depend on the rows beside it, on other sequences, or on the number of threads.
#[test]
fn a_row_has_the_same_bits_however_it_is_cut() {
    for arithmetic in arithmetics() {
        let lengths = [PART_TOKENS + 90, 150, 2 * PART_TOKENS + 5];
        let world = World::new(config(8, 1, 64), arithmetic.format, &lengths);
        let width = world.config.query_width();
        for layer in 0..2 {
            let bits = |rows: &[usize], threads: usize| {
                let out = world.attend(arithmetic, layer, rows, &[0.3; 8], threads);
                let end = rows[0] * width;
                out[end - width..end].iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
            };
            let alone = bits(&[1, 0, 0], 1);
            for rows in [[1, 1, 1], [2, 0, 0], [95, 0, 3], [17, 150, 1], [100, 2, 40]] {
                for threads in [1, 2, 5] {
                    assert_eq!(bits(&rows, threads), alone, "{arithmetic:?} {rows:?} {threads} threads");
                }
            }
        }
    }
}
