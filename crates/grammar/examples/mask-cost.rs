//! What it costs to hold an answer to a schema: microseconds from a token to the set of tokens that may come next.
//!
//! ```text
//! cargo run --release -p grammar --example mask-cost -- DATE COMMIT >> bench/results/llama-MACHINE.jsonl
//! ```
//! writes a line of the benchmarks' form for each row, and on stderr what it saw besides. Answers are drawn at random from what may
//! come, which leads to more of what is rare than a model would.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use grammar::{GrammarError, Kind, Vocabulary};

const SCHEMA: &str = r#"{"type": "object", "properties": {
  "name": {"type": "string", "maxLength": 80},
  "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 8},
  "kind": {"enum": ["person", "place", "thing"]},
  "size": {"type": "number"},
  "parts": {"type": "array", "maxItems": 6, "items": {"type": "object", "properties": {
    "id": {"type": "integer"}, "note": {"type": "string", "maxLength": 200}}, "required": ["id"]}}
}, "required": ["name", "kind", "size"]}"#;
const LETTERS: &[u8] = b"etaoinshrdlucmfwypvbgkjxqz";
/// As many as the largest vocabularies have.
const TOKENS: u32 = 200_000;
/// Of an answer; a new one begins where one is over.
const PUSHES: usize = 4000;
/// Rounds, each with other draws. The row is the median of their medians.
const ROUNDS: u64 = 7;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [date, commit] = words.as_slice() else {
        eprintln!("usage: mask-cost DATE COMMIT");
        return ExitCode::FAILURE;
    };
    match run() {
        Ok(rows) => {
            for (row, micros) in rows {
                let line = serde_json::json!({
                    "date": date, "commit": commit, "row": row, "unit": "us", "ours": (micros * 1000.0).round() / 1000.0,
                    "peer": null, "peer_name": null, "limit": null, "n": ROUNDS,
                });
                println!("{line}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<[(&'static str, f64); 2], GrammarError> {
    let pieces = pieces();
    let end = TOKENS - 1;
    let begun = Instant::now();
    let vocabulary = Vocabulary::new(TOKENS, |id| Some((&*pieces[id as usize], id == end)), &[end])?;
    eprintln!("{TOKENS} tokens: tree in {:?}", begun.elapsed());
    let mut rounds = [Vec::new(), Vec::new()];
    for round in 1..=ROUNDS {
        let begun = Instant::now();
        let mut answer = vocabulary.constrain(Kind::JsonSchema, SCHEMA)?;
        let compiled = begun.elapsed();
        let mut times: Vec<Duration> = Vec::new();
        let mut noise = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        while times.len() < PUSHES {
            let possible: Vec<u32> = (0..end).filter(|id| answer.next().contains(*id)).collect();
            if possible.is_empty() {
                answer = vocabulary.constrain(Kind::JsonSchema, SCHEMA)?;
                continue;
            }
            // Xorshift.
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            let id = possible[(noise % possible.len() as u64) as usize];
            let begun = Instant::now();
            answer.push(id)?;
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        let share = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
        eprintln!(
            "compiled in {compiled:?}; a token: median {:.1} us, 99th of 100 {:.1} us, worst {:.0} us",
            share(50),
            share(99),
            share(100)
        );
        rounds[0].push(share(50));
        rounds[1].push(share(99));
    }
    let medians = rounds.map(|mut figures| {
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    });
    Ok([("grammar-mask-us", medians[0]), ("grammar-mask-p99-us", medians[1])])
}

/// Bytes, what JSON is full of, and letters by two, three and four, with a space before them or without; the last is a control token.
fn pieces() -> Vec<Vec<u8>> {
    let mut pieces: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    pieces.extend(
        ["{\"", "\":", "\",", "\": \"", "\", \"", "\"}", "}, {", "true", "[]"].map(|p| p.as_bytes().to_vec()),
    );
    let mut last: Vec<Vec<u8>> = LETTERS.iter().map(|letter| vec![*letter]).collect();
    while pieces.len() < TOKENS as usize {
        pieces.extend(last.iter().map(|word| [b" ", &**word].concat()));
        last = last
            .iter()
            .flat_map(|word| LETTERS.iter().map(move |letter| [&**word, &[*letter]].concat()))
            .collect();
        pieces.extend(last.iter().cloned());
    }
    pieces.truncate(TOKENS as usize - 1);
    pieces.push(b"<|end|>".to_vec());
    pieces
}
