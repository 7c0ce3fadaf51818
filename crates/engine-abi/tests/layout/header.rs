//! Reads the names out of the header. It knows this header's plain style, not C.

#[derive(Debug)]
pub struct Struct {
    pub name: String,
    pub fields: Vec<String>,
}

#[derive(Debug, Default)]
pub struct Header {
    pub structs: Vec<Struct>,
    pub numbers: Vec<String>,
    pub strings: Vec<String>,
}

pub fn parse(header: &str) -> Header {
    let text = without_comments(header);
    let mut out = Header::default();
    for line in text.lines() {
        if let Some(rest) = line.trim().strip_prefix("#define LLMR_") {
            let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
            match value.trim() {
                // The include guard and the export attribute have no value to compare.
                "" => {}
                v if v.starts_with('"') => out.strings.push(format!("LLMR_{name}")),
                v if v.starts_with(|c: char| c.is_ascii_digit()) => out.numbers.push(format!("LLMR_{name}")),
                _ => {}
            }
        }
    }
    let mut rest = text.as_str();
    while let Some(at) = rest.find("enum {") {
        rest = &rest[at + "enum {".len()..];
        let (body, after) = rest.split_once('}').expect("an enum ends");
        out.numbers
            .extend(body.split(',').map(|item| item.split('=').next().unwrap_or("").trim().to_owned()));
        rest = after;
    }
    let mut rest = text.as_str();
    while let Some(at) = rest.find("typedef struct llmr_") {
        rest = &rest[at + "typedef struct ".len()..];
        let brace = rest.find('{').unwrap_or(usize::MAX);
        if rest.find(';').expect("a typedef ends") < brace {
            continue;
        }
        let name = rest[..brace].trim().to_owned();
        let (body, after) = rest[brace + 1..].split_once('}').expect("a struct ends");
        out.structs.push(Struct { name, fields: body.split(';').filter_map(field_name).collect() });
        rest = after;
    }
    out
}

/// `uint64_t needed` -> needed; `char reason[64]` -> reason; `void (*log)(...)` -> log.
fn field_name(declaration: &str) -> Option<String> {
    let declaration = declaration.trim();
    if declaration.is_empty() {
        return None;
    }
    if let Some((_, rest)) = declaration.split_once("(*") {
        return Some(rest.split(')').next()?.to_owned());
    }
    let before_array = declaration.split('[').next()?;
    Some(before_array.rsplit([' ', '*']).next()?.to_owned())
}

pub fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("/*") {
        out.push_str(before);
        rest = after.split_once("*/").expect("a comment ends").1;
    }
    out + rest
}

/// A program that prints `name<tab>value` for everything.
pub fn program(header: &Header) -> String {
    let mut body = String::new();
    for s in &header.structs {
        let name = &s.name;
        body += &format!("printf(\"{name}\\tsize %u\\n\", (unsigned)sizeof({name}));\n");
        for f in &s.fields {
            body += &format!(
                "printf(\"{name}.{f}\\tat %u size %u\\n\", (unsigned)offsetof({name}, {f}), \
                 (unsigned)sizeof((({name} *)0)->{f}));\n"
            );
        }
    }
    for n in &header.numbers {
        body += &format!("printf(\"{n}\\t%ld\\n\", (long){n});\n");
    }
    for s in &header.strings {
        body += &format!("printf(\"{s}\\t%s\\n\", {s});\n");
    }
    format!("#include <stdio.h>\n#include \"llmr_engine.h\"\nint main(void) {{\n{body}return 0;\n}}\n")
}
