//! What a server says of its own load (Prometheus text of vLLM and SGLang), and how many calls at once follow from it.

/// Share of the cache above which a server would soon put requests off.
const CACHE_FULL: f64 = 0.95;
/// The same where requests wait: below it they wait for their first step, not for room.
const CACHE_SHORT: f64 = 0.8;
/// Where vLLM and SGLang say it.
const RUNNING: [&str; 2] = ["vllm:num_requests_running", "sglang:num_running_reqs"];
const WAITING: [&str; 2] = ["vllm:num_requests_waiting", "sglang:num_queue_reqs"];
const CACHE: [&str; 2] = ["vllm:kv_cache_usage_perc", "sglang:token_usage"];

/// The load of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    /// Requests that it works on.
    pub(super) running: f64,
    /// Requests that it has taken and does not work on yet.
    pub(super) waiting: f64,
    /// Share of its KV cache that is in use, 0 to 1.
    pub(super) cache: f64,
}

impl Load {
    /// `None`: the text does not tell. Of several engines in one server, waiting and running are summed, and the fullest cache counts.
    pub(super) fn parse(text: &str) -> Option<Load> {
        let mut load = Load { running: 0.0, waiting: 0.0, cache: 0.0 };
        let mut found = [false; 3];
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let value = || line.rsplit(' ').next()?.parse::<f64>().ok().filter(|value| value.is_finite());
            let is = |names: &[&str; 2]| names.contains(&name);
            let (at, add): (usize, fn(&mut Load, f64)) = if is(&RUNNING) {
                (0, |load, value| load.running += value)
            } else if is(&WAITING) {
                (1, |load, value| load.waiting += value)
            } else if is(&CACHE) {
                (2, |load, value| load.cache = load.cache.max(value))
            } else {
                continue;
            };
            if let Some(value) = value() {
                add(&mut load, value);
                found[at] = true;
            }
        }
        found.iter().all(|found| *found).then_some(load)
    }
}

/// How many calls a server is given at once after it told its load: no more than it works on while its cache has no room for others; an
/// eighth more where it works on all that it is given.
pub(super) fn limit_after(limit: u32, limit_max: u32, in_flight: u32, load: &Load) -> u32 {
    if load.cache >= CACHE_FULL || (load.waiting > 0.0 && load.cache >= CACHE_SHORT) {
        let running = load.running.clamp(1.0, f64::from(u32::MAX)) as u32;
        return limit.min(running);
    }
    match in_flight >= limit {
        true => limit.saturating_add((limit / 8).max(1)).min(limit_max),
        false => limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_tell_is_read() {
        let vllm = "# HELP vllm:num_requests_running Number\n# TYPE vllm:num_requests_running gauge\n\
             vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 12.0\nvllm:num_requests_running{engine=\"1\",model_name=\"m\"} 3.0\n\
             vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0\n\
             vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"m\",reason=\"capacity\"} 2.0\n\
             vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.5\n";
        assert_eq!(Load::parse(vllm), Some(Load { running: 15.0, waiting: 2.0, cache: 0.5 }));
        let sglang = "sglang:num_running_reqs{model_name=\"m\"} 4\nsglang:num_queue_reqs{model_name=\"m\"} 0\nsglang:token_usage 0.1\n";
        assert_eq!(Load::parse(sglang), Some(Load { running: 4.0, waiting: 0.0, cache: 0.1 }));
        for text in
            ["", "<html>not found</html>", "vllm:num_requests_running 1", "vllm:kv_cache_usage_perc NaN"]
        {
            assert_eq!(Load::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_limit_falls_to_what_runs_and_rises_by_an_eighth() {
        let load = |running, waiting, cache| Load { running, waiting, cache };
        for (limit, in_flight, load, expect) in [
            (64, 64, load(40.0, 24.0, 0.99), 40),
            (64, 64, load(64.0, 0.0, 0.96), 64),
            (64, 64, load(0.0, 3.0, 0.9), 1),
            (60, 40, load(4.0, 60.0, 0.2), 60),
            (32, 32, load(32.0, 0.0, 0.5), 36),
            (60, 60, load(60.0, 0.0, 0.5), 64),
            (4, 4, load(4.0, 0.0, 0.5), 5),
            (32, 20, load(20.0, 0.0, 0.5), 32),
        ] {
            assert_eq!(
                limit_after(limit, 64, in_flight, &load),
                expect,
                "{limit} with {in_flight}, {load:?}"
            );
        }
    }
}
