//! The running hub: its two listeners, who may see what, what was asked, and the handle that tests hold.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::response::Response;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::answer::Refusal;
use crate::fault::{Fault, Faults};
use crate::hub_path::HubPath;
use crate::repo::{Entry, Repo, Tree};
use crate::{api, cdn, content, resolve};

/// Files a page of the tree holds unless [`Options::page_files_max`] says so; the hub's own number.
const PAGE_FILES_MAX: usize = 1000;
/// Requests remembered; the oldest go first.
const SEEN_MAX: usize = 100_000;

/// How to listen.
#[derive(Debug, Clone)]
pub struct Options {
    pub listen: SocketAddr,
    /// Of the content network. It is another origin because its port is another.
    pub cdn_listen: SocketAddr,
    pub page_files_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Options { listen: any, cdn_listen: any, page_files_max: PAGE_FILES_MAX }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Hub,
    ContentNetwork,
}

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct SeenRequest {
    pub origin: Origin,
    pub method: String,
    /// Path and query.
    pub target: String,
    pub authorization: Option<String>,
    pub range: Option<String>,
}

/// A repository while it is served: every commit it ever had, and where its names point now.
pub(crate) struct Served {
    pub id: String,
    pub private: bool,
    pub gated: bool,
    commits: BTreeMap<String, Arc<Tree>>,
    names: BTreeMap<String, String>,
}

pub(crate) struct State {
    repos: Mutex<BTreeMap<String, Arc<Served>>>,
    /// Old name to new name.
    renamed: Mutex<BTreeMap<String, String>>,
    /// Token to: may see everything (true), or only what is public and not gated.
    tokens: Mutex<BTreeMap<String, bool>>,
    seen: Mutex<std::collections::VecDeque<SeenRequest>>,
    page_files_max: usize,
    pub faults: Faults,
    pub stalls: watch::Sender<u64>,
    base: String,
    cdn_base: String,
    /// In every address of the content network.
    pub signature: String,
}

/// A running hub. Dropping it ends both listeners.
pub struct FixtureHub {
    state: Arc<State>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for FixtureHub {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl FixtureHub {
    /// Serves `repos` on two free ports of the loopback address.
    pub async fn start(repos: impl IntoIterator<Item = Repo>) -> std::io::Result<FixtureHub> {
        FixtureHub::start_with(Options::default(), repos).await
    }

    /// Fails when an address cannot be listened on.
    pub async fn start_with(
        options: Options,
        repos: impl IntoIterator<Item = Repo>,
    ) -> std::io::Result<FixtureHub> {
        let hub = TcpListener::bind(options.listen).await?;
        let network = TcpListener::bind(options.cdn_listen).await?;
        let state = Arc::new(State {
            repos: Mutex::default(),
            renamed: Mutex::default(),
            tokens: Mutex::default(),
            seen: Mutex::default(),
            page_files_max: options.page_files_max.max(1),
            faults: Faults::default(),
            stalls: watch::Sender::new(0),
            base: format!("http://{}", hub.local_addr()?),
            cdn_base: format!("http://{}", network.local_addr()?),
            signature: "fixture-signature".to_owned(),
        });
        let tasks = vec![
            tokio::spawn(listen(hub, state.clone(), Origin::Hub)),
            tokio::spawn(listen(network, state.clone(), Origin::ContentNetwork)),
        ];
        let fixture = FixtureHub { state, tasks };
        for repo in repos {
            fixture.push(repo);
        }
        Ok(fixture)
    }

    /// For `HF_ENDPOINT`: `http://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.state.base
    }

    /// The origin to which large files are redirected.
    pub fn cdn_url(&self) -> &str {
        &self.state.cdn_base
    }

    /// Adds a repository, or a commit to one: its names move, its older commits stay. Returns the commit.
    pub fn push(&self, repo: Repo) -> String {
        let commit = repo.commit();
        let (id, private, gated) = (repo.id.clone(), repo.private, repo.gated);
        let (tree, revisions) = repo.into_parts();
        let mut repos = lock(&self.state.repos);
        let (mut commits, mut names) =
            repos.get(&id).map(|old| (old.commits.clone(), old.names.clone())).unwrap_or_default();
        commits.insert(commit.clone(), Arc::new(tree));
        for revision in revisions {
            names.insert(revision, commit.clone());
        }
        repos.insert(id.clone(), Arc::new(Served { id, private, gated, commits, names }));
        commit
    }

    /// Takes a repository away.
    pub fn remove(&self, id: &str) {
        lock(&self.state.repos).remove(id);
    }

    /// Requests for `old` are redirected to `new` from now on.
    pub fn rename(&self, old: &str, new: &str) {
        let mut repos = lock(&self.state.repos);
        if let Some(repo) = repos.remove(old) {
            let renamed = Served {
                id: new.to_owned(),
                private: repo.private,
                gated: repo.gated,
                commits: repo.commits.clone(),
                names: repo.names.clone(),
            };
            repos.insert(new.to_owned(), Arc::new(renamed));
        }
        lock(&self.state.renamed).insert(old.to_owned(), new.to_owned());
    }

    /// A token that may see private repositories and was granted access to gated ones.
    pub fn allow_token(&self, token: &str) {
        lock(&self.state.tokens).insert(token.to_owned(), true);
    }

    /// A valid token of somebody without access to what is private or gated.
    pub fn know_token(&self, token: &str) {
        lock(&self.state.tokens).insert(token.to_owned(), false);
    }

    /// The next `times` requests whose path in the repository (or, for `/api`, on the hub) ends in `path_end` go wrong.
    /// A file's faults strike where its bytes are served, after any redirect. Faults of one path strike in turn.
    pub fn fault(&self, path_end: &str, fault: Fault, times: u32) {
        self.state.faults.add(path_end.to_owned(), fault, times);
    }

    pub fn clear_faults(&self) {
        self.state.faults.clear();
    }

    /// Lets every body go on that [`Fault::StallAfter`] holds now.
    pub fn release_stalls(&self) {
        self.state.stalls.send_modify(|n| *n += 1);
    }

    /// Every request so far, oldest first.
    pub fn requests(&self) -> Vec<SeenRequest> {
        lock(&self.state.seen).iter().cloned().collect()
    }

    pub fn forget_requests(&self) {
        lock(&self.state.seen).clear();
    }
}

async fn listen(listener: TcpListener, state: Arc<State>, origin: Origin) {
    let app = Router::new().fallback(move |request: Request| {
        let state = state.clone();
        async move { answer(&state, origin, request.method(), request.uri(), request.headers()) }
    });
    // Ends only when the task is aborted: the loop of axum survives errors of single connections.
    if let Err(e) = axum::serve(listener, app).await {
        eprintln!("fixture hub: {e}");
    }
}

fn answer(state: &State, origin: Origin, method: &Method, uri: &Uri, headers: &HeaderMap) -> Response {
    state.remember(origin, method, uri, headers);
    if origin == Origin::ContentNetwork {
        return cdn::answer(state, method, uri, headers);
    }
    state.hub_answer(method, uri, headers).unwrap_or_else(Refusal::into_response)
}

impl State {
    fn hub_answer(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Response, Refusal> {
        if method != Method::GET && method != Method::HEAD {
            return Err(Refusal::MethodNotAllowed);
        }
        let path = HubPath::parse(uri.path()).ok_or(Refusal::NoSuchPage)?;
        let target = uri.path_and_query().map_or(uri.path(), |pq| pq.as_str());
        if let Some(new) = lock(&self.renamed).get(path.repo()) {
            return Ok(resolve::to_new_name(target, path.repo(), new));
        }
        let caller = self.caller(headers)?;
        let repo = lock(&self.repos)
            .get(path.repo())
            .filter(|repo| !repo.private || caller == Caller::Trusted)
            .cloned()
            .ok_or(Refusal::RepoNotFound { anonymous: caller == Caller::Anonymous })?;
        let query = uri.query().unwrap_or_default();
        if matches!(path, HubPath::Info { .. } | HubPath::Tree { .. })
            && let Some(fault) = self.faults.take(uri.path())
        {
            let nothing = Entry {
                content: crate::repo::Content::Memory(Default::default()),
                size: 0,
                git_oid: String::new(),
                lfs_sha256: None,
            };
            return Ok(content::send(&nothing, method, headers, Some(fault), self.stalls.subscribe()));
        }
        match &path {
            HubPath::Info { revision, .. } => {
                let (commit, tree) = repo.at(revision.as_deref().unwrap_or("main"))?;
                Ok(api::info(&repo, &commit, &tree, query))
            }
            HubPath::Tree { revision, folder, .. } => {
                let (commit, tree) = repo.at(revision)?;
                api::tree(&self.base, &repo, &commit, &tree, folder, query, self.page_files_max)
            }
            HubPath::Resolve { revision, path, .. } => {
                let (commit, entry) = self.entry(&repo, caller, revision, path)?;
                Ok(if entry.lfs_sha256.is_some() {
                    resolve::to_content_network(&self.cdn_base, &self.signature, &commit, path, &entry)
                } else {
                    resolve::to_resolve_cache(&repo.id, &commit, path, &entry)
                })
            }
            HubPath::ResolveCache { commit, path, .. } => {
                let (commit, entry) = self.entry(&repo, caller, commit, path)?;
                let fault = if method == Method::GET { self.faults.take(path) } else { None };
                let mut response = content::send(&entry, method, headers, fault, self.stalls.subscribe());
                let headers = response.headers_mut();
                content::insert(headers, header::ETAG, &format!("\"{}\"", entry.etag()));
                content::insert(headers, crate::answer::REPO_COMMIT, &commit);
                Ok(response)
            }
        }
    }

    fn entry(
        &self,
        repo: &Served,
        caller: Caller,
        revision: &str,
        path: &str,
    ) -> Result<(String, Entry), Refusal> {
        if repo.gated && caller != Caller::Trusted {
            return Err(Refusal::Gated { repo: repo.id.clone(), anonymous: caller == Caller::Anonymous });
        }
        let (commit, tree) = repo.at(revision)?;
        match tree.get(path) {
            Some(entry) => Ok((commit, entry.clone())),
            None => Err(Refusal::EntryNotFound { path: path.to_owned(), commit }),
        }
    }

    fn caller(&self, headers: &HeaderMap) -> Result<Caller, Refusal> {
        let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(Caller::Anonymous) };
        let token = value.to_str().ok().and_then(|v| v.strip_prefix("Bearer ")).ok_or(Refusal::BadToken)?;
        match lock(&self.tokens).get(token) {
            Some(true) => Ok(Caller::Trusted),
            Some(false) => Ok(Caller::Known),
            None => Err(Refusal::BadToken),
        }
    }

    /// The path and content of a large file by its sha256.
    pub fn blob(&self, sha256: &str) -> Option<(String, Entry)> {
        let repos = lock(&self.repos);
        repos
            .values()
            .flat_map(|repo| repo.commits.values())
            .flat_map(|tree| tree.iter())
            .find(|(_, entry)| entry.lfs_sha256.as_deref() == Some(sha256))
            .map(|(path, entry)| (path.clone(), entry.clone()))
    }

    fn remember(&self, origin: Origin, method: &Method, uri: &Uri, headers: &HeaderMap) {
        let text = |name| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let mut seen = lock(&self.seen);
        if seen.len() == SEEN_MAX {
            seen.pop_front();
        }
        seen.push_back(SeenRequest {
            origin,
            method: method.to_string(),
            target: uri.to_string(),
            authorization: text(header::AUTHORIZATION),
            range: text(header::RANGE),
        });
    }
}

impl Served {
    fn at(&self, revision: &str) -> Result<(String, Arc<Tree>), Refusal> {
        let commit = self.names.get(revision).map_or(revision, String::as_str);
        match self.commits.get(commit) {
            Some(tree) => Ok((commit.to_owned(), tree.clone())),
            None => Err(Refusal::RevisionNotFound { revision: revision.to_owned() }),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Anonymous,
    Known,
    Trusted,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of the lock can panic")
}
