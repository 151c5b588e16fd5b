//! Models by name: pulled from a hub on this machine, opened, listed, removed.

use crate::stand_in::{Fault, StandIn, sha256};
use crate::support::{Ran, command, glimmer, repository};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A user with a cache of their own.
struct User {
    home: TempDir,
    hub: StandIn,
}

impl User {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap(), hub: StandIn::start() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        for name in [
            "HF_HUB_CACHE",
            "HUGGINGFACE_HUB_CACHE",
            "HF_TOKEN",
            "HF_TOKEN_PATH",
            "HUGGING_FACE_HUB_TOKEN",
            "HF_HUB_OFFLINE",
            "TRANSFORMERS_OFFLINE",
            "HTTP_PROXY",
            "http_proxy",
            "HTTPS_PROXY",
            "https_proxy",
            "ALL_PROXY",
            "all_proxy",
        ] {
            command.env_remove(name);
        }
        command.env("HF_HOME", self.home.path()).env("HF_ENDPOINT", &self.hub.url);
        command
    }

    fn glimmer(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }

    fn offline(&self, args: &[&str]) -> Ran {
        self.command(args).env("HF_HUB_OFFLINE", "1").output().unwrap().into()
    }

    fn folder(&self, id: &str) -> PathBuf {
        self.home.path().join("hub").join(format!("models--{}", id.replace('/', "--")))
    }

    fn blob(&self, id: &str, name: &str) -> PathBuf {
        self.folder(id).join("blobs").join(name)
    }

    fn snapshot(&self, id: &str) -> PathBuf {
        self.folder(id).join("snapshots").join(self.hub.commit(id))
    }

    /// A repository with one GGUF file of these bytes.
    fn with_file(bytes: &[u8]) -> Self {
        let user = Self::new();
        user.hub.put("org/m", "m-Q8_0.gguf", bytes);
        user
    }

    fn pulled(&self) -> Vec<u8> {
        fs::read(self.snapshot("org/m").join("m-Q8_0.gguf")).unwrap()
    }
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

const RAW: [&str; 11] = ["--raw", "def f", "--temp", "0", "-n", "16", "-ctk", "f32", "-ctv", "f32", "-q"];

#[test]
fn a_model_is_pulled_once_and_then_opens_without_a_request() {
    let user = User::new();
    user.hub.put_all("org/nano", "", &repository("nano/target")).put("org/nano", "README.md", b"# no");
    user.hub.put("org/nano", "pytorch_model.bin", &noise(2000));
    let path = user.snapshot("org/nano");
    let ran = user.glimmer(&["pull", "org/nano"]);
    assert!(ran.err.starts_with("pulling org/nano: 7 files, "), "{ran:?}");
    assert!(ran.err.contains("downloaded and checked, at revision "), "{ran:?}");
    assert_eq!(ran.ok(), format!("{}\n", path.display()));

    let link = fs::read_link(path.join("model.safetensors")).unwrap();
    let weights = fs::read(repository("nano/target/model.safetensors")).unwrap();
    assert_eq!(link, Path::new("../../blobs").join(sha256(&weights)));
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), weights);
    let small = fs::read_link(path.join("generation_config.json")).unwrap();
    assert_eq!(small.file_name().unwrap().len(), 40, "{small:?}");
    assert_eq!(fs::read_to_string(user.folder("org/nano").join("refs/main")).unwrap(), user.hub.commit("org/nano"));
    assert!(!path.join("README.md").exists() && !path.join("pytorch_model.bin").exists());
    assert_eq!(user.hub.requests().len(), 8);

    let again = user.glimmer(&["download", "-hf", "org/nano"]);
    assert!(again.err.contains("nothing to download"), "{again:?}");
    assert_eq!(user.hub.requests().len(), 1);

    let expected = glimmer(&[&["run", "nano"], &RAW[..]].concat()).ok();
    assert_eq!(user.glimmer(&[&["run", "org/nano"], &RAW[..]].concat()).ok(), expected);
    assert_eq!(user.offline(&[&["run", "-hf", "org/nano@main"], &RAW[..]].concat()).ok(), expected);
    let at_commit = format!("org/nano@{}", user.hub.commit("org/nano"));
    let report: Value = serde_json::from_str(&user.glimmer(&["inspect", &at_commit, "--json"]).ok()).unwrap();
    assert_eq!(report["model"], at_commit);
    assert_eq!(user.hub.requests().len(), 0);
}

#[test]
fn run_pulls_what_is_not_there() {
    let user = User::new();
    user.hub.put_all("org/nano", "", &repository("nano/target"));
    user.hub.put_all("org/assistant", "", &repository("nano/assistant"));
    let expected = glimmer(&[&["run", "nano"], &RAW[..]].concat()).ok();
    let ran = user.glimmer(&[&["run", "org/nano", "-hfd", "org/assistant", "--draft-width", "4"], &RAW[..]].concat());
    assert!(ran.err.contains("pulling org/nano: ") && ran.err.contains("pulling org/assistant: "), "{ran:?}");
    assert_eq!(ran.ok(), expected);
}

#[test]
fn a_quantization_is_one_file_of_many() {
    let user = User::new();
    let gguf = user.home.path().join("tiny.gguf");
    let synth = ["synth", "--shape", "tiny", "--encoding", "q8_0", "--out", gguf.to_str().unwrap()];
    glimmer(&synth).ok();
    let bytes = fs::read(&gguf).unwrap();
    user.hub.put("org/g", "tiny-UD-Q8_0.gguf", &bytes).put("org/g", "tiny-Q4_K_M.gguf", b"GGUF?");
    user.hub.put("org/g", "mmproj-F16.gguf", b"GGUF!").put("org/g", "config.json", b"{}");

    user.glimmer(&["pull", "org/g"]).assert_error(1, &["org/g: several GGUF files", "Q4_K_M, UD-Q8_0"]);
    user.glimmer(&["run", "org/g:Q5_K", "x"]).assert_error(1, &["org/g:Q5_K: no GGUF file is Q5_K", "Q4_K_M, UD-Q8_0"]);
    assert!(!user.folder("org/g").exists());

    let ran = user.glimmer(&["pull", "org/g:q8_0"]);
    assert_eq!(ran.ok(), format!("{}\n", user.snapshot("org/g").join("tiny-UD-Q8_0.gguf").display()));
    assert!(user.snapshot("org/g").join("mmproj-F16.gguf").exists());
    assert!(!user.snapshot("org/g").join("tiny-Q4_K_M.gguf").exists());
    user.hub.requests();
    let ids = ["--prompt-ids", "1,2,3", "--temp", "0", "-n", "8", "-q"];
    let expected = glimmer(&[&["run", gguf.to_str().unwrap()], &ids[..]].concat()).ok();
    assert_eq!(user.glimmer(&[&["run", "org/g:ud-q8_0"], &ids[..]].concat()).ok(), expected);
    assert_eq!(user.offline(&[&["run", "org/g"], &ids[..]].concat()).ok(), expected);
    assert_eq!(user.hub.requests().len(), 0);
}

#[test]
fn what_was_cut_goes_on_where_it_ended() {
    let bytes = noise(500_000);
    let user = User::with_file(&bytes);
    user.hub.once("m-Q8_0.gguf", Fault::Cut(300_000));
    user.hub.once("m-Q8_0.gguf", Fault::Status(503, ""));
    user.glimmer(&["pull", "org/m"]).ok();
    let ranges: Vec<_> = user.hub.requests().into_iter().map(|request| request.range).collect();
    let rest = Some("bytes=300000-".to_string());
    assert_eq!(ranges, [None, None, rest.clone(), rest]);
    assert_eq!(user.pulled(), bytes);
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_what_the_next_pull_goes_on_from() {
    let bytes = noise(500_000);
    let user = User::with_file(&bytes);
    user.hub.once("m-Q8_0.gguf", Fault::Stall(200_000));
    let child = user.command(&["pull", "org/m"]).spawn().unwrap();
    let partial = user.blob("org/m", &format!("{}.incomplete", sha256(&bytes)));
    let arrived = || fs::metadata(&partial).is_ok_and(|meta| meta.len() == 200_000);
    for _ in 0..200 {
        if arrived() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(arrived());
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(Ran::from(child.wait_with_output().unwrap()).code, Some(130));
    assert!(arrived() && !user.folder("org/m").join("refs").exists());

    let listed: Value = serde_json::from_str(&user.glimmer(&["list", "--json"]).ok()).unwrap();
    let begun: Vec<_> = listed.as_array().unwrap().iter().filter(|row| row["revision"] == "").collect();
    assert_eq!((begun.len(), &begun[0]["bytes"], &begun[0]["complete"]), (1, &json!(200_000), &json!(false)));

    user.hub.requests();
    user.glimmer(&["pull", "org/m"]).ok();
    assert_eq!(user.hub.requests()[1].range.as_deref(), Some("bytes=200000-"));
    assert_eq!(user.pulled(), bytes);
    assert!(!partial.exists());
}

#[test]
fn a_server_without_ranges_sends_all_of_it_again() {
    let bytes = noise(500_000);
    let user = User::with_file(&bytes);
    user.hub.once("m-Q8_0.gguf", Fault::Cut(300_000));
    user.hub.once("m-Q8_0.gguf", Fault::NoRange);
    user.glimmer(&["pull", "org/m"]).ok();
    assert_eq!(user.pulled(), bytes);
    assert_eq!(user.hub.requests().len(), 3);
}

#[test]
fn what_another_attempt_spoilt_is_fetched_again() {
    let bytes = noise(50_000);
    for rotten in [vec![7; 1000], vec![7; 50_000], vec![7; 60_000]] {
        let user = User::with_file(&bytes);
        fs::create_dir_all(user.blob("org/m", "")).unwrap();
        fs::write(user.blob("org/m", &format!("{}.incomplete", sha256(&bytes))), rotten).unwrap();
        user.glimmer(&["pull", "org/m"]).ok();
        assert_eq!(user.pulled(), bytes);
    }
}

#[test]
fn a_wrong_hash_leaves_nothing() {
    let bytes = noise(50_000);
    let user = User::with_file(&bytes);
    for wrong in [vec![0; 50_000], vec![0; 50_001]] {
        user.hub.once("m-Q8_0.gguf", Fault::Instead(wrong.clone()));
        let expected = match wrong.len() {
            50_000 => vec!["m-Q8_0.gguf".into(), format!("SHA-256 {}", sha256(&bytes)), sha256(&wrong)],
            _ => vec!["expected 50000 bytes, the server sends more".into()],
        };
        let ran = user.glimmer(&["pull", "org/m"]);
        assert!(ran.err.starts_with("pulling org/m: 1 file, 50.0 kB"), "{ran:?}");
        let error = ran.err.lines().nth(1).unwrap_or_default().to_string();
        Ran { err: format!("{error}\n"), ..ran }.assert_error(1, &expected);
        assert_eq!(fs::read_dir(user.blob("org/m", "")).unwrap().count(), 0);
        assert!(!user.snapshot("org/m").join("m-Q8_0.gguf").exists());
        user.offline(&["inspect", "org/m"]).assert_error(1, &["`glimmer pull org/m`"]);
    }
}

#[test]
fn a_server_that_stays_away_is_one_line() {
    let user = User::with_file(&noise(50_000));
    user.hub.always("m-Q8_0.gguf", Fault::Cut(0));
    let ran = user.glimmer(&["pull", "org/m"]);
    assert_eq!((ran.code, ran.err.lines().count()), (Some(1), 2), "{ran:?}");
    assert!(ran.err.contains("; 0 of 50000 bytes are here"), "{ran:?}");
    assert_eq!(user.hub.requests().len(), 6);
    let nobody = user.command(&["pull", "org/m"]).env("HF_ENDPOINT", "http://127.0.0.1:9").output().unwrap();
    Ran::from(nobody).assert_error(1, &["org/m: cannot reach 127.0.0.1:9"]);
}

#[test]
fn what_is_refused_says_what_to_do() {
    let user = User::with_file(&noise(50_000));
    let token = |args: &[&str]| -> Ran { user.command(args).env("HF_TOKEN", "hf_x").output().unwrap().into() };
    let page = format!("{}/org/m", user.hub.url);
    user.glimmer(&["pull", "org/absent"]).assert_error(1, &["org/absent: there is no such repository at http://127"]);
    user.hub.once("/revision/v9?blobs=true", Fault::Status(404, "RevisionNotFound"));
    user.glimmer(&["pull", "org/m", "--revision", "v9"]).assert_error(1, &["org/m@v9: there is no revision `v9`"]);
    for (status, code, without, with) in [
        (401, "RepoNotFound", "set HF_TOKEN to a token that may read it", "does not accept the token"),
        (401, "GatedRepo", "access is granted on request: ask at PAGE, then set HF_TOKEN", "ask for it at PAGE"),
        (403, "GatedRepo", "access is granted on request: ask at PAGE, then set HF_TOKEN", "ask for it at PAGE"),
        (418, "", "HTTP status 418", "HTTP status 418"),
    ] {
        user.hub.once("/revision/main?blobs=true", Fault::Status(status, code));
        user.glimmer(&["pull", "org/m"]).assert_error(1, &[without.replace("PAGE", &page)]);
        user.hub.once("/revision/main?blobs=true", Fault::Status(status, code));
        token(&["pull", "org/m"]).assert_error(1, &[with.replace("PAGE", &page)]);
    }
    assert!(!user.folder("org/m").exists());
    for (status, code, says) in
        [(403, "GatedRepo", "access is granted"), (404, "EntryNotFound", "listed, but is not there")]
    {
        user.hub.once("m-Q8_0.gguf", Fault::Status(status, code));
        let ran = user.glimmer(&["pull", "org/m"]);
        assert!(ran.code == Some(1) && ran.err.lines().count() == 2 && ran.err.contains(says), "{ran:?}");
    }
}

#[test]
fn offline_nothing_is_asked() {
    let user = User::with_file(&noise(50_000));
    for args in [&["pull", "org/m"][..], &["run", "org/m", "x"], &["inspect", "org/m"], &["bench", "step", "org/m"]] {
        let place = user.folder("org/m").to_str().unwrap().to_string();
        user.offline(args).assert_error(1, &["org/m: ", &place, "HF_HUB_OFFLINE", "`glimmer pull org/m`"]);
    }
    assert_eq!(user.hub.requests().len(), 0);
    user.glimmer(&["pull", "org/m"]).ok();
    user.hub.requests();
    user.offline(&["pull", "org/m"]).ok();
    user.offline(&["pull", "org/m:Q8_0"]).ok();
    user.offline(&["pull", "org/m:Q4_0"]).assert_error(1, &["org/m:Q4_0"]);
    user.offline(&["pull", "org/m@v1"]).assert_error(1, &["org/m@v1"]);
    assert_eq!(user.hub.requests().len(), 0);
}

#[test]
fn two_that_pull_the_same_share_the_work() {
    let bytes = noise(500_000);
    let user = User::with_file(&bytes);
    user.hub.always("m-Q8_0.gguf", Fault::Slow);
    let both: Vec<_> = (0..2).map(|_| user.command(&["pull", "org/m"]).spawn().unwrap()).collect();
    for child in both {
        Ran::from(child.wait_with_output().unwrap()).ok();
    }
    let files = user.hub.requests().into_iter().filter(|request| request.path.contains("/resolve/"));
    assert_eq!(files.count(), 1);
    assert_eq!(user.pulled(), bytes);
}

#[test]
fn the_token_goes_to_the_hub_and_no_further() {
    let bytes = noise(50_000);
    let user = User::with_file(&bytes);
    let elsewhere = StandIn::start();
    elsewhere.put("org/m", "m-Q8_0.gguf", &bytes);
    let file = format!("/org/m/resolve/{}/m-Q8_0.gguf", user.hub.commit("org/m"));
    user.hub.once(&file, Fault::Moved(format!("/renamed{file}")));
    user.hub.once(&file, Fault::Moved(format!("{}{file}", elsewhere.url)));
    fs::write(user.home.path().join("token"), "hf_secret\n").unwrap();
    user.glimmer(&["pull", "org/m"]).ok();
    let tokens = |hub: &StandIn| hub.requests().into_iter().map(|request| request.token).collect::<Vec<_>>();
    let sent = Some("Bearer hf_secret".to_string());
    assert_eq!(tokens(&user.hub), [sent.clone(), sent.clone(), sent]);
    assert_eq!(tokens(&elsewhere), [None]);
    assert_eq!(user.pulled(), bytes);

    user.glimmer(&["rm", "org/m"]).ok();
    user.hub.always(&file, Fault::Moved(file.clone()));
    let ran = user.glimmer(&["pull", "org/m"]);
    assert!(ran.code == Some(1) && ran.err.contains("more than 8 redirects"), "{ran:?}");
}

#[test]
fn what_a_server_says_is_not_believed() {
    let user = User::with_file(&noise(50_000));
    type Claim = fn(&mut Value);
    let claims: [(Claim, &str); 5] = [
        (|answer| answer["siblings"][0]["rfilename"] = json!("../../../../evil-Q8_0.gguf"), "siblings[0].rfilename"),
        (|answer| answer["siblings"][0]["rfilename"] = json!("/tmp/evil-Q8_0.gguf"), "siblings[0].rfilename"),
        (|answer| answer["siblings"][0]["lfs"]["sha256"] = json!("../../../evil"), "siblings[0].lfs"),
        (|answer| answer["sha"] = json!("../../../evil"), "field `sha`"),
        (|answer| answer["siblings"][0]["size"] = json!(1u64 << 60), "are to be downloaded, and"),
    ];
    for (claim, says) in claims {
        user.hub.claim("org/m", claim);
        user.glimmer(&["pull", "org/m"]).assert_error(1, &[says]);
    }
    let long = [b"{\"a\": \"".to_vec(), vec![b'x'; 9 << 20], b"\"}".to_vec()].concat();
    for (answer, says) in
        [(long, "more than 8388608 bytes"), (b"<html>".to_vec(), "valid JSON"), (Vec::new(), "valid JSON")]
    {
        user.hub.once("/revision/main?blobs=true", Fault::Answer(answer));
        user.glimmer(&["pull", "org/m"]).assert_error(1, &[says]);
    }
    let evil =
        |path: &Path| fs::read_dir(path).unwrap().any(|e| e.unwrap().file_name().to_string_lossy().contains("evil"));
    assert!(![user.home.path(), user.home.path().parent().unwrap(), Path::new("/tmp")].into_iter().any(evil));
    assert!(user.hub.requests().iter().all(|request| request.path.starts_with("/api/")));
}

#[test]
fn the_cache_is_listed_and_emptied() {
    let user = User::new();
    assert_eq!(user.glimmer(&["list"]).ok().lines().count(), 1);
    user.glimmer(&["rm", "org/x"]).assert_error(1, &["org/x: not in the cache", "has nothing"]);

    let shared = noise(50_000);
    user.hub.put("org/m", "m-Q8_0.gguf", &shared).put("org/m", "m-Q4_0.gguf", &noise(20_000));
    let first = user.hub.commit("org/m");
    user.glimmer(&["pull", "org/m:q8_0"]).ok();
    user.glimmer(&["pull", "org/m:q4_0"]).ok();
    user.hub.put("org/m", "m-Q4_0.gguf", &noise(30_000));
    let second = user.hub.commit("org/m");
    let ran = user.glimmer(&["pull", "org/m:q8_0"]);
    assert!(ran.err.contains("nothing to download"), "{ran:?}");
    user.glimmer(&["pull", "org/m:q4_0"]).ok();

    let listed: Value = serde_json::from_str(&user.glimmer(&["ls", "--json"]).ok()).unwrap();
    let row = |commit: &str| listed.as_array().unwrap().iter().find(|row| row["revision"] == commit).unwrap().clone();
    assert_eq!((row(&first)["bytes"].as_u64(), row(&second)["bytes"].as_u64()), (Some(70_000), Some(80_000)));
    assert_eq!((&row(&first)["refs"], &row(&second)["refs"]), (&json!([]), &json!(["main"])));
    assert_eq!(row(&second)["weights"], json!(["Q4_0", "Q8_0"]));
    assert_eq!((&row(&second)["complete"], row(&second)["last_used"].is_string()), (&json!(true), true));
    let table = user.glimmer(&["list"]).ok();
    assert!(table.contains(&format!("org/m  {} (main)", &second[..12])) && table.contains("Q4_0, Q8_0"), "{table}");

    // The large file is the other revision's too, and stays.
    let ran = user.glimmer(&["rm", &format!("org/m@{}", &first[..8])]);
    assert!(ran.err.starts_with("removed org/m@") && ran.err.contains("20.0 kB freed"), "{ran:?}");
    assert_eq!(user.pulled(), shared);
    assert_eq!(fs::read_dir(user.blob("org/m", "")).unwrap().count(), 2);

    user.glimmer(&["rm", "org/m:Q2_K"]).assert_error(1, &["nothing in the cache is Q2_K", "Q4_0, Q8_0"]);
    user.glimmer(&["rm", "org/m@v1"]).assert_error(1, &["no such revision", &second]);
    user.glimmer(&["rm", "org/m", "org/y"]).assert_error(1, &["org/y: not in the cache", "has org/m"]);
    user.glimmer(&["rm", "org/m:q8_0", "--yes"]).ok();
    assert!(!user.snapshot("org/m").join("m-Q8_0.gguf").exists());
    assert!(user.snapshot("org/m").join("m-Q4_0.gguf").exists());
    assert!(user.glimmer(&["remove", "org/m"]).err.contains("removed org/m: 30.0 kB freed"));
    assert!(!user.folder("org/m").exists());
    assert_eq!(user.glimmer(&["list"]).ok().lines().count(), 1);
}

#[test]
fn a_pair_brings_its_drafter_and_its_width() {
    let user = User::new();
    let manifest = |width: usize| {
        let layout = json!({ "target": "target", "drafter": "drafter" });
        json!({ "layout": layout, "backend": "dflash", "benchmark": { "best_block_size": width } }).to_string()
    };
    user.hub.put_all("org/pair", "target/", &repository("nano/target"));
    user.hub.put_all("org/pair", "drafter/", &repository("nano/assistant"));
    user.hub.put("org/pair", "dflash_pair.json", manifest(3).as_bytes());
    let expected = glimmer(&[&["run", "nano"], &RAW[..]].concat()).ok();
    let raw = &RAW[..RAW.len() - 1];
    let ran = user.glimmer(&[&["run", "org/pair"], raw].concat());
    assert!(
        ran.err.contains("org/pair (target): ") && ran.err.contains("org/pair (drafter) (dflash), width 3"),
        "{ran:?}"
    );
    assert_eq!(ran.ok(), expected);
    user.hub.requests();

    let directory = user.snapshot("org/pair");
    for (args, says) in [
        (&["org/pair"][..], "width 3"),
        (&[directory.to_str().unwrap()], "width 3"),
        (&["org/pair", "--draft-width", "4"], "width 4"),
        (&["org/pair", "--no-draft"], "no drafter"),
        (&["org/pair", "-md", "nano"], "drafter nano-assistant (dflash), width auto"),
        (&["nano", "-md", "org/pair"], "drafter org/pair (drafter) (dflash), width auto"),
    ] {
        let ran = user.offline(&[&["run"], args, raw].concat());
        assert!(ran.err.contains(says), "{args:?}: {ran:?}");
        assert_eq!(ran.ok(), expected);
    }
    assert_eq!(user.hub.requests().len(), 0);
    let report: Value = serde_json::from_str(&user.offline(&["inspect", "org/pair", "--json"]).ok()).unwrap();
    assert_eq!(report["model"], "org/pair (target)");

    let broken = tempfile::tempdir().unwrap();
    let at = broken.path().to_str().unwrap();
    fs::create_dir(broken.path().join("target")).unwrap();
    fs::write(broken.path().join("dflash_pair.json"), manifest(3)).unwrap();
    glimmer(&["run", at, "x"]).assert_error(1, &["dflash_pair.json: field `layout.drafter`: expected a checkpoint at"]);
    for (what, says) in [
        (manifest(3).replace("\"drafter\",", "\"../drafter\","), "field `layout.drafter`"),
        (manifest(3).replace("\"drafter\"}", "\"../drafter\"}"), "field `layout.drafter`"),
        (manifest(3).replace("\"dflash\"", "\"other\""), "field `backend`: expected \"dflash\""),
        ("{".into(), "valid JSON"),
    ] {
        fs::write(broken.path().join("dflash_pair.json"), what).unwrap();
        glimmer(&["run", at, "x"]).assert_error(1, &["dflash_pair.json", says]);
    }
    for (name, from) in [("target", "nano/target"), ("drafter", "nano/assistant")] {
        fs::create_dir_all(broken.path().join(name)).unwrap();
        for entry in fs::read_dir(repository(from)).unwrap().map(Result::unwrap) {
            fs::copy(entry.path(), broken.path().join(name).join(entry.file_name())).unwrap();
        }
    }
    fs::write(broken.path().join("dflash_pair.json"), manifest(17)).unwrap();
    let says = ["field `benchmark.best_block_size`: expected 2 to 16, the block size of", "found 17"];
    glimmer(&["run", at, "x"]).assert_error(1, &says);
}
