//! Random conversations: whatever a harness does, the ids that were sent are the ledger's, and the sums close.

use super::fake::{Reply, Setup};
use super::{options, user};
use espalier_core::chat::{CompleteOptions, Message, Part, Role, ToolResult};
use espalier_core::host::{Conversation, Models};
use espalier_core::ledger::Trainability;
use espalier_core::limits::Limits;

struct TestRng(u64);

impl TestRng {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % u64::from(n)) as u32
    }

    fn text(&mut self) -> String {
        const WORDS: [&str; 16] = [
            "the",
            " look",
            "\n",
            "\n\n",
            " a",
            "one",
            "<|im_end|>",
            "<|im_start|>assistant\n",
            "<think>",
            "</think>",
            "é",
            " user",
            "🙂",
            "{\"a\": 1}",
            "stop here",
            "x",
        ];
        let count = 1 + self.below(9);
        (0..count).map(|_| WORDS[self.below(16) as usize]).collect()
    }

    fn reply(&mut self) -> Reply {
        Reply::Said { text: self.text(), ended: self.below(4) != 0 }
    }

    fn message(&mut self) -> Message {
        let text = self.text();
        if self.below(3) > 0 {
            return user(&text);
        }
        let result = ToolResult { call_id: "call00000".into(), text, is_error: false };
        Message { role: Role::Tool, parts: vec![Part::ToolResult(result)], extra: None }
    }

    fn options(&mut self) -> CompleteOptions {
        let stop = match self.below(3) {
            0 => vec!["stop".into()],
            1 => vec!["\n".into(), "ook".into()],
            _ => vec![],
        };
        CompleteOptions { stop, ..options() }
    }
}

async fn play(seed: u64, setup: &Setup) -> Vec<usize> {
    let mut rng = TestRng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let opening = rng.message();
    let mut conversations: Vec<Box<dyn Conversation>> =
        vec![setup.models.open("policy", vec![opening], vec![]).await.unwrap()];
    let mut discarded = false;
    for _ in 0..24 {
        let pick = rng.below(conversations.len() as u32) as usize;
        match rng.below(14) {
            0..5 => {
                setup.push_reply(rng.reply());
                let options = rng.options();
                conversations[pick].complete(options).await.unwrap();
            }
            5..9 => {
                let messages: Vec<Message> = (0..1 + rng.below(2)).map(|_| rng.message()).collect();
                conversations[pick].append(messages).await.unwrap();
            }
            9 => {
                let fork = conversations[pick].fork().await.unwrap();
                conversations.push(fork);
            }
            10 => {
                for _ in 0..3 {
                    setup.push_reply(rng.reply());
                }
                let options = rng.options();
                let branches = conversations[pick].complete_many(3, options).await.unwrap();
                conversations.extend(branches.into_iter().map(|branch| branch.conversation));
            }
            11 if conversations.len() > 1 => {
                let mut conversation = conversations.swap_remove(pick);
                conversation.discard();
                discarded = true;
            }
            12 => {
                let kept = setup.output(Trainability::Trainable).transcript.turns.pop();
                let mut messages = vec![rng.message()];
                messages.extend(kept.map(|turn| turn.message));
                messages.push(rng.message());
                conversations[pick].rewrite(messages).await.unwrap();
            }
            _ => {
                let index = rng.below(6);
                let on = rng.below(2) == 0;
                // Most indices are not answers; that is refused and changes nothing.
                let _ = conversations[pick].set_trainable(index, on);
            }
        }
        let usage = conversations[pick.min(conversations.len() - 1)].usage();
        assert!(usage.sampled_tokens <= 1 << 20, "seed {seed}: {usage:?}");
    }
    let output = setup.check_everything();
    let given_up = output.excluded.iter().filter(|excluded| excluded.reason == "branch-not-selected").count();
    assert!(discarded || given_up == 0, "seed {seed}: {given_up} dropped without a discard");
    vec![output.calls.len(), output.segments.len(), output.excluded.len()]
}

#[tokio::test]
async fn whatever_a_harness_does_what_was_sent_is_what_the_ledger_says() {
    let mut met = [0; 3];
    for seed in 0..150 {
        let limits = Limits { turns: 10_000, ..Limits::default() };
        let setup = match seed % 4 {
            0 => Setup::chatml(limits, []),
            1 => Setup::thinking([], true),
            2 => Setup::thinking([], false),
            _ => Setup::plain(limits, []),
        };
        let setup = setup.with_token_bytes(seed % 8 < 4);
        println!("seed {seed}");
        for (sum, one) in met.iter_mut().zip(play(seed, &setup).await) {
            *sum += one;
        }
    }
    assert!(met.iter().all(|count| *count > 150), "the games are worth playing: {met:?}");
}
