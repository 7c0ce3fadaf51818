//! `llm-router chat`: a conversation that streams, at a terminal or through a pipe.

mod reply;

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::Context;
use crate::arguments::ChatArguments;
use crate::client::Client;
use crate::output;

const HELP: &str = "/system TEXT  set the system message and start anew (without TEXT: remove it)\n\
                    /reset        forget the conversation\n\
                    /help         this list\n\
                    /quit         end; so does Ctrl-D. Ctrl-C stops a reply";

struct Conversation<'a> {
    context: &'a Context,
    client: Client,
    arguments: ChatArguments,
    system: Option<String>,
    messages: Vec<Value>,
}

/// What the line of a person asks for.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Nothing,
    Say(&'a str),
    System(&'a str),
    Reset,
    Help,
    Quit,
    Unknown(&'a str),
}

pub fn run(context: &Context, runtime: &Runtime, arguments: ChatArguments) -> Result<ExitCode> {
    let client = context.client(&arguments.client)?;
    // A model that does not exist is said before the first prompt, not after it.
    runtime.block_on(client.get::<Value>(&["api", "models", &arguments.model]))?;
    let system = arguments.system.clone();
    let mut chat = Conversation { context, client, system, arguments, messages: Vec::new() };
    if let Some(message) = chat.arguments.message.clone() {
        chat.say(runtime, &message)?;
    } else if std::io::stdin().is_terminal() {
        chat.at_terminal(runtime)?;
    } else {
        chat.through_pipe(runtime)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Conversation<'_> {
    fn at_terminal(&mut self, runtime: &Runtime) -> Result<()> {
        eprintln!("{} at {}; /help lists what else you can write", self.arguments.model, self.client.base());
        let mut editor = rustyline::DefaultEditor::new().context("cannot use this terminal")?;
        loop {
            let line = match editor.readline("> ") {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => return Ok(()),
                Err(e) => return Err(e).context("cannot read from this terminal"),
            };
            // Only for the arrow keys of this conversation: without it the line is lost, nothing else.
            let _ = editor.add_history_entry(&line);
            match self.take(runtime, &line) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => output::print_error(&error, self.context.json),
            }
        }
    }

    /// One line, one message; the first failure ends it, because nobody is there to read it and go on.
    fn through_pipe(&mut self, runtime: &Runtime) -> Result<()> {
        for line in std::io::stdin().lock().lines() {
            if !self.take(runtime, &line.context("cannot read the input")?)? {
                break;
            }
        }
        Ok(())
    }

    /// `false` when the person wants to end.
    fn take(&mut self, runtime: &Runtime, line: &str) -> Result<bool> {
        match parse(line) {
            Line::Nothing => {}
            Line::Say(text) => self.say(runtime, text)?,
            Line::System(text) => {
                self.system = Some(text.to_owned()).filter(|t| !t.is_empty());
                self.messages.clear();
                eprintln!(
                    "{}",
                    if self.system.is_some() { "system message set" } else { "no system message" }
                );
            }
            Line::Reset => {
                self.messages.clear();
                eprintln!("conversation forgotten");
            }
            Line::Help => eprintln!("{HELP}"),
            Line::Quit => return Ok(false),
            Line::Unknown(word) => eprintln!("{word} is no command; /help lists them"),
        }
        Ok(true)
    }

    fn say(&mut self, runtime: &Runtime, text: &str) -> Result<()> {
        self.messages.push(json!({"role": "user", "content": text}));
        let answered = runtime.block_on(self.answer());
        match answered {
            Ok(Some(answer)) => {
                self.messages.push(json!({"role": "assistant", "content": answer}));
                Ok(())
            }
            // What was not answered to the end is not part of the conversation.
            Ok(None) => {
                self.messages.pop();
                Ok(())
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    /// The content; `None` when Ctrl-C stopped it.
    async fn answer(&self) -> Result<Option<String>> {
        let work = async {
            let events = self.client.chat(&self.request()).await?;
            reply::show(events, !self.arguments.no_reasoning, self.context.json).await
        };
        tokio::select! {
            answer = work => answer.map(Some),
            stopped = tokio::signal::ctrl_c() => {
                stopped.context("cannot wait for Ctrl-C")?;
                println!("{}", if output::stdout_has_style() { "\u{1b}[0m" } else { "" });
                eprintln!("stopped");
                std::io::stdout().flush()?;
                Ok(None)
            }
        }
    }

    fn request(&self) -> Value {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> = system.chain(self.messages.iter().cloned()).collect();
        let mut body = json!({
            "model": self.arguments.model,
            "messages": messages,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body[name] = value;
            }
        };
        set("temperature", self.arguments.temperature.map(|t| json!(t)));
        set("max_completion_tokens", self.arguments.max_tokens.map(|t| json!(t)));
        set("reasoning_effort", self.arguments.reasoning_effort.as_ref().map(|e| json!(e)));
        body
    }
}

fn parse(line: &str) -> Line<'_> {
    let line = line.trim();
    if !line.starts_with('/') {
        return if line.is_empty() { Line::Nothing } else { Line::Say(line) };
    }
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match word {
        "/system" => Line::System(rest.trim()),
        "/reset" => Line::Reset,
        "/help" | "/?" => Line::Help,
        "/quit" | "/exit" => Line::Quit,
        word => Line::Unknown(word),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        let cases = [
            ("", Line::Nothing),
            ("  \t", Line::Nothing),
            (" hello / there ", Line::Say("hello / there")),
            ("/system You are terse. ", Line::System("You are terse.")),
            ("/system", Line::System("")),
            ("/reset", Line::Reset),
            ("/help", Line::Help),
            ("/quit", Line::Quit),
            ("/rset now", Line::Unknown("/rset")),
        ];
        for (line, expected) in cases {
            assert_eq!(parse(line), expected, "{line:?}");
        }
    }
}
