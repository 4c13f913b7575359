"""A group reward: 1 for the answer that most rollouts of a group gave, 0 for any other."""

from collections import Counter

from espalier_sdk import Rollout, Score, group_reward


@group_reward
def score(rollouts: list[Rollout]) -> list[Score]:
    answers = [None if rollout.answer is None else rollout.answer.strip().lower() for rollout in rollouts]
    # Of answers that are equally frequent, the first one counts.
    majority = Counter(answer for answer in answers if answer is not None).most_common(1)
    if not majority:
        return [Score(0, reason="no answers") for _ in rollouts]
    (winner, count), *_ = majority
    reason = f'majority: "{winner}" ({count} of {len(rollouts)})'
    return [Score(int(answer == winner), reason=reason) for answer in answers]
