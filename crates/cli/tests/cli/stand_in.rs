//! A hub on this machine: it answers as the real one does, and goes wrong as it is told to.

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Files from this size on are kept apart from git, as large ones are at the hub.
const LARGE: usize = 1 << 10;

/// A server, until the tests end.
#[derive(Clone)]
pub struct StandIn {
    pub url: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    repositories: BTreeMap<String, Repository>,
    /// By the end of the path.
    faults: Vec<(String, Fault, Lasts)>,
    requests: Vec<Request>,
}

#[derive(Default, Clone)]
struct Repository {
    commit: String,
    files: BTreeMap<String, Vec<u8>>,
    /// Changes what is said of the files.
    claims: Option<fn(&mut Value)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Lasts {
    Once,
    Always,
}

/// What goes wrong.
#[derive(Clone)]
pub enum Fault {
    /// The connection ends after so many bytes.
    Cut(usize),
    /// Nothing comes after so many bytes.
    Stall(usize),
    /// Every piece takes its time.
    Slow,
    /// All of the file comes, whatever was asked for.
    NoRange,
    /// The bytes are others.
    Instead(Vec<u8>),
    /// A status and the hub's own code.
    Status(u16, &'static str),
    /// Another place has it.
    Moved(String),
    /// This is the answer.
    Answer(Vec<u8>),
}

/// What was asked.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub range: Option<String>,
    pub token: Option<String>,
}

impl StandIn {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let hub = Self { url, state: Arc::default() };
        let serving = hub.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let hub = serving.clone();
                // A client may go away at any time.
                thread::spawn(move || drop(hub.serve(stream)));
            }
        });
        hub
    }

    /// Has a file in the repository's newest commit.
    pub fn put(&self, repository: &str, file: &str, bytes: &[u8]) -> &Self {
        let mut state = self.state.lock().unwrap();
        let repository = state.repositories.entry(repository.into()).or_default();
        repository.files.insert(file.into(), bytes.into());
        let contents: Vec<u8> =
            repository.files.iter().flat_map(|(name, bytes)| [name.as_bytes(), bytes].concat()).collect();
        repository.commit = hex(&Sha1::digest(contents));
        drop(state);
        self
    }

    /// Has the files of a directory, in a folder of the repository.
    pub fn put_all(&self, repository: &str, folder: &str, directory: &str) -> &Self {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let name = format!("{folder}{}", entry.file_name().to_str().unwrap());
            self.put(repository, &name, &std::fs::read(entry.path()).unwrap());
        }
        self
    }

    /// Says other things of the files than are true.
    pub fn claim(&self, repository: &str, claims: fn(&mut Value)) {
        self.state.lock().unwrap().repositories.get_mut(repository).unwrap().claims = Some(claims);
    }

    /// Goes wrong once with paths that end so.
    pub fn once(&self, path: &str, fault: Fault) {
        self.state.lock().unwrap().faults.push((path.into(), fault, Lasts::Once));
    }

    /// Goes wrong every time.
    pub fn always(&self, path: &str, fault: Fault) {
        self.state.lock().unwrap().faults.push((path.into(), fault, Lasts::Always));
    }

    /// What was asked since this was asked last.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    /// The newest commit.
    pub fn commit(&self, repository: &str) -> String {
        self.state.lock().unwrap().repositories[repository].commit.clone()
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or(Ok(String::new()))?;
        let path = first.split(' ').nth(1).unwrap_or_default().to_string();
        let mut request = Request { path: path.clone(), range: None, token: None };
        for line in lines {
            let line = line?;
            match line.split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("range") => request.range = Some(value.into()),
                Some((name, value)) if name.eq_ignore_ascii_case("authorization") => request.token = Some(value.into()),
                Some(_) => {}
                None => break,
            }
        }
        let range = request.range.clone();
        let fault = {
            let mut state = self.state.lock().unwrap();
            state.requests.push(request);
            let at = state.faults.iter().position(|(end, ..)| path.ends_with(end.as_str()));
            at.map(|at| match state.faults[at].2 {
                Lasts::Once => state.faults.remove(at).1,
                Lasts::Always => state.faults[at].1.clone(),
            })
        };
        let (status, mut headers, mut body) = match (&fault, self.answer(&path)) {
            (Some(Fault::Status(status, code)), _) => (*status, format!("X-Error-Code: {code}\r\n"), Vec::new()),
            (Some(Fault::Moved(to)), _) => (302, format!("Location: {to}\r\n"), Vec::new()),
            (Some(Fault::Instead(bytes) | Fault::Answer(bytes)), _) => (200, String::new(), bytes.clone()),
            (_, Some(body)) => (200, String::new(), body),
            (_, None) => (404, "X-Error-Code: RepoNotFound\r\n".into(), Vec::new()),
        };
        let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        let status = match from {
            Some(from) if status == 200 && !matches!(fault, Some(Fault::NoRange)) => match from < body.len() {
                true => {
                    headers = format!("Content-Range: bytes {from}-{}/{}\r\n", body.len() - 1, body.len());
                    body.drain(..from);
                    206
                }
                false => {
                    body.clear();
                    416
                }
            },
            _ => status,
        };
        let head =
            format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all(head.as_bytes())?;
        match fault {
            Some(Fault::Cut(bytes)) => stream.write_all(&body[..bytes.min(body.len())]),
            Some(Fault::Stall(bytes)) => {
                stream.write_all(&body[..bytes])?;
                stream.flush()?;
                // Until the client goes.
                stream.read_to_end(&mut Vec::new()).map(drop)
            }
            Some(Fault::Slow) => body.chunks(body.len().div_ceil(10).max(1)).try_for_each(|piece| {
                thread::sleep(Duration::from_millis(100));
                stream.write_all(piece)
            }),
            _ => stream.write_all(&body),
        }
    }

    /// What there is at a path.
    fn answer(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.state.lock().unwrap();
        if let Some(path) = path.strip_prefix("/api/models/") {
            let (name, _) = path.split_once("/revision/")?;
            let repository = state.repositories.get(name)?;
            let mut answer = json!({ "id": name, "sha": repository.commit, "siblings": siblings(repository) });
            if let Some(claims) = repository.claims {
                claims(&mut answer);
            }
            return Some(answer.to_string().into_bytes());
        }
        // What has been moved is at another path, but under the same name.
        let (before, file) = path.split_once("/resolve/")?;
        let (commit, file) = file.split_once('/')?;
        let (_, repository) = state.repositories.iter().find(|(name, _)| before.ends_with(name.as_str()))?;
        (repository.commit == commit).then(|| repository.files.get(&file.replace("%20", " ")).cloned())?
    }
}

fn siblings(repository: &Repository) -> Value {
    let entry = |(name, bytes): (&String, &Vec<u8>)| {
        let git = hex(&Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize());
        let mut entry = json!({ "rfilename": name, "size": bytes.len(), "blobId": git });
        if bytes.len() >= LARGE {
            entry["lfs"] = json!({ "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134 });
        }
        entry
    };
    repository.files.iter().map(entry).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
