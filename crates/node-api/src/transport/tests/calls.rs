//! The typed calls, with a service that answers itself: over a wire and within one process they are the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt, stream};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::transport::{
    EventStream, LinkError, NodeLink, NodeService, PING_INTERVAL, PING_TIMEOUT, local, serve,
};
use crate::*;

const DEADLINE: Duration = Duration::from_secs(10);

/// Says back what it is asked; a request for model `endless` never ends.
pub struct Echo {
    dropped: Arc<Notify>,
    models_put: AtomicBool,
}

impl Echo {
    pub fn new() -> Echo {
        Echo { dropped: Arc::default(), models_put: AtomicBool::new(false) }
    }
}

struct OnDrop(Arc<Notify>);
impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl NodeService for Echo {
    fn status(&self) -> EventStream<NodeStatus> {
        let status = |sequence| NodeStatus { sequence, ..NodeStatus::default() };
        Box::pin(stream::iter([status(1), status(2)]).chain(stream::pending()))
    }

    async fn put_models(&self, models: DesiredModels) -> Result<(), ApiError> {
        assert!(models.models.is_empty());
        self.models_put.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn generate(&self, request: GenerateRequest) -> Result<EventStream<GenerateEvent>, ApiError> {
        let finished = GenerateEvent::Finished { reason: FinishReason::Stop, completion_tokens: 0 };
        match request.model.as_str() {
            "endless" => {
                let guard = OnDrop(Arc::clone(&self.dropped));
                let first = stream::iter([GenerateEvent::Loading { progress: 0.0 }]);
                let held = stream::pending().map(move |event| {
                    let _held = &guard;
                    event
                });
                Ok(Box::pin(first.chain(held)))
            }
            "echo" => {
                let Prompt::Text { text, .. } = request.prompt else { panic!("the test sends text") };
                let events = text.bytes().map(|b| {
                    let bytes = TokenBytes::from(vec![b]);
                    GenerateEvent::Token(Token { id: b.into(), bytes, control: false, logprobs: Vec::new() })
                });
                let events: Vec<_> = events.collect();
                Ok(Box::pin(stream::iter(events.into_iter().chain([finished]))))
            }
            other => Err(ApiError {
                status: 404,
                code: "model_unknown".into(),
                message: format!("no model {other}"),
                hint: Some("register it".into()),
                ..ApiError::default()
            }),
        }
    }

    async fn tokenize(&self, request: TokenizeRequest) -> Result<TokenizeReply, ApiError> {
        Ok(TokenizeReply { ids: request.text.bytes().map(u32::from).collect() })
    }

    async fn engines(&self, command: EngineCommand) -> Result<EngineReply, ApiError> {
        let EngineCommand::Reload { engine: Some(engine) } = command else {
            return Ok(EngineReply::default());
        };
        let handover = Handover {
            model: "m".into(),
            from: format!("{engine} 1.0.0"),
            to: format!("{engine} 1.0.1"),
            done: true,
            reason: None,
            pause_ms: 0,
        };
        Ok(EngineReply { engines: Vec::new(), handovers: vec![handover] })
    }

    async fn model(&self, command: ModelCommand) -> Result<ModelStatus, ApiError> {
        assert_eq!(command.action, ModelAction::Load);
        Ok(ModelStatus {
            id: command.model,
            fingerprint: command.fingerprint,
            state: ModelState::Waiting,
            notes: Vec::new(),
            replicas: Vec::new(),
            candidates: Vec::new(),
            requests_waiting: 0,
        })
    }
}

pub fn join() -> Join {
    Join {
        protocol_version: PROTOCOL_VERSION,
        node: NodeInfo {
            id: "0198c0de".into(),
            name: "test".into(),
            version: "0.0.0".into(),
            os: "linux".into(),
            arch: "x86_64".into(),
            machine_id: "m".into(),
            devices: Vec::new(),
        },
    }
}

fn request(model: &str, text: &str) -> GenerateRequest {
    GenerateRequest {
        request_id: "r".into(),
        model: model.into(),
        fingerprint: "f".into(),
        prompt: Prompt::Text { text: text.into(), literal: Vec::new() },
        sampling: Sampling::default(),
        embed: false,
        worker_deaths: 0,
        cache_salt: 0,
        affinity: 0,
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Wire,
    Local,
}

const KINDS: [Kind; 2] = [Kind::Wire, Kind::Local];

struct Pair {
    link: NodeLink,
    service: Arc<Echo>,
    end: CancellationToken,
    /// The node's end; aborted, the connection is cut.
    serving: JoinHandle<()>,
}

async fn pair(kind: Kind) -> Pair {
    println!("{kind:?}");
    let (service, end) = (Arc::new(Echo::new()), CancellationToken::new());
    let (link, serving) = match kind {
        Kind::Wire => {
            let (router, node) = tokio::io::duplex(1 << 16);
            let serving = serve(TokioIo::new(node), Arc::clone(&service), end.clone()).map(drop);
            let serving = tokio::spawn(serving);
            (NodeLink::open(TokioIo::new(router)).await.unwrap(), serving)
        }
        Kind::Local => {
            let (link, serving) = local(Arc::clone(&service), end.clone());
            (link, tokio::spawn(serving.run()))
        }
    };
    Pair { link, service, end, serving }
}

async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("{what}"))
}

#[tokio::test]
async fn a_text_larger_than_every_window_goes_and_comes_back_whole() {
    for kind in KINDS {
        let pair = pair(kind).await;
        let text = "0123456789abcdef".repeat(1 << 17);
        let request = TokenizeRequest {
            model: "echo".into(),
            fingerprint: "f".into(),
            text: text.clone(),
            literal: Vec::new(),
        };
        let ids = pair.link.tokenize(&request).await.unwrap().ids;
        assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn events_come_in_order_to_their_end() {
    for kind in KINDS {
        let Pair { link, service, .. } = &pair(kind).await;
        link.put_models(&DesiredModels { models: Vec::new() }).await.unwrap();
        assert!(service.models_put.load(Ordering::Relaxed));
        let mut lines = link.generate(&request("echo", "hello")).await.unwrap();
        let events: Vec<_> = (&mut lines).map(Result::unwrap).collect().await;
        assert_eq!(events.len(), 6);
        assert!(matches!(&events[1], GenerateEvent::Token(t) if t.bytes.to_vec() == b"e"));
        assert!(matches!(events[5], GenerateEvent::Finished { .. }));
        assert!(lines.next().await.is_none(), "and nothing behind it");
    }
}

#[tokio::test]
async fn a_refused_call_carries_the_nodes_own_error() {
    for kind in KINDS {
        match pair(kind).await.link.generate(&request("absent", "")).await {
            Err(LinkError::Refused(error)) => {
                assert_eq!((error.status, error.code.as_str()), (404, "model_unknown"));
                assert_eq!(error.hint.as_deref(), Some("register it"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn dropping_the_lines_drops_the_nodes_stream() {
    for kind in KINDS {
        let pair = pair(kind).await;
        let mut lines = pair.link.generate(&request("endless", "")).await.unwrap();
        assert!(matches!(lines.next().await, Some(Ok(GenerateEvent::Loading { .. }))));
        drop(lines);
        soon("the node's stream is dropped", pair.service.dropped.notified()).await;
    }
}

#[tokio::test]
async fn a_node_that_ends_finishes_what_runs_and_takes_nothing_new() {
    for kind in KINDS {
        let Pair { link, end, serving, .. } = pair(kind).await;
        let mut status = link.status().await.unwrap();
        assert_eq!(status.next().await.unwrap().unwrap().sequence, 1);
        end.cancel();
        assert_eq!(status.next().await.unwrap().unwrap().sequence, 2);
        let refused = async {
            while link.generate(&request("echo", "x")).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        soon("a new request fails", refused).await;
        assert!(!serving.is_finished(), "the status still runs");
        drop(status);
        soon("nothing runs", serving).await.unwrap();
        soon("the link knows", link.closed()).await;
    }
}

/// Whoever reads does not have to drop what has ended.
#[tokio::test]
async fn an_answer_that_was_read_to_its_end_keeps_no_node_from_ending() {
    for kind in KINDS {
        let Pair { link, end, serving, .. } = pair(kind).await;
        let mut lines = link.generate(&request("echo", "x")).await.unwrap();
        while lines.next().await.is_some() {}
        end.cancel();
        soon("nothing runs", serving).await.unwrap();
        drop(lines);
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_ends_every_stream_with_an_error() {
    for kind in KINDS {
        let Pair { link, serving, .. } = pair(kind).await;
        let mut lines = link.generate(&request("endless", "")).await.unwrap();
        lines.next().await.unwrap().unwrap();
        serving.abort();
        let end = soon("the stream ends", lines.next()).await;
        assert!(matches!(end, Some(Err(LinkError::Lost { .. } | LinkError::Ended))), "{end:?}");
        assert!(lines.next().await.is_none(), "and nothing behind it");
        soon("the link knows", link.closed()).await;
        assert!(link.is_closed());
        let call = link.generate(&request("echo", "x")).await;
        let error = ApiError::from(call.expect_err("nobody is there"));
        assert_eq!((error.status, error.code.as_str(), error.retry), (502, "node_lost", true));
    }
}

#[tokio::test]
async fn a_node_learns_that_its_router_has_gone() {
    for kind in KINDS {
        let Pair { link, serving, .. } = pair(kind).await;
        let clone = link.clone();
        link.put_models(&DesiredModels { models: Vec::new() }).await.unwrap();
        drop(link);
        clone.put_models(&DesiredModels { models: Vec::new() }).await.expect("a clone is a link too");
        drop(clone);
        soon("the node's end returns", serving).await.unwrap();
    }
}

/// A peer that accepts the connection and then never says a word: the pings find it out.
#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_found_out_by_pings() {
    let (router, mut node) = tokio::io::duplex(1 << 16);
    let link = NodeLink::open(TokioIo::new(router)).await.unwrap();
    // An empty SETTINGS frame is all a server has to say to begin; the rest is swallowed.
    node.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    tokio::spawn(async move {
        let mut sink = [0; 1024];
        while node.read(&mut sink).await.is_ok_and(|n| n > 0) {}
    });
    let patience = (PING_INTERVAL + PING_TIMEOUT) * 2;
    tokio::time::timeout(patience, link.closed()).await.expect("the pings stay unanswered");
}

#[tokio::test]
async fn commands_are_answered_when_they_are_done() {
    for kind in KINDS {
        let link = pair(kind).await.link;
        let reload = EngineCommand::Reload { engine: Some("echo".into()) };
        let reply = link.engines(&reload).await.unwrap();
        assert_eq!((reply.handovers[0].to.as_str(), reply.handovers[0].done), ("echo 1.0.1", true));
        let load = ModelCommand { model: "m".into(), fingerprint: "f".into(), action: ModelAction::Load };
        assert_eq!(link.model(&load).await.unwrap().id, "m");
    }
}
