//! `POST /v1/chat/completions`

mod answer;
mod assemble;
mod prompt;
mod schemas;

use std::sync::Arc;

use admin_api::ModelTask;
use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use openai_api::ErrorBody;
use openai_api::chat::{ChatCompletion, ChatRequest};
use openai_api::stream_options::Delivery;

use self::answer::Answer;
use self::assemble::Reply;
use self::schemas::{Schemas, of_response_format, of_strict_tools};
use super::named::by_field;
use super::sequence::{Caller, Choice, Common, node_request, run};
use crate::app::App;
use crate::body::read_json;
use crate::error::Failure;
use crate::queued::Queued;
use crate::sse;

/// Answers a conversation.
///
/// With `stream: true` the answer is `text/event-stream`: one `ChatChunk` an event, comments while a model loads, and
/// `[DONE]` at the end. A stream that fails ends with an event that has an error body, and without `[DONE]`.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = "v1",
    request_body = ChatRequest,
    responses(
        (status = 200, body = ChatCompletion),
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
    let request: ChatRequest = read_json(request, app.config.limits.body_bytes_max).await?;
    let parameters = request.checked()?;
    let model = app.cluster.model_for(&parameters.model, ModelTask::Generate)?;
    let schemas = Schemas::of(&parameters);
    let prompt = prompt::render(app, &model, &parameters, &schemas).await?;
    if prompt.held.constraint.is_some() {
        app.cluster.check_constraint(&model, schemas.param())?;
    }
    tracing::info!(model = parameters.model, user = parameters.user, choices = parameters.choices, "chat");

    let tools: Vec<String> = match parameters.tool_use {
        openai_api::chat::ToolUse::None => Vec::new(),
        _ => parameters.tools.iter().map(|t| t.name.clone()).collect(),
    };
    let choices = (0..parameters.choices).map(|index| Choice {
        index,
        // Stop strings are looked for here, in the content alone; the engine would find them in reasoning and calls too.
        request: node_request(
            &caller,
            &model,
            prompt.for_node(),
            &parameters.sampling,
            Vec::new(),
            prompt.held.clone(),
            index,
        ),
        assembler: Reply::new(
            &model.manifest.architecture,
            &prompt.rendered,
            tools.clone(),
            parameters.sampling.stop.clone(),
            parameters.parallel_tool_calls,
        ),
    });
    let in_our_words: fn(Failure) -> Failure = match schemas.param() {
        "response_format" => |failure| by_field(of_response_format(of_tool_choice(failure)), "messages"),
        _ => |failure| by_field(of_strict_tools(of_tool_choice(failure)), "messages"),
    };
    let events = run(app, choices.collect(), queued, in_our_words);
    let common = Common::new("chatcmpl", &model, parameters.choices);
    let answer = Answer::new(
        common,
        parameters.choices,
        parameters.sampling.logprobs.is_some(),
        parameters.service_tier_named,
    );
    match parameters.delivery {
        Delivery::Whole => Ok(Json(answer.whole(events).await?).into_response()),
        Delivery::Stream { include_usage } => {
            Ok(sse::respond(answer.stream(events, include_usage), app.config.limits.keep_alive).await)
        }
    }
}

/// An engine's refusal of `begin_with`, which the caller never wrote, as one of what made us write it.
fn of_tool_choice(failure: Failure) -> Failure {
    if failure.code != "invalid_sampling" || !failure.message.contains("begin_with") {
        return failure;
    }
    let message = "`tool_choice` is `required`, and the engine of this model cannot hold a reply to one of several calls";
    let mut refused = Failure::bad_request("unsupported_parameter", message)
        .param("tool_choice")
        .hint("use `auto`, or name the function");
    refused.log = Some(failure.message.into());
    refused
}
