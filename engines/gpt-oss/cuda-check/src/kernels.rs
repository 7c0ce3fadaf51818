//! `compile`: every target's image, and what each kernel uses against the table beside the kernels.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use gpt_oss_cuda::compile::{TARGETS, Uses, compile, program_of};
use serde_json::json;

use crate::report::Report;

/// Beside the kernels: the name of each, and the registers that a thread of it may use.
const TABLE: &str = "registers.txt";

pub fn run(out: &Path, kernels: &Path, report: &mut Report) -> Result<()> {
    let path = kernels.join(TABLE);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let table = table(&text)?;
    let program = program_of(kernels).map_err(anyhow::Error::msg)?;
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    for target in TARGETS {
        let compiled = compile(&program, target)?;
        let path = out.join(&compiled.name);
        std::fs::write(&path, &compiled.image).with_context(|| format!("cannot write {}", path.display()))?;
        let complaints = check(&table, &compiled.uses, target.starts_with("compute_"));
        let most = compiled.uses.iter().map(|u| u.registers).max();
        let row = json!({ "target": target, "bytes": compiled.image.len(), "kernels": compiled.uses.len(),
            "registers_max": most, "complaints": complaints });
        if complaints.is_empty() { report.seen("image", row) } else { report.failed("image", row) }
    }
    Ok(())
}

fn table(text: &str) -> Result<BTreeMap<&str, u32>> {
    let mut table = BTreeMap::new();
    for line in text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kernel, registers] = words[..] else { bail!("{TABLE}: {line:?} is not a kernel and a number") };
        let registers = registers.parse().with_context(|| format!("{TABLE}: {line:?} has no number"))?;
        table.insert(kernel, registers);
    }
    Ok(table)
}

/// What is not as the table says. `is_text`: nothing is known before a driver compiles it.
fn check(table: &BTreeMap<&str, u32>, uses: &[Uses], is_text: bool) -> Vec<String> {
    if is_text {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    for Uses { kernel, registers, stack, spills } in uses {
        match table.get(kernel.as_str()) {
            None => complaints.push(format!("{kernel} is not in {TABLE}")),
            Some(most) if registers > most => {
                complaints.push(format!("{kernel} uses {registers} registers and may use {most}"));
            }
            Some(_) => {}
        }
        if stack + spills > 0 {
            complaints.push(format!("{kernel} has {stack} bytes of stack and {spills} of spills"));
        }
    }
    for kernel in table.keys().filter(|k| uses.iter().all(|u| u.kernel != **k)) {
        complaints.push(format!("{kernel} is in {TABLE} and was not compiled"));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_as_the_table_says_is_told() {
        let table = table("# kernel registers\nembed 32\nroute 40\n").expect("a table");
        let uses =
            |kernel: &str, registers, spills| Uses { kernel: kernel.into(), registers, stack: 0, spills };
        let good = [uses("embed", 32, 0), uses("route", 8, 0)];
        assert_eq!(check(&table, &good, false), Vec::<String>::new());
        let bad = [uses("embed", 33, 4), uses("other", 8, 0)];
        let complaints = check(&table, &bad, false).join("\n");
        for part in ["embed uses 33", "embed has 0 bytes of stack and 4", "other is not in", "route is in"] {
            assert!(complaints.contains(part), "{part}: {complaints}");
        }
        assert_eq!(check(&table, &[], true), Vec::<String>::new());
    }

    #[test]
    fn lines_that_say_nothing_are_refused() {
        assert!(table("embed\n").is_err());
        assert!(table("embed many\n").is_err());
    }
}
