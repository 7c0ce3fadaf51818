use super::*;

/// One token for each byte, and `<added>` wherever it stands: as llama.cpp finds added tokens in any text.
struct Letters;

const BEGIN: u32 = 256;
const LONGER: u32 = 257;
const ADDED: u32 = 258;
const SPACES: u32 = 259;
const TRIMS: u32 = 260;

impl Ordinary for Letters {
    fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, Status> {
        let mut ids = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(behind) = rest.strip_prefix("<added>") {
                ids.push(ADDED);
                rest = behind;
            } else {
                let next = rest.char_indices().nth(1).map_or(rest.len(), |(at, _)| at);
                ids.extend(rest[..next].bytes().map(u32::from));
                rest = &rest[next..];
            }
        }
        Ok(ids)
    }
}

fn tokenizer() -> LlamaTokenizer<Letters> {
    let token = |bytes: &[u8]| Token {
        bytes: bytes.to_vec(),
        control: false,
        added: false,
        strips_left: false,
        strips_right: false,
        ends: false,
    };
    let mut tokens: Vec<Token> = (0..=255u8).map(|byte| token(&[byte])).collect();
    tokens.push(Token { control: true, ..token(b"<|a|>") });
    tokens.push(Token { control: true, ends: true, ..token(b"<|a|>b<|a|>") });
    tokens.push(Token { added: true, ..token(b"<added>") });
    tokens.push(Token { added: true, ..token(b"   ") });
    tokens.push(Token { control: true, strips_left: true, strips_right: true, ..token(b"<|t|>") });
    LlamaTokenizer::over(Arc::new(Letters), tokens)
}

/// Ids, with bytes as their letters.
fn words(ids: &[u32]) -> String {
    ids.iter()
        .map(|id| u8::try_from(*id).map_or_else(|_| format!("[{id}]"), |b| char::from(b).to_string()))
        .collect()
}

fn check(text: &str, literal: &[(usize, usize)], expected: &str) {
    let literal: Vec<Range<usize>> = literal.iter().map(|&(start, end)| start..end).collect();
    assert_eq!(words(&tokenizer().encode(text, &literal).unwrap()), expected, "{text:?} {literal:?}");
}

#[test]
fn spellings_become_tokens_the_longest_first() {
    check("x<|a|>y", &[], "x[256]y");
    check("<|a|>b<|a|>", &[], "[257]");
    check("<|a|>b<|a|>b<|a|>", &[], "[257]b[256]");
    check("", &[], "");
    check("<|a|", &[], "<|a|");
}

#[test]
fn in_a_literal_range_they_stay_text() {
    check("<|a|>", &[(0, 5)], "<|a|>");
    check("<|a|><|a|>", &[(0, 5)], "<|a|>[256]");
    // One byte of it is enough.
    check("<|a|>x", &[(4, 6)], "<|a|>x");
    // The longer one is not there, so a shorter one in it may be.
    check("<|a|>b<|a|>", &[(6, 11)], "[256]b<|a|>");
    // An empty range has no byte.
    check("<|a|>", &[(2, 2)], "[256]");
}

#[test]
fn an_added_marker_in_literal_text_becomes_its_bytes() {
    check("x<added>y", &[], "x[258]y");
    check("x<added>y", &[(1, 8)], "x<added>y");
}

#[test]
fn ordinary_additions_are_found_in_literal_text_too() {
    check("a   b", &[(0, 5)], "a[259]b");
}

#[test]
fn white_space_that_a_token_takes_along_is_never_literal_text() {
    check("a  <|t|> b", &[], "a[260]b");
    check("a  <|t|> b", &[(0, 2)], "a  [260]b");
    check("a <|t|> b", &[(7, 8)], "a[260] b");
}

#[test]
fn what_goes_around_a_text_is_there_once() {
    let mut tokenizer = tokenizer();
    tokenizer.around = (vec![BEGIN], vec![TRIMS]);
    let check = |text: &str, literal: Range<usize>, expected: &str| {
        let ids = tokenizer.encode_to_embed(text, std::slice::from_ref(&literal)).unwrap();
        assert_eq!(words(&ids), expected, "{text}");
    };
    check("x", 0..0, "[256]x[260]");
    check("<|a|>x<|t|>", 0..0, "[256]x[260]");
    check("<|a|>x", 0..5, "[256]<|a|>x[260]");
}

#[test]
fn ranges_that_cannot_be_are_refused() {
    let tokenizer = tokenizer();
    for ranges in [&[(0, 9)][..], &[(2, 1)], &[(0, 2), (1, 3)], &[(1, 2)]] {
        let ranges: Vec<Range<usize>> = ranges.iter().map(|&(start, end)| start..end).collect();
        let status = tokenizer.encode("ä<|a|>", &ranges).unwrap_err();
        assert_eq!((&*status.reason, &*status.param), (reason::INVALID_PROMPT, "literal"), "{ranges:?}");
    }
}

#[test]
fn pieces_say_what_is_control_and_what_ends() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.piece(BEGIN), Some(Piece { bytes: b"<|a|>", control: true }));
    assert_eq!(tokenizer.piece(ADDED), Some(Piece { bytes: b"<added>", control: false }));
    assert_eq!(tokenizer.piece(SPACES).map(|piece| piece.control), Some(false));
    assert_eq!(tokenizer.piece(TRIMS + 1), None);
    assert_eq!(tokenizer.end_tokens(), [LONGER]);
}
