//! A small HTTP server for pages, and for servers that misbehave.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    /// With the query.
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

/// What a path does.
#[derive(Clone)]
pub(crate) enum Answer {
    Ok {
        status: u16,
        headers: Vec<(String, String)>,
        body: Vec<u8>,
    },
    /// Never answers.
    Hang,
    /// Sends the head and the beginning of a page, then nothing.
    HangInBody(String),
    /// Closes the connection without an answer.
    Close,
    Dynamic(Arc<dyn Fn(&Seen) -> Answer + Send + Sync>),
}

impl Answer {
    pub(crate) fn html(body: &str) -> Answer {
        Answer::typed("text/html; charset=utf-8", body)
    }

    pub(crate) fn typed(content_type: &str, body: impl Into<Vec<u8>>) -> Answer {
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        Answer::Ok { status: 200, headers, body: body.into() }
    }

    pub(crate) fn redirect(to: &str) -> Answer {
        Answer::Ok { status: 302, headers: vec![("location".to_owned(), to.to_owned())], body: Vec::new() }
    }

    pub(crate) fn status(self, status: u16) -> Answer {
        match self {
            Answer::Ok { headers, body, .. } => Answer::Ok { status, headers, body },
            other => other,
        }
    }

    pub(crate) fn header(self, name: &str, value: &str) -> Answer {
        match self {
            Answer::Ok { status, mut headers, body } => {
                headers.push((name.to_owned(), value.to_owned()));
                Answer::Ok { status, headers, body }
            }
            other => other,
        }
    }

    pub(crate) fn dynamic(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Answer {
        Answer::Dynamic(Arc::new(answer))
    }
}

pub(crate) struct Server {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Serves these paths, at every host name that leads to this machine. `/favicon.ico` is empty.
    pub(crate) async fn start(pages: impl IntoIterator<Item = (&'static str, Answer)>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let pages: Arc<HashMap<String, Answer>> =
            Arc::new(pages.into_iter().map(|(path, answer)| (path.to_owned(), answer)).collect());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let task = tokio::spawn({
            let seen = Arc::clone(&seen);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream, Arc::clone(&pages), Arc::clone(&seen)));
                }
            }
        });
        Server { port, seen, task }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The same server under another site's name.
    pub(crate) fn at(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}{path}", self.port)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("not poisoned").clone()
    }

    pub(crate) fn seen_at(&self, path: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.path == path).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, pages: Arc<HashMap<String, Answer>>, seen: Arc<Mutex<Vec<Seen>>>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await {
        seen.lock().expect("not poisoned").push(request.clone());
        let path = request.path.split('?').next().unwrap_or_default();
        let mut answer = match pages.get(path) {
            Some(answer) => answer.clone(),
            None if path == "/favicon.ico" => Answer::typed("image/x-icon", ""),
            None => Answer::html("<title>missing</title>missing").status(404),
        };
        while let Answer::Dynamic(dynamic) = answer {
            answer = dynamic(&request);
        }
        match answer {
            Answer::Ok { status, headers, body } => {
                let mut head = format!("HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n", body.len());
                for (name, value) in headers {
                    head.push_str(&format!("{name}: {value}\r\n"));
                }
                head.push_str("\r\n");
                if stream.write_all(head.as_bytes()).await.is_err() || stream.write_all(&body).await.is_err()
                {
                    return;
                }
            }
            Answer::HangInBody(start) => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 1000000\r\n\r\n";
                let _ = stream.write_all(format!("{head}{start}").as_bytes()).await;
                std::future::pending::<()>().await;
            }
            Answer::Hang => std::future::pending::<()>().await,
            Answer::Close | Answer::Dynamic(_) => return,
        }
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Seen> {
    let mut line = String::new();
    if stream.read_line(&mut line).await.ok()? == 0 {
        return None;
    }
    let mut words = line.split_ascii_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Seen { method, path, headers, body: String::from_utf8_lossy(&body).into_owned() })
}
