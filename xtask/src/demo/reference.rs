//! The demo model's reference: what another implementation answered, greedily.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
pub struct Reference {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
pub struct Prompt {
    pub name: String,
    pub messages: Vec<Value>,
    pub tools: Option<Value>,
    pub reasoning_effort: String,
    /// What templates saw as today.
    pub date: String,
    pub prompt_token_ids: Vec<u32>,
    /// With the token that ended it.
    pub completion_token_ids: Vec<u32>,
    pub reasoning: Option<String>,
    pub content: Option<String>,
    pub tool_call: Option<ToolCall>,
}

#[derive(Deserialize)]
pub struct ToolCall {
    pub name: String,
    /// JSON as text, compared as text: greedy means the same bytes.
    pub arguments: String,
}

impl Reference {
    pub fn read(path: &Path) -> Result<Reference> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} has another form", path.display()))
    }

    pub fn prompt(&self, name: &str) -> Result<&Prompt> {
        self.prompts
            .iter()
            .find(|p| p.name == name)
            .with_context(|| format!("the reference has no prompt {name}"))
    }

    /// The one day all prompts were rendered on.
    pub fn date(&self) -> Result<String> {
        let first = self.prompts.first().context("the reference has no prompts")?;
        anyhow::ensure!(
            self.prompts.iter().all(|p| p.date == first.date),
            "the prompts of the reference were rendered on different days"
        );
        Ok(first.date.clone())
    }
}
