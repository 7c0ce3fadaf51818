//! The demo model's recorded answers.

use serde::Deserialize;
use serde_json::{Value, json};

pub const MODEL: &str = "llm-router/demo-model";
/// What the templates have to see as today for the recorded answers.
pub const DATE: &str = "2025-01-01";

#[derive(Deserialize)]
pub struct Reference {
    pub prompts: Vec<Prompt>,
}

#[derive(Debug, Deserialize)]
pub struct Prompt {
    pub name: String,
    pub messages: Value,
    pub tools: Option<Value>,
    pub reasoning_effort: String,
    pub prompt: String,
    pub prompt_token_ids: Vec<u32>,
    pub completion: String,
    pub completion_token_ids: Vec<u32>,
    pub reasoning: Option<String>,
    pub content: Option<String>,
    pub tool_call: Option<Value>,
}

impl Reference {
    pub fn read() -> Reference {
        let path = engine_testkit::build::workspace_root().join("assets/demo-model/reference.json");
        let text = std::fs::read_to_string(path).expect("the demo model has a reference");
        serde_json::from_str(&text).expect("the reference has the known form")
    }

    pub fn prompt(&self, name: &str) -> &Prompt {
        self.prompts.iter().find(|p| p.name == name).expect("a prompt of the reference")
    }
}

impl Prompt {
    /// A request that answers greedily.
    pub fn request(&self) -> Value {
        let mut body = json!({
            "model": MODEL,
            "messages": self.messages,
            "reasoning_effort": self.reasoning_effort,
            "temperature": 0,
        });
        if let Some(tools) = &self.tools {
            body["tools"] = tools.clone();
        }
        body
    }
}
