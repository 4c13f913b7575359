//! Against a live vLLM that `tests/live/with-vllm` starts: the forms are those that the server really speaks.

use espalier_core::chat::Finish;
use espalier_core::limits::DurationText;
use espalier_core::samples::LogprobKind;
use espalier_inference::config::{ModelConfig, ModelKind};
use espalier_inference::endpoint::{self, Endpoint, GenerateRequest, Generated};
use espalier_inference::error::EndpointError;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run `make test-live`"))
}

async fn open() -> Arc<dyn Endpoint> {
    let mut config = ModelConfig::at(ModelKind::Vllm, variable("ESPALIER_VLLM_URL"));
    config.deadlines.total = DurationText(Duration::from_secs(300));
    endpoint::open(&config, 1).await.unwrap()
}

async fn request(
    endpoint: &dyn Endpoint,
    text: &str,
    max_tokens: u32,
    temperature: f64,
    seed: u64,
) -> GenerateRequest {
    let mut sampling = ModelConfig::embedded().sampling.with_seed(seed);
    sampling.max_tokens = max_tokens;
    sampling.temperature = temperature;
    GenerateRequest {
        prompt: endpoint.tokenize(text, true).await.unwrap().ids.into(),
        images: Arc::default(),
        sampling,
        stop: Arc::new([]),
        stop_ids: Arc::new([]),
        session_id: "live".into(),
        deadline: None,
    }
}

async fn post(route: &str, body: &Value) -> Value {
    let url = format!("{}{route}", variable("ESPALIER_VLLM_URL"));
    let response =
        reqwest::Client::new().post(url).body(body.to_string()).header("content-type", "application/json");
    let response = response.send().await.unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    assert!(status.is_success(), "{route}: {status}: {text}");
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

/// Logprobs of `ids` behind `prompt`, by the server's own account of a prompt.
async fn scored(prompt: &[u32], ids: &[u32]) -> Vec<f64> {
    let whole = [prompt, ids].concat();
    let body = json!({
        "model": "smollm2", "prompt": whole, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0,
    });
    let answer = post("/v1/completions", &body).await;
    let entries = answer["choices"][0]["prompt_logprobs"].as_array().unwrap().clone();
    let places = (prompt.len()..).zip(ids);
    places.map(|(at, id)| entries[at][id.to_string()]["logprob"].as_f64().unwrap()).collect()
}

fn chat(question: &str) -> String {
    format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
}

#[tokio::test]
#[ignore = "needs a live vLLM: make test-live"]
async fn live_ids_and_logprobs_are_those_of_the_model_whatever_the_temperature() {
    let endpoint = open().await;
    let info = endpoint.describe().await.unwrap();
    assert_eq!((info.model.as_deref(), info.context_tokens), (Some("smollm2"), Some(4096)));
    assert!(info.template.unwrap().contains("<|im_start|>"));
    for (temperature, seed) in [(0.0, 1), (1.0, 2), (0.5, 3), (1.5, 4)] {
        let request = request(&*endpoint, &chat("Name the capital of France."), 48, temperature, seed).await;
        let prompt = Arc::clone(&request.prompt);
        let generated = endpoint.generate(request).await.unwrap();
        let text = endpoint.detokenize(&generated.ids).await.unwrap();
        println!("temperature {temperature}: {text:?}");
        if temperature == 0.0 {
            assert!(text.contains("Paris"), "{text}");
        }
        assert_eq!(generated.logprob_kind, LogprobKind::Raw);
        assert_eq!(
            generated.finish == Finish::Stop,
            text.ends_with("<|im_end|>"),
            "the end of turn is among the ids"
        );
        let scored = scored(&prompt, &generated.ids).await;
        // Decoding and prefill round differently in bfloat16, and a logprob of -10 more than one of -1.
        let mut differences: Vec<f64> = generated
            .logprobs
            .iter()
            .zip(&scored)
            .map(|(given, scored)| {
                let given = f64::from(given.expect("every token has a logprob"));
                (given - scored).abs() / scored.abs().max(1.0)
            })
            .collect();
        differences.sort_by(f64::total_cmp);
        let (median, mean) =
            (differences[scored.len() / 2], differences.iter().sum::<f64>() / scored.len() as f64);
        println!(
            "difference to the scored prompt: median {median:.4}, mean {mean:.4} of the logprob over {} tokens",
            scored.len()
        );
        assert!(median < 0.02 && mean < 0.05, "median {median}, mean {mean}");
    }
}

#[tokio::test]
#[ignore = "needs a live vLLM: make test-live"]
async fn live_a_stop_text_ends_the_answer_and_stays_in_it() {
    let endpoint = open().await;
    let mut request = request(&*endpoint, "Shopping list:\n- milk\n-", 64, 0.0, 1).await;
    request.stop = Arc::new(["\n".to_owned()]);
    let generated = endpoint.generate(request).await.unwrap();
    let text = endpoint.detokenize(&generated.ids).await.unwrap();
    assert_eq!(generated.finish, Finish::Stop);
    assert_eq!(text.find('\n'), Some(text.len() - 1), "{text:?}");
    assert_eq!(generated.ids.len(), generated.logprobs.len());
}

#[tokio::test]
#[ignore = "needs a live vLLM: make test-live"]
async fn live_a_prompt_beyond_the_context_is_told_as_such() {
    let endpoint = open().await;
    let request = request(&*endpoint, &"word ".repeat(5000), 8, 0.0, 1).await;
    match endpoint.generate(request).await.unwrap_err() {
        EndpointError::ContextOverflow { prompt, context, .. } => assert!(prompt >= 5000 && context == 4096),
        other => panic!("{other}"),
    }
}

/// Pause keep, reload, new version, resume, while answers are under way: their versions come by run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a live vLLM: make test-live"]
async fn live_an_update_in_the_middle_of_answers_shows_as_runs() {
    let endpoint = open().await;
    post("/update_weight_version", &json!({ "new_version": "step-8" })).await;
    let mut answers = Vec::new();
    for seed in 0..8 {
        let question = chat("Write a very long story about a lighthouse and the sea.");
        let request = request(&*endpoint, &question, 500, 1.0, seed).await;
        let endpoint = Arc::clone(&endpoint);
        answers.push(tokio::spawn(async move { endpoint.generate(request).await.unwrap() }));
    }
    tokio::time::sleep(Duration::from_secs(8)).await;
    post("/pause?mode=keep&clear_cache=false", &Value::Null).await;
    let reload = json!({
        "method": "reload_weights", "kwargs": { "weights_path": variable("ESPALIER_VLLM_WEIGHTS") },
    });
    post("/collective_rpc", &reload).await;
    post("/update_weight_version", &json!({ "new_version": "step-9" })).await;
    post("/resume", &Value::Null).await;
    let mut over_both = 0;
    for answer in answers {
        let Generated { ids, versions, .. } = answer.await.unwrap();
        println!("{} tokens: {versions:?}", ids.len());
        assert_eq!(versions.iter().map(|run| run.len as usize).sum::<usize>(), ids.len());
        assert_eq!(versions[0].label, "step-8");
        over_both += usize::from(versions.len() == 2 && versions[1].label == "step-9");
    }
    assert!(over_both >= 1, "no answer was under way during the update");
    assert_eq!(endpoint.describe().await.unwrap().version.as_deref(), Some("step-9"));
}
