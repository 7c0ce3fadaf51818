//! What was measured so far, by row and side.

use std::collections::BTreeMap;

use super::ours::ROUNDED_SUFFIX;
use crate::record::Row;
use crate::statistics::median;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Ours,
    Peer,
}

#[derive(Debug, Default)]
pub struct Samples {
    values: BTreeMap<String, BTreeMap<Side, Vec<f64>>>,
    /// Parts that could not be measured, in words.
    pub failures: Vec<String>,
}

impl Samples {
    pub fn extend(&mut self, side: Side, row: &str, values: &[f64]) {
        eprintln!("  {side:?} {row}: {}", words(values));
        self.values.entry(row.to_owned()).or_default().entry(side).or_default().extend(values);
    }

    /// Of every row that we have a figure of; `limit` says what could be reached, in the row's own unit. The peer knows no
    /// options: a row of ours with other activations has the peer of the row without.
    pub fn rows(&self, limit: impl Fn(&str) -> Option<f64>) -> Vec<Row> {
        let rows = self.values.iter().filter_map(|(name, sides)| {
            let ours = sides.get(&Side::Ours).filter(|values| !values.is_empty())?;
            let base = name.strip_suffix(ROUNDED_SUFFIX).unwrap_or(name);
            let peer = self.values.get(base).and_then(|sides| sides.get(&Side::Peer));
            let peer = peer.filter(|values| !values.is_empty());
            let row = Row::new(name, unit(name), median(&mut ours.clone()), ours.len() as u32)
                .peer(peer_name(name), peer.map(|values| median(&mut values.clone())));
            Some(match limit(name) {
                Some(limit) => row.limit(limit),
                None => row,
            })
        });
        rows.collect()
    }
}

fn words(values: &[f64]) -> String {
    values.iter().map(|v| format!("{v:.2}")).collect::<Vec<_>>().join(" ")
}

fn unit(row: &str) -> &'static str {
    match row {
        "load-first-token" => "s",
        "load-private-mib" => "MiB",
        _ if row.ends_with("-first-ms") => "ms",
        _ => "tok/s",
    }
}

fn peer_name(row: &str) -> &'static str {
    match row {
        "decode-8bit-2t" => "llama.cpp Q8_0",
        _ if row.contains("-streams") || row.starts_with("load-") => "llama-server BF16",
        _ => "llama.cpp BF16",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_medians_and_need_a_figure_of_ours() {
        let mut samples = Samples::default();
        samples.extend(Side::Ours, "decode-8bit-2t", &[3.0, 1.0]);
        samples.extend(Side::Ours, "decode-8bit-2t", &[2.0]);
        samples.extend(Side::Peer, "decode-8bit-2t", &[1.5]);
        samples.extend(Side::Peer, "prefill-512-2t", &[9.0]);
        samples.extend(Side::Ours, "prefill-512-2t-activations-bf16", &[7.0]);
        samples.extend(Side::Ours, "small-4-streams-first-ms", &[8.0]);
        let rows = samples.rows(|row| (row == "decode-8bit-2t").then_some(4.0));
        let expected = [
            Row::new("decode-8bit-2t", "tok/s", 2.0, 3).peer("llama.cpp Q8_0", Some(1.5)).limit(4.0),
            Row::new("prefill-512-2t-activations-bf16", "tok/s", 7.0, 1).peer("llama.cpp BF16", Some(9.0)),
            Row::new("small-4-streams-first-ms", "ms", 8.0, 1),
        ];
        assert_eq!(rows, expected);
    }
}
