//! What it costs to hold an answer to a schema, by the tokens of a `tokenizer.json`: `constraint-cost FILE`.
//!
//! Answers are drawn at random from what may come, which leads to more of what is rare than a model would.

use std::{path::Path, process::ExitCode, time::Instant};

use engine_sdk::{Tokenize as _, Tokenizer, philox};
use grammar::{Kind, Vocabulary};

const SCHEMA: &str = r#"{"type": "object", "properties": {
  "name": {"type": "string", "maxLength": 80},
  "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 8},
  "kind": {"enum": ["person", "place", "thing"]},
  "size": {"type": "number"},
  "parts": {"type": "array", "maxItems": 6, "items": {"type": "object", "properties": {
    "id": {"type": "integer"}, "note": {"type": "string", "maxLength": 200}}, "required": ["id"]}}
}, "required": ["name", "kind", "size"]}"#;
/// As the router writes it for a harmony model, up to the thoughts.
const THOUGHTS: &str = "start: text <|end|>\ntext: /(?s:.)+/\n";
const TOKENS: u32 = 4000;

fn main() -> ExitCode {
    let Some(file) = std::env::args().nth(1) else {
        eprintln!("usage: constraint-cost tokenizer.json");
        return ExitCode::FAILURE;
    };
    match run(Path::new(&file)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let tokenizer = Tokenizer::from_file(file)?;
    let size = tokenizer.vocabulary_size();
    let end = (0..size).find(|id| tokenizer.piece(*id).is_some_and(|p| p.bytes == b"<|end|>"));
    let begun = Instant::now();
    let resident = resident();
    let piece = |id| tokenizer.piece(id).map(|piece| (piece.bytes, piece.control));
    let vocabulary = Vocabulary::new(size, piece, end.as_slice())?;
    let mib = (self::resident() - resident) >> 20;
    println!("{size} tokens: tree in {:?}, {mib} MiB resident", begun.elapsed());
    for (name, kind, text) in [
        ("schema", Kind::JsonSchema, SCHEMA),
        ("any object", Kind::JsonSchema, r#"{"type": "object"}"#),
        ("thoughts", Kind::Lark, THOUGHTS),
    ] {
        let begun = Instant::now();
        let mut answer = vocabulary.constrain(kind, text)?;
        let compiled = begun.elapsed();
        let mut times = Vec::new();
        for n in 0..TOKENS {
            let possible: Vec<u32> =
                (0..size).filter(|id| Some(*id) != end && answer.next().contains(*id)).collect();
            if possible.is_empty() {
                answer = vocabulary.constrain(kind, text)?;
                continue;
            }
            let at = (philox::uniform(7, n) * possible.len() as f64) as usize;
            let begun = Instant::now();
            answer.push(possible[at])?;
            times.push(begun.elapsed());
        }
        times.sort();
        let share = |percent: usize| times[(times.len() - 1) * percent / 100];
        println!(
            "{name}: compiled in {compiled:?}; a token: median {:?}, 99th of 100 {:?}, worst {:?}",
            share(50),
            share(99),
            share(100)
        );
    }
    Ok(())
}

/// Bytes of memory in use; 0 where the system does not say.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    pages.and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok()).unwrap_or(0) * 4096
}
