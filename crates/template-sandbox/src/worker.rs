//! The child: reads requests from its input, renders, answers on its output, ends with its input.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use chat::{RenderError, RenderRequest, Rendered, Template, TemplateSource};

use crate::CappedAllocator;
use crate::protocol::{
    self, ANSWER_BYTES_MAX, Answer, Ask, EXIT_MEMORY, EXIT_NO_CAP, EXIT_TIME, REQUEST_BYTES_MAX,
};

/// Heap. With the stack below it stays under the 64 MiB that a template may cost.
const HEAP_BYTES_MAX: u32 = 52 << 20;
/// Stack of the thread that renders: the deepest nesting the template engine allows takes half of it.
const STACK_BYTES: usize = 8 << 20;
const _: () = assert!(HEAP_BYTES_MAX as usize + STACK_BYTES <= 60 << 20);
/// The router kills long before this; without a router the child ends itself.
const SELF_DEADLINE: Duration = Duration::from_secs(2);
/// Source text of the templates kept compiled; compiled they take some twenty times as much.
const KEPT_SOURCE_BYTES_MAX: usize = 256 << 10;

type Job = Ask<'static>;

/// Serves until the input ends. Limits the process's memory for good: for a process that does nothing else.
pub fn worker_main(mut stdin: impl Read, mut stdout: impl Write) -> ExitCode {
    if !CappedAllocator::arm(HEAP_BYTES_MAX, EXIT_MEMORY) {
        return exit_code(EXIT_NO_CAP);
    }
    let (jobs, todo) = mpsc::channel::<Job>();
    let (done, results) = mpsc::channel::<Answer>();
    let renderer = std::thread::Builder::new().name("render".to_owned()).stack_size(STACK_BYTES);
    let spawned = renderer.spawn(move || {
        let mut templates = Templates::default();
        for job in todo {
            if done.send(templates.answer(job)).is_err() {
                break;
            }
        }
    });
    if spawned.is_err() {
        return ExitCode::FAILURE;
    }
    let hello = Answer::Hello { version: protocol::VERSION };
    if protocol::write(&mut stdout, &hello, ANSWER_BYTES_MAX).is_err() {
        return ExitCode::FAILURE;
    }
    loop {
        let job = match protocol::read::<Job>(&mut stdin, REQUEST_BYTES_MAX) {
            Ok(Some(job)) => job,
            Ok(None) => return ExitCode::SUCCESS,
            Err(_) => return ExitCode::FAILURE,
        };
        if protocol::write(&mut stdout, &Answer::Started, ANSWER_BYTES_MAX).is_err()
            || jobs.send(job).is_err()
        {
            return ExitCode::FAILURE;
        }
        let answer = match results.recv_timeout(SELF_DEADLINE) {
            Ok(answer) => answer,
            // Returning would leave the rendering thread running until the process is gone; exit takes it along.
            Err(RecvTimeoutError::Timeout) => std::process::exit(EXIT_TIME),
            Err(RecvTimeoutError::Disconnected) => return ExitCode::FAILURE,
        };
        if protocol::write(&mut stdout, &answer, ANSWER_BYTES_MAX).is_err() {
            return ExitCode::FAILURE;
        }
    }
}

fn exit_code(code: i32) -> ExitCode {
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// The templates seen so far, compiled.
#[derive(Default)]
struct Templates {
    by_id: HashMap<String, Template>,
    source_bytes: usize,
}

impl Templates {
    fn answer(&mut self, ask: Job) -> Answer {
        let id = ask.template.into_owned();
        if !self.by_id.contains_key(&id) {
            let Some(source) = ask.source else {
                return Answer::UnknownTemplate;
            };
            if let Err(error) = self.keep(id.clone(), source.into_owned(), ask.nonce) {
                return Answer::Done(Err(error));
            }
        }
        let refused = ask.schemas.iter().find_map(|schema| {
            let message = grammar::check(&schema.text).err()?.to_string();
            Some(RenderError::Request { param: schema.param.clone(), message })
        });
        Answer::Done(refused.map_or_else(|| self.render(&id, &ask.request), Err))
    }

    fn keep(&mut self, id: String, source: TemplateSource, nonce: u64) -> Result<(), RenderError> {
        let bytes = source.text.len();
        if self.source_bytes + bytes > KEPT_SOURCE_BYTES_MAX {
            self.by_id.clear();
            self.source_bytes = 0;
        }
        self.by_id.insert(id, Template::compile(source, nonce)?);
        self.source_bytes += bytes;
        Ok(())
    }

    fn render(&self, id: &str, request: &RenderRequest) -> Result<Rendered, RenderError> {
        match self.by_id.get(id) {
            Some(template) => template.render(request),
            None => Err(RenderError::Failed { message: "the template was not kept".to_owned() }),
        }
    }
}
