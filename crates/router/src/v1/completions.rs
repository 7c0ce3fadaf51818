//! `POST /v1/completions`

mod answer;
mod assemble;

use std::sync::Arc;

use admin_api::ModelTask;
use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use node_api::Prompt;
use openai_api::ErrorBody;
use openai_api::completion::parameters::PromptText;
use openai_api::completion::{Completion, CompletionRequest};
use openai_api::stream_options::Delivery;

use self::answer::Answer;
use self::assemble::Continuation;
use super::named::by_field;
use super::sequence::{Caller, Choice, Common, Held, node_request, run};
use crate::app::App;
use crate::body::read_json;
use crate::error::Failure;
use crate::queued::Queued;
use crate::sse;

/// Continues a prompt, without a template.
///
/// Spellings of control tokens in the prompt are control tokens. A text begins with the model's beginning token where its vocabulary
/// says so, and is not given a second one; token ids are taken as they are. With `stream: true` the answer is `text/event-stream`, as
/// for chat completions.
#[utoipa::path(
    post,
    path = "/v1/completions",
    tag = "v1",
    request_body = CompletionRequest,
    responses(
        (status = 200, body = Completion),
        (status = 400, body = ErrorBody, description = "A field is wrong or not supported, or the prompt is longer than the context"),
        (status = 404, body = ErrorBody, description = "No such model"),
        (status = 413, body = ErrorBody, description = "The body is too large"),
        (status = 502, body = ErrorBody, description = "The node was lost"),
        (status = 503, body = ErrorBody, description = "The model is not ready, or too many requests wait"),
        (status = 507, body = ErrorBody, description = "The model does not fit into the node's memory"),
    )
)]
pub async fn complete(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let queued = Arc::new(Queued::new());
    queued.stamped(answer(&app, request, &queued)).await
}

async fn answer(app: &Arc<App>, request: Request<Body>, queued: &Arc<Queued>) -> Result<Response, Failure> {
    let caller = Caller::admit(app, &request)?;
    let request: CompletionRequest = read_json(request, app.config.limits.body_bytes_max).await?;
    let parameters = request.checked()?;
    let model = app.cluster.model_for(&parameters.model, ModelTask::Generate)?;
    tracing::info!(
        model = parameters.model,
        user = parameters.user,
        prompts = parameters.prompts.len(),
        "completion"
    );

    let sampling = &parameters.sampling;
    let per_prompt = |prompt: &PromptText| {
        let (prompt, text) = match prompt {
            PromptText::Text(text) => {
                (Prompt::Text { text: model.begun(text), literal: Vec::new() }, Some(text.clone()))
            }
            PromptText::Tokens(ids) => (Prompt::Tokens(ids.clone()), None),
        };
        (prompt, text.filter(|_| parameters.echo))
    };
    let prompts = parameters.prompts.iter().map(per_prompt);
    let repeated = prompts.flat_map(|prompt| std::iter::repeat_n(prompt, parameters.choices as usize));
    let choices = (0..).zip(repeated).map(|(index, (prompt, echo))| Choice {
        index,
        request: node_request(
            &caller,
            &model,
            prompt,
            sampling,
            sampling.stop.clone(),
            Held::default(),
            index % parameters.choices,
        ),
        assembler: Continuation::new(echo, sampling.stop.clone(), sampling.logprobs),
    });
    let choices: Vec<_> = choices.collect();
    let answer = Answer::new(Common::new("cmpl", &model, parameters.choices), choices.len());
    let events = run(app, choices, queued, |failure| by_field(failure, "prompt"));
    match parameters.delivery {
        Delivery::Whole => Ok(Json(answer.whole(events).await?).into_response()),
        Delivery::Stream { include_usage } => {
            Ok(sse::respond(answer.stream(events, include_usage), app.config.limits.keep_alive).await)
        }
    }
}
