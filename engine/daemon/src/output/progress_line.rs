//! One line on how a run goes: redrawn on a terminal, printed every few seconds in a pipe.

use super::pace::Pace;
use super::text::{count, cut, duration, score, width};
use super::{Look, styles};
use crate::progress::{Progress, Stage};
use std::time::Duration;

/// Columns of the bar.
const BAR: usize = 16;

/// What the progress of one run looks like.
#[derive(Debug)]
pub struct ProgressLine {
    group_size: u32,
    pace: Pace,
    rollouts_since: Option<Duration>,
}

impl ProgressLine {
    /// For an experiment with groups of this size.
    pub fn new(group_size: u32) -> ProgressLine {
        ProgressLine { group_size, pace: Pace::default(), rollouts_since: None }
    }

    /// The line for a snapshot taken `at` this time since the start.
    pub fn line(&mut self, progress: &Progress, at: Duration, look: &Look) -> String {
        let counts = &progress.counts;
        match progress.stage {
            Stage::Store => "store     opening".to_owned(),
            Stage::Tasks => "tasks     reading".to_owned(),
            Stage::Plugins => {
                format!("plugins   loading, {} tasks read", count(progress.tasks))
            }
            Stage::Models => "models    starting and probing".to_owned(),
            Stage::Rollouts | Stage::Paused | Stage::Draining => {
                let since = *self.rollouts_since.get_or_insert(at);
                self.pace.see(at.saturating_sub(since), counts.ended(), counts.tokens.sampled);
                self.rollouts(progress, look)
            }
            Stage::Done => format!("done      {} rollouts", count(counts.ended())),
        }
    }

    fn rollouts(&self, progress: &Progress, look: &Look) -> String {
        let counts = &progress.counts;
        let of_groups = |groups: u64| groups * u64::from(self.group_size) + counts.added;
        let wanted = progress.groups_wanted.map(of_groups);
        let ended = counts.ended();
        let admits = progress.stage == Stage::Rollouts;
        let mut line = match (progress.stage, wanted) {
            (Stage::Draining, _) => {
                format!("draining  {} still running, {} ended", count(counts.running), count(ended))
            }
            (Stage::Paused, _) => {
                format!("paused    {} still running, {} ended", count(counts.running), count(ended))
            }
            (_, Some(wanted)) => format!("rollouts  {}/{}", count(ended), count(wanted)),
            (_, None) => format!("rollouts  {}", count(ended)),
        };
        let mut parts = Vec::new();
        if let Some(rates) = self.pace.rates() {
            if rates.rollouts >= 1.0 {
                parts.push(format!("{:.1}/s", rates.rollouts));
            } else if rates.rollouts > 0.0 {
                parts.push(format!("{:.1}/min", rates.rollouts * 60.0));
            }
            if rates.tokens >= 0.5 {
                parts.push(format!("{} tok/s", count(rates.tokens.round() as u64)));
            }
        }
        if counts.scored > 0 {
            parts.push(format!("reward {}", score(counts.mean_reward())));
        }
        if admits {
            if counts.backing_off > 0 {
                parts.push(format!("{} retrying", count(counts.backing_off)));
            }
            match wanted.and_then(|wanted| self.pace.time_left(wanted.saturating_sub(ended))) {
                Some(left) => parts.push(format!("{} left", duration(left))),
                None => parts.push(format!("{} running", count(counts.running))),
            }
            if progress.waits_for_task && progress.groups_wanted.is_none() {
                parts.push("waiting for tasks".to_owned());
            }
            if progress.waits_for_trainer {
                parts.push(format!("waiting for trainers ({} groups)", count(progress.undelivered)));
            }
        }
        for part in &parts {
            line.push_str("  ");
            line.push_str(part);
        }
        let bar_of = wanted.filter(|_| look.terminal && admits && width(&line) + BAR + 2 < look.width);
        if let Some(wanted) = bar_of {
            let bar = bar(ended, wanted, look);
            line = line.replacen("rollouts  ", &format!("rollouts  {bar} "), 1);
            return line;
        }
        if look.terminal { cut(&line, look.width - 1) } else { line }
    }
}

fn bar(done: u64, wanted: u64, look: &Look) -> String {
    let filled = if wanted == 0 { 0 } else { (done.min(wanted) as usize * BAR) / wanted as usize };
    let full: String = std::iter::repeat_n('\u{2501}', filled).collect();
    let rest: String = std::iter::repeat_n('\u{2500}', BAR - filled).collect();
    format!("{}{}", look.paint(styles::GOOD, &full), look.paint(styles::FAINT, &rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Counts;
    use espalier_core::ending::StopReason;
    use espalier_core::samples::TokenSums;

    fn snapshot(ended: u64, tokens: u64) -> Progress {
        Progress {
            stage: Stage::Rollouts,
            tasks: 48,
            groups_wanted: Some(48),
            counts: Counts {
                endings: [(StopReason::Submitted, ended)].into(),
                running: 12,
                added: 2,
                scored: ended,
                solved: ended / 5,
                reward_sum: ended as f64 / 5.0,
                tokens: TokenSums { sampled: tokens, ..TokenSums::default() },
                ..Counts::default()
            },
            ..Progress::default()
        }
    }

    #[test]
    fn the_line_fits_a_terminal_and_says_all_in_a_pipe() {
        let mut line = ProgressLine::new(4);
        let pipe = Look { colour: false, width: 80, terminal: false };
        let terminal = Look { terminal: true, ..pipe };
        line.line(&snapshot(0, 0), Duration::from_secs(10), &pipe);
        let text = line.line(&snapshot(50, 12_345), Duration::from_secs(20), &pipe);
        assert_eq!(text, "rollouts  50/194  5.0/s  1,235 tok/s  reward 0.2  28.8 s left");
        let text = line.line(&snapshot(52, 13_000), Duration::from_secs(21), &terminal);
        assert!(width(&text) < 80, "{text}");
        assert!(text.contains('\u{2501}'), "{text}");
        let narrow = Look { width: 40, ..terminal };
        assert!(width(&line.line(&snapshot(53, 13_000), Duration::from_secs(22), &narrow)) < 40);
    }

    #[test]
    fn the_line_of_a_run_that_waits() {
        let look = Look { colour: false, width: 80, terminal: true };
        let line = |change: &dyn Fn(&mut Progress)| {
            let mut progress = snapshot(50, 12_345);
            change(&mut progress);
            ProgressLine::new(4).line(&progress, Duration::ZERO, &look)
        };
        let endless = |progress: &mut Progress| progress.groups_wanted = None;
        assert_eq!(line(&endless), "rollouts  50  reward 0.2  12 running");
        let late = |progress: &mut Progress| (progress.groups_wanted, progress.waits_for_task) = (None, true);
        assert_eq!(line(&late), "rollouts  50  reward 0.2  12 running  waiting for tasks");
        let full = |progress: &mut Progress| {
            (progress.waits_for_trainer, progress.undelivered, progress.counts.running) = (true, 64, 0);
            progress.groups_wanted = None;
        };
        let told = "rollouts  50  reward 0.2  0 running  waiting for trainers (64 groups)";
        assert_eq!(line(&full), told);
        let paused = |progress: &mut Progress| progress.stage = Stage::Paused;
        assert_eq!(line(&paused), "paused    12 still running, 50 ended  reward 0.2");
        let draining = |progress: &mut Progress| progress.stage = Stage::Draining;
        assert_eq!(line(&draining), "draining  12 still running, 50 ended  reward 0.2");
    }
}
