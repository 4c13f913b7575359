//! What the server answers, computed from the prompt.

use regex::Regex;

/// What a policy sees.
pub struct Prompt<'a> {
    /// The whole context as text, control tokens written out; for chat completions: rendered as ChatML.
    pub text: &'a str,
    /// Its tokens.
    pub ids: &'a [u32],
    /// Seed of the request's sampler.
    pub seed: u64,
    /// `x-session-id` of the request; empty where none was sent.
    pub session_id: &'a str,
}

/// Answers prompts. The same prompt and seed must get the same answer.
pub trait Policy: Send + Sync {
    /// The whole answer as text; the end of turn follows it. `None`: the answer never ends and repeats itself up to the limit.
    fn answer(&self, prompt: &Prompt<'_>) -> Option<String>;
}

/// A policy that sees the text only.
pub fn by_text(answer: impl Fn(&str) -> String + Send + Sync) -> impl Policy {
    struct ByText<F>(F);
    impl<F: Fn(&str) -> String + Send + Sync> Policy for ByText<F> {
        fn answer(&self, prompt: &Prompt<'_>) -> Option<String> {
            Some((self.0)(prompt.text))
        }
    }
    ByText(answer)
}

impl<F: Fn(&Prompt<'_>) -> Option<String> + Send + Sync> Policy for F {
    fn answer(&self, prompt: &Prompt<'_>) -> Option<String> {
        self(prompt)
    }
}

/// Rules in order: the first whose pattern is found in the tail of the prompt answers.
pub struct Rules {
    rules: Vec<(Regex, Vec<String>)>,
    otherwise: String,
}

/// Bytes of the prompt that a rule sees.
const TAIL_BYTES: usize = 16 << 10;

impl Rules {
    /// Rules with the answer where none matches.
    pub fn otherwise(answer: &str) -> Rules {
        Rules { rules: Vec::new(), otherwise: answer.to_owned() }
    }

    /// Adds a rule. An answer may name groups of the pattern (`$1`, `${name}`). Of several answers the seed of the
    /// request chooses one, so that the rollouts of a group differ. Panics where the pattern is none.
    #[must_use]
    pub fn rule(mut self, pattern: &str, answers: &[&str]) -> Rules {
        let pattern = Regex::new(pattern).expect("a rule's pattern is a regular expression");
        self.rules.push((pattern, answers.iter().map(|answer| (*answer).to_owned()).collect()));
        self
    }
}

impl Policy for Rules {
    fn answer(&self, prompt: &Prompt<'_>) -> Option<String> {
        let mut from = prompt.text.len().saturating_sub(TAIL_BYTES);
        while !prompt.text.is_char_boundary(from) {
            from += 1;
        }
        let tail = &prompt.text[from..];
        let found = self.rules.iter().find_map(|(pattern, answers)| Some((pattern.captures(tail)?, answers)));
        let Some((captures, answers)) = found else { return Some(self.otherwise.clone()) };
        let mixed = prompt.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        let mut answer = String::new();
        captures.expand(&answers[mixed as usize % answers.len()], &mut answer);
        Some(answer)
    }
}
