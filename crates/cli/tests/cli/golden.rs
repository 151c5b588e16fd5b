//! The embedded pair gives the tokens, and drafts the blocks, that the reference gave.

use crate::support::{json, repository};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn joined(ids: &Value) -> String {
    let ids: Vec<String> = ids.as_array().unwrap().iter().map(Value::to_string).collect();
    ids.join(",")
}

#[test]
fn tokens_and_rounds_are_the_reference() {
    let expected = std::fs::read_to_string(repository("nano/nano_expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let cases = expected["cases"].as_object().unwrap();
    assert_eq!(cases.len(), 5);
    for (name, case) in cases {
        let ids = joined(&case["prompt_ids"]);
        let greedy = "--ignore-eos -n 64 --temp 0 -ctk f32 -ctv f32".split(' ');
        let run = |more: &[&str]| {
            let args: Vec<&str> = ["run", "--prompt-ids", &ids].into_iter().chain(greedy.clone()).collect();
            json(&[&args, more].concat())
        };
        let wide = run(&["--draft-width", "16"]);
        assert_eq!(wide["token_ids"], case["greedy_ids"], "{name}");
        let rounds = wide["rounds"].as_array().unwrap();
        let of = |field: &str| rounds.iter().map(|round| round[field].clone()).collect::<Value>();
        let v1 = &case["drafters"]["v1"];
        assert_eq!(of("proposals"), v1["proposals"], "{name}");
        assert_eq!(of("emitted"), v1["emitted_per_round"], "{name}");
        assert!(rounds.iter().all(|round| round["width"] == 16), "{name}");

        let hash = Sha256::digest(joined(&wide["token_ids"]));
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(wide["sha256"], hash, "{name}");
        if name.starts_with("code") {
            assert_eq!(wide["text"], case["greedy_text"], "{name}");
        }
        assert_eq!(wide["finish_reason"], "length", "{name}");

        let sum = |field: &str| rounds.iter().map(|round| round[field].as_u64().unwrap()).sum::<u64>();
        let timings = &wide["timings"];
        assert_eq!(timings["prompt_n"], case["prompt_ids"].as_array().unwrap().len());
        assert_eq!(timings["predicted_n"], 64);
        assert_eq!(timings["draft_kind"], "dflash");
        assert_eq!(timings["draft_rounds"], rounds.len());
        assert_eq!(timings["draft_n"], rounds.len() * 15);
        assert_eq!(timings["draft_n_accepted"], sum("accepted"));
        assert_eq!(sum("emitted"), 63);
        for field in ["prompt_per_second", "predicted_per_second", "load_s"] {
            assert!(timings[field].as_f64().is_some_and(|x| x > 0.0), "{name}: {field}");
        }

        let second = run(&["--draft-width", "16", "-md", "nano-dflash2"]);
        assert_eq!((&second["token_ids"], &second["sha256"]), (&wide["token_ids"], &wide["sha256"]), "{name}");
        assert_eq!(second["timings"]["draft_kind"], "dflash2");
        let proposals = second["rounds"].as_array().unwrap().iter().map(|round| round["proposals"].clone());
        assert_eq!(proposals.collect::<Value>(), case["drafters"]["dflash2"]["proposals"], "{name}");

        let auto = run(&[]);
        assert_eq!(auto["settings"]["draft_width"], "auto", "{name}");
        for more in [&["--draft-width", "5"][..], &["--draft-kind", "ngram"], &["--draft-kind", "hybrid"]] {
            let other = run(more);
            assert_eq!(
                (&other["token_ids"], &other["sha256"]),
                (&auto["token_ids"], &auto["sha256"]),
                "{name} {more:?}"
            );
        }
        assert_eq!((&auto["token_ids"], &auto["sha256"]), (&wide["token_ids"], &wide["sha256"]), "{name}");
        let plain = run(&["--no-draft"]);
        assert_eq!((&plain["token_ids"], &plain["sha256"]), (&wide["token_ids"], &wide["sha256"]), "{name}");
        let plain_round = json!({ "width": 1, "proposals": [], "accepted": 0, "emitted": 1 });
        assert_eq!(plain["rounds"], Value::Array(vec![plain_round; 63]), "{name}");
        assert_eq!(plain["timings"]["draft_kind"], Value::Null);
        assert_eq!(plain["settings"]["draft_model"], Value::Null);
    }
}

#[test]
fn what_is_printed_names_every_setting() {
    let args = "run --prompt-ids 5,6 -n 3 --temp 0.5 --top-k 7 --top-p 0.9 --min-p 0.05 --repeat-penalty 1.1 -c 100 \
                --presence-penalty 0.25 --frequency-penalty -0.5 --logit-bias 9=-inf --logit-bias 8+1.5 -s 12 -t 1 \
                -b 8 -ctk f16 -ctv f32 --isa scalar --spec-draft-n-max 3 --stop x --stop y --ignore-eos";
    let out = json(&args.split_whitespace().collect::<Vec<_>>());
    let keys = |value: &Value| value.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>().join(" ");
    assert_eq!(keys(&out), "token_ids text finish_reason seed settings rounds sha256 timings notices warnings");
    assert_eq!(
        keys(&out["timings"]),
        "prompt_n prompt_per_second predicted_n predicted_per_second load_s peak_memory_bytes draft_kind draft_rounds \
         draft_n draft_n_accepted"
    );
    assert_eq!(keys(&out["rounds"][0]), "width proposals accepted emitted");
    assert_eq!(out["seed"], 12);
    let expected = json!({
        "model": "nano",
        "encoding": "bf16",
        "mmap": false,
        "activations": "f32",
        "cache_type_k": "f16",
        "cache_type_v": "f32",
        "context": 100,
        "prefill_chunk": 8,
        "threads": 1,
        "isa": "scalar",
        "draft_model": "nano-assistant",
        "draft_kind": "dflash",
        "draft_block_size": 16,
        "draft_width": 4,
        "framing": "raw",
        "reasoning_effort": null,
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.05,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "logit_bias": [[9, null], [8, 1.5]],
        "max_tokens": 3,
        "stop": ["x", "y"],
        "ignore_eos": true,
    });
    assert_eq!(out["settings"], expected);
}
