//! A small HTTP server for pages that browsers are measured on.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What is served on this machine's loopback, until it is dropped.
pub struct WebServer {
    port: u16,
    task: tokio::task::JoinHandle<()>,
}

/// Pages by path, and folders by the beginning of a path.
#[derive(Default)]
pub struct Site {
    /// `/shop` and its HTML.
    pub pages: HashMap<&'static str, String>,
    /// `/miniwob/` and the folder whose files stand there.
    pub folders: Vec<(&'static str, PathBuf)>,
}

impl WebServer {
    /// Serves these at a free port.
    pub async fn start(site: Site) -> std::io::Result<WebServer> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let site = Arc::new(site);
        // Owner: the server. Ends with it; connections end with their browsers.
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let site = Arc::clone(&site);
                tokio::spawn(async move {
                    // A browser that goes away in the middle is no fault of the bench.
                    let _ = serve(stream, &site).await;
                });
            }
        });
        Ok(WebServer { port, task })
    }

    /// `http://127.0.0.1:PORT`, without a slash at its end.
    pub fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, site: &Site) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let path = line.split_ascii_whitespace().nth(1).unwrap_or("/").to_owned();
        let mut header = String::new();
        while stream.read_line(&mut header).await? > 2 {
            header.clear();
        }
        let (status, kind, body) = site.answer(path.split('?').next().unwrap_or("/"));
        let head =
            format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body).await?;
    }
}

impl Site {
    fn answer(&self, path: &str) -> (&'static str, &'static str, Vec<u8>) {
        if let Some(page) = self.pages.get(path) {
            return ("200 OK", "text/html; charset=utf-8", page.clone().into_bytes());
        }
        let file = self.folders.iter().find_map(|(beginning, folder)| {
            let rest = path.strip_prefix(beginning).filter(|rest| !rest.contains(".."))?;
            std::fs::read(folder.join(rest)).ok()
        });
        let kind = match path.rsplit_once('.').map(|(_, ending)| ending) {
            Some("html") => "text/html; charset=utf-8",
            Some("js") => "text/javascript",
            Some("css") => "text/css",
            Some("svg") => "image/svg+xml",
            _ => "application/octet-stream",
        };
        file.map_or(("404 Not Found", "text/plain", Vec::new()), |body| ("200 OK", kind, body))
    }
}
