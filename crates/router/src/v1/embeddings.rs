//! `POST /v1/embeddings`

use std::pin::pin;
use std::sync::Arc;

use admin_api::ModelTask;
use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{self, StreamExt as _};
use http::StatusCode;
use node_api::{GenerateRequest, Prompt};
use openai_api::ErrorBody;
use openai_api::completion::parameters::PromptText;
use openai_api::embedding::{
    Embedding, EmbeddingList, EmbeddingRequest, EmbeddingUsage, EncodingFormat, Numbers,
};

use super::named::by_field;
use super::sequence::Caller;
use crate::app::App;
use crate::body::read_json;
use crate::cluster::Registered;
use crate::error::{Failure, Retry};
use crate::generate::{Step, generate};
use crate::metrics::Answer;
use crate::queued::Queued;

/// Inputs of one request that are on nodes, or wait for one, at a time: enough to fill a batch, and others get their turn.
const IN_FLIGHT_MAX: usize = 32;

/// Makes directions out of texts: the closer two are, the more alike the texts.
///
/// Only for models whose `tasks` in `/api/models` have `embed`. Embeddings have the length 1. A text is taken with what the
/// model expects around it; spellings of control tokens in it are control tokens; token ids are taken as they are.
#[utoipa::path(
    post,
    path = "/v1/embeddings",
    tag = "v1",
    request_body = EmbeddingRequest,
    responses(
        (status = 200, body = EmbeddingList),
        (status = 400, body = ErrorBody, description = "A field is wrong or not supported, the model has no embeddings, or an input is longer than the context"),
        (status = 404, body = ErrorBody, description = "No such model"),
        (status = 413, body = ErrorBody, description = "The body is too large"),
        (status = 502, body = ErrorBody, description = "The node was lost"),
        (status = 503, body = ErrorBody, description = "The model is not ready, or too many requests wait"),
        (status = 507, body = ErrorBody, description = "The model does not fit into the node's memory"),
    )
)]
pub async fn embed(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let queued = Arc::new(Queued::new());
    queued.stamped(answer(&app, request, &queued)).await
}

async fn answer(app: &Arc<App>, request: Request<Body>, queued: &Arc<Queued>) -> Result<Response, Failure> {
    let caller = Caller::admit(app, &request)?;
    let request: EmbeddingRequest = read_json(request, app.config.limits.body_bytes_max).await?;
    let parameters = request.checked()?;
    let model = app.cluster.model_for(&parameters.model, ModelTask::Embed)?;
    if let Some(size) = model.manifest.embedding_size {
        check_dimensions(parameters.dimensions, size as usize)?;
    }
    let count = parameters.inputs.len();
    tracing::info!(model = parameters.model, user = parameters.user, inputs = count, "embeddings");

    let several = count > 1;
    let requests: Vec<_> = (0u32..)
        .zip(parameters.inputs)
        .map(|(index, input)| (index, node_request(&caller, &model, input)))
        .collect();
    let mut made = stream::iter(requests)
        .map(|(index, request)| {
            let field = if several { format!("input[{index}]") } else { "input".to_owned() };
            let made = one(Arc::clone(app), request, Arc::clone(queued));
            async move { made.await.map_err(|failure| by_field(failure, &field)) }
        })
        .buffered(IN_FLIGHT_MAX);
    let mut data = Vec::with_capacity(count);
    let mut usage = EmbeddingUsage::default();
    // The first failure ends the others, with the stream they are in.
    while let Some(made) = made.next().await {
        let Made { numbers, prompt_tokens } = made?;
        // For models whose registration did not tell.
        check_dimensions(parameters.dimensions, numbers.len())?;
        usage.prompt_tokens = usage.prompt_tokens.saturating_add(prompt_tokens);
        let embedding = match parameters.encoding {
            EncodingFormat::Float => Numbers::Float(numbers),
            EncodingFormat::Base64 => Numbers::Base64(node_api::numbers::to_base64(&numbers)),
        };
        let index = u32::try_from(data.len()).unwrap_or(u32::MAX);
        data.push(Embedding { object: "embedding".to_owned(), index, embedding });
    }
    usage.total_tokens = usage.prompt_tokens;
    let model = model.manifest.id.clone();
    Ok(Json(EmbeddingList { object: "list".to_owned(), data, model, usage }).into_response())
}

fn node_request(caller: &Caller, model: &Registered, input: PromptText) -> GenerateRequest {
    GenerateRequest {
        request_id: caller.request_id.clone(),
        model: model.manifest.id.clone(),
        fingerprint: model.fingerprint.clone(),
        prompt: match input {
            PromptText::Text(text) => Prompt::Text { text, literal: Vec::new() },
            PromptText::Tokens(ids) => Prompt::Tokens(ids),
        },
        sampling: node_api::Sampling::default(),
        embed: true,
        worker_deaths: 0,
        cache_salt: caller.cache_salt,
        // Texts rarely begin alike: any node will do.
        affinity: 0,
    }
}

/// What an input came to.
struct Made {
    numbers: Vec<f32>,
    prompt_tokens: u32,
}

async fn one(app: Arc<App>, request: GenerateRequest, queued: Arc<Queued>) -> Result<Made, Failure> {
    let mut counted = Answer::begin(app.metrics.model(&request.model));
    let made = follow(app, request, queued, &counted).await;
    match &made {
        Ok(_) => counted.finished(false),
        Err(failure) => counted.failed(failure.status),
    }
    made
}

/// Nothing is passed on before the end, so a worker that dies on the way costs time only.
async fn follow(
    app: Arc<App>,
    request: GenerateRequest,
    queued: Arc<Queued>,
    counted: &Answer,
) -> Result<Made, Failure> {
    let mut steps = pin!(generate(app, request, queued));
    let (mut numbers, mut prompt_tokens) = (None, 0);
    while let Some(step) = steps.next().await {
        match step? {
            Step::Started(started) => prompt_tokens = started.prompt_tokens,
            Step::Embedding(made) => numbers = Some((made, prompt_tokens)),
            Step::Loading(_) | Step::Token(_) | Step::Finished { .. } => {}
        }
    }
    let (numbers, prompt_tokens) = numbers.ok_or_else(|| {
        let message = "the node finished the request without an embedding";
        Failure::new(StatusCode::BAD_GATEWAY, "no_result", message).retry(Retry::Useless)
    })?;
    counted.started(prompt_tokens, 0);
    Ok(Made { numbers, prompt_tokens })
}

fn check_dimensions(asked: Option<u32>, size: usize) -> Result<(), Failure> {
    match asked {
        Some(asked) if asked as usize != size => {
            let message = format!("`dimensions` is {asked}, and the model's embeddings have {size} numbers");
            Err(Failure::bad_request("unsupported_parameter", message)
                .param("dimensions")
                .hint(format!("leave it out, or say {size}: embeddings are not shortened")))
        }
        _ => Ok(()),
    }
}
