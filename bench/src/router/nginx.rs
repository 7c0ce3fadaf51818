//! nginx on the router's core, in front of the static upstream.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::affinity::Cores;
use crate::process::Process;

const START_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

pub struct Nginx {
    pub address: SocketAddr,
    pub process: Process,
    _folder: TempDir,
}

impl Nginx {
    /// `None` where there is no nginx in PATH.
    pub async fn start(cores: Cores, upstream: SocketAddr) -> Result<Option<Nginx>> {
        if Command::new("nginx").arg("-v").output().is_err() {
            return Ok(None);
        }
        let folder = tempfile::tempdir()?;
        // Taken and given back: nginx cannot tell which port it took.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let file = folder.path().join("nginx.conf");
        let configuration = configuration(&folder.path().display().to_string(), address, upstream);
        std::fs::write(&file, configuration).with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = Command::new("nginx");
        command.arg("-c").arg(&file).arg("-p").arg(folder.path());
        let process = cores.start_measured(command, folder.path(), "nginx")?;
        let deadline = Instant::now() + START_TIMEOUT;
        let mut ticks = tokio::time::interval(POLL);
        loop {
            ticks.tick().await;
            if TcpStream::connect(address).await.is_ok() {
                return Ok(Some(Nginx { address, process, _folder: folder }));
            }
            if Instant::now() > deadline {
                bail!("nginx did not listen in {} s; it said:\n{}", START_TIMEOUT.as_secs(), process.log());
            }
        }
    }

    pub fn log(&self) -> String {
        format!("nginx said:\n{}", self.process.log())
    }
}

/// One process, no log of requests, connections kept on both sides, streams passed on as they come.
fn configuration(folder: &str, address: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        "daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 100000000;
  tcp_nodelay on;
  upstream memory {{ server {upstream}; keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen {address};
    location / {{
      proxy_pass http://memory;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_buffering off;
    }}
  }}
}}
"
    )
}
