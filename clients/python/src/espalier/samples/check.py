"""Every invariant of `group/v1`, checked by what a file says. Shares no code with the engine.

Order: the file (ids unique across groups), each group, its trajectories, their calls, their rows, and last the account:
each sampled token is trained, masked or dropped, exactly once.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple, Union

import numpy as np

from .decode import FormatError, Raw, read_raw
from .records import TokenSums

PROMPT, SAMPLED = 0, 1
ORIGINS = 5

#: stop_reason -> (status, may train).
ENDINGS: Dict[str, Tuple[str, bool]] = {
    "submitted": ("completed", True),
    "gave-up": ("completed", True),
    "limit-turns": ("truncated", True),
    "limit-tokens": ("truncated", True),
    "limit-calls": ("truncated", True),
    "limit-format": ("truncated", True),
    "limit-wall": ("time-exceeded", False),
    "limit-turn-wall": ("time-exceeded", False),
    "budget-ignored": ("failed", False),
    "guest-trap": ("failed", False),
    "harness-failure": ("failed", False),
    "environment-failure": ("failed", False),
    "out-of-memory": ("aborted", False),
    "infrastructure": ("aborted", False),
    "cancelled": ("aborted", False),
}
KINDS = {"task", "judge-turn", "unit-tests"}
STATUSES = {"ready", "short", "stale", "failed", "filtered"}
FINISHES = {"stop", "length", "tool-calls", "filtered"}
LOGPROB_KINDS = {"raw", "processed"}
#: Reasons that exclude a whole rollout; in one that trains, each exclusion has a reason of its own.
WHOLE_ROLLOUT = {"not-trainable", "attempt-abandoned"}
#: Before the reason for which a sample was removed.
REMOVED = "removed: "

STR, INT, NUMBER, BOOL, LIST, MAP = "a string", "a whole number", "a number", "true or false", "a list", "a map"
SIGNED, ARRAY = "an integer", "an array"

GROUP_KEYS = {
    "schema": STR, "run_id": STR, "group_id": STR, "group_index": INT, "kind": STR, "model": STR, "task_id": STR,
    "task_hash": STR, "environment": STR, "n_requested": INT, "n_ready": INT, "dispatch_version": STR, "status": STR,
    "trajectories": LIST, "replaced": LIST,
}  # fmt: skip
GROUP_OPTIONAL = {"parent": MAP, "deadline_ms": INT, "drop_reason": STR, "images": INT, "image_data": MAP, "not_chosen": LIST}
TRAJECTORY_KEYS = {
    "traj_id": STR, "rollout_id": SIGNED, "rollout_index": INT, "attempt": INT, "session_id": STR, "status": STR,
    "stop_reason": STR, "reward_parts": MAP, "trainable": BOOL, "timing_ms": MAP, "plugins": MAP, "errors": LIST,
    "calls": LIST, "segments": LIST, "excluded": LIST,
}  # fmt: skip
TRAJECTORY_OPTIONAL = {"turn_rewards": LIST, "other_calls": LIST, "removed": STR}
CALL_KEYS = {
    "call_id": STR, "model": STR, "turn": INT, "n_prompt": INT, "n_sampled": INT, "finish": STR, "versions": LIST,
    "sampling": MAP, "logprob_kind": STR,
}  # fmt: skip
SAMPLING_KEYS = {
    "temperature": NUMBER, "top_p": NUMBER, "top_k": INT, "min_p": NUMBER, "repeat_penalty": NUMBER, "seed": INT,
    "max_tokens": INT,
}  # fmt: skip
SEGMENT_KEYS = {
    "tokens": ARRAY, "prompt_len": INT, "mask": ARRAY, "origin": ARRAY, "logprobs": ARRAY, "version_runs": LIST,
    "spans": LIST,
}  # fmt: skip
SEGMENT_OPTIONAL = {
    "parent_segment": INT, "fork_at": INT, "drift_kind": STR, "advantages": ARRAY, "token_rewards": ARRAY,
    "images": LIST,
}  # fmt: skip
SPAN_KEYS = {"call_id": STR, "offset": INT, "start": INT, "len": INT, "use": STR}
EXCLUDED_KEYS = {"call_id": STR, "offset": INT, "len": INT, "how": STR, "reason": STR}
IMAGE_KEYS = {"digest": STR, "start": INT, "len": INT}
TIMING_KEYS = {"queue": INT, "boot": INT, "model": INT, "env": INT, "score": INT}


class Finding(NamedTuple):
    """One broken invariant."""

    rule: str
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text} ({self.rule})"


@dataclass
class Report:
    """What a check found."""

    findings: List[Finding] = field(default_factory=list)
    groups: int = 0
    trajectories: int = 0
    segments: int = 0
    images: int = 0
    sums: TokenSums = TokenSums(0, 0, 0, 0)

    def as_dict(self) -> Dict[str, Any]:
        """For machines."""
        return {
            "ok": not self.findings,
            "groups": self.groups,
            "trajectories": self.trajectories,
            "segments": self.segments,
            "images": self.images,
            "tokens": self.sums._asdict(),
            "findings": [finding._asdict() for finding in self.findings],
        }


def check_file(path: Union[str, "os.PathLike[str]"]) -> Report:
    """Checks a file of either form. Raises `OSError` where it cannot be opened; all else is a finding."""
    checker = _Checker()
    try:
        for place, raw in read_raw(path):
            checker.group(place, raw)
    except FormatError as error:
        checker.note("form", error.place, error.text)
    return checker.report


def check_group(group: Raw) -> List[Finding]:
    """Checks one group as `read_raw` gives it."""
    checker = _Checker()
    checker.group("group", group)
    return checker.report.findings


class _Checker:
    def __init__(self) -> None:
        self.report = Report()
        self.seen: Dict[str, Set[Any]] = {"group_id": set(), "traj_id": set(), "call_id": set(), "rollout_id": set()}

    def note(self, rule: str, place: str, text: str) -> None:
        self.report.findings.append(Finding(rule, place, text))

    def ensure(self, holds: bool, rule: str, place: str, text: str) -> bool:
        if not holds:
            self.note(rule, place, text)
        return bool(holds)

    def form(
        self, place: str, record: Any, keys: Mapping[str, str], optional: Optional[Mapping[str, str]] = None
    ) -> bool:
        """Keys and types. What breaks this is not looked at further."""
        if not isinstance(record, dict):
            self.note("form", place, f"is {type(record).__name__}, not a map")
            return False
        whole = True
        for key, kind in keys.items():
            if key not in record:
                self.note("form", place, f"key `{key}` is missing")
                whole = False
            elif not _is(record[key], kind):
                self.note("form", place, f"`{key}` is {_shown(record[key])}, not {kind}")
                whole = False
        for key, kind in (optional or {}).items():
            if key in record and not _is(record[key], kind):
                self.note("form", place, f"`{key}` is {_shown(record[key])}, not {kind}; left out where there is none")
                whole = False
        return whole

    def once(self, kind: str, key: Any, place: str) -> None:
        self.ensure(key not in self.seen[kind], "unique", place, f"{kind} {key!r} stands twice in the file")
        self.seen[kind].add(key)

    def group(self, place: str, group: Raw) -> None:
        self.report.groups += 1
        if isinstance(group, dict) and isinstance(group.get("group_id"), str):
            place = f"{place}, group {group['group_id']}"
        if not self.form(place, group, GROUP_KEYS, GROUP_OPTIONAL):
            return
        self.ensure(group["schema"] == "group/v1", "schema", place, f"schema is {group['schema']!r}")
        self.ensure(group["kind"] in KINDS, "words", place, f"kind is {group['kind']!r}")
        self.ensure(group["status"] in STATUSES, "words", place, f"status is {group['status']!r}")
        if "parent" in group:
            self.form(f"{place}, parent", group["parent"], {"traj_id": STR, "turn": INT})
        needs_parent = group["kind"] == "judge-turn"
        self.ensure(not needs_parent or "parent" in group, "parent", place, "a judge's group names no parent")
        self.once("group_id", group["group_id"], place)

        trained: Dict[Tuple[str, int], str] = {}
        indices: Set[int] = set()
        whole = True
        for key in ("trajectories", "replaced", "not_chosen"):
            for trajectory in group.get(key, []):
                whole &= self.trajectory(place, group, trajectory, key == "replaced", trained, indices)
        if whole:
            self.counts(place, group)
            self.images(place, group)
        for trajectory in group.get("not_chosen", []) if whole else []:
            below = f"{place}, trajectory {trajectory['traj_id']}"
            worth = trajectory["reward"] is not None or trajectory.get("removed") is not None
            self.ensure(worth, "not-chosen", below, "was not chosen, but has no reward to be chosen by")
            self.ensure(not trajectory["trainable"], "not-chosen", below, "was not chosen, but is trainable")

    def counts(self, place: str, group: Raw) -> None:
        rewarded = sum(trajectory["reward"] is not None for trajectory in group["trajectories"])
        ready, requested, status = group["n_ready"], group["n_requested"], group["status"]
        self.ensure(ready == rewarded, "counts", place, f"n_ready is {ready}, {rewarded} trajectories have a reward")
        if status == "ready":
            fits = ready == requested
        else:
            fits = status != "short" or ready < requested
        self.ensure(fits, "counts", place, f"{status} with {ready} of {requested} requested")

    def images(self, place: str, group: Raw) -> None:
        """The group says how many images its rows hold; what it carries of them is what they name."""
        keys = ("trajectories", "replaced", "not_chosen")
        rows = [segment for key in keys for one in group.get(key, []) for segment in one["segments"]]
        named = [image["digest"] for row in rows for image in row.get("images", [])]
        self.report.images += len(named)
        said = group.get("images", 0)
        self.ensure(said == len(named), "images", place, f"images is {said}, its rows hold {len(named)}")
        if "image_data" in group:
            same = set(group["image_data"]) == set(named)
            self.ensure(same, "images", place, "image_data holds other images than its rows")

    def trajectory(
        self,
        place: str,
        group: Raw,
        trajectory: Any,
        replaced: bool,
        trained: Dict[Tuple[str, int], str],
        indices: Set[int],
    ) -> bool:
        self.report.trajectories += 1
        if isinstance(trajectory, dict) and isinstance(trajectory.get("traj_id"), str):
            place = f"{place}, trajectory {trajectory['traj_id']}"
        whole = self.form(place, trajectory, TRAJECTORY_KEYS, TRAJECTORY_OPTIONAL)
        if isinstance(trajectory, dict) and "reward" not in trajectory:
            self.note("form", place, "key `reward` is missing; it is null where there is none")
            whole = False
        if not whole:
            return False
        if not self.form(f"{place}, timing_ms", trajectory["timing_ms"], TIMING_KEYS):
            return False
        self.once("traj_id", trajectory["traj_id"], place)
        self.once("rollout_id", (group["run_id"], trajectory["rollout_id"]), place)
        index = trajectory["rollout_index"]
        self.ensure(index not in indices, "unique", place, f"rollout_index {index} stands twice in the group")
        indices.add(index)
        self.ending(place, trajectory, replaced)

        calls: Dict[str, Raw] = {}
        for key in ("calls", "other_calls"):
            for call in trajectory.get(key, []):
                if not self.call(place, call, group["model"], key == "calls"):
                    return False
                if key == "calls":
                    calls[call["call_id"]] = call
        for row, segment in enumerate(trajectory["segments"]):
            self.report.segments += 1
            if not self.segment(f"{place}, segments[{row}]", trajectory, row, segment, calls):
                return False
        for number, excluded in enumerate(trajectory["excluded"]):
            if not self.form(f"{place}, excluded[{number}]", excluded, EXCLUDED_KEYS):
                return False
        self.account(place, trajectory, calls, trained)
        return True

    def ending(self, place: str, trajectory: Raw, replaced: bool) -> None:
        reward, reason, status = trajectory["reward"], trajectory["stop_reason"], trajectory["status"]
        number = reward is None or (_is(reward, NUMBER) and math.isfinite(reward))
        self.ensure(number, "reward", place, f"reward is {reward!r}")
        self.ensure(not replaced or reward is None, "replaced", place, f"was replaced, but has reward {reward!r}")
        self.removed(place, trajectory, replaced)
        for name, part in trajectory["reward_parts"].items():
            if self.form(f"{place}, reward_parts.{name}", part, {"score": NUMBER, "weight": NUMBER}):
                self.ensure(math.isfinite(part["score"]), "reward", place, f"score {name!r} is {part['score']!r}")
        for score in trajectory.get("turn_rewards", []):
            fine = score is None or (_is(score, NUMBER) and math.isfinite(score))
            self.ensure(fine, "reward", place, f"a reward of turn_rewards is {score!r}")
        if not self.ensure(reason in ENDINGS, "words", place, f"stop_reason is {reason!r}"):
            return
        expected, trains = ENDINGS[reason]
        self.ensure(status == expected, "ending", place, f"{reason} has status {status!r}, not {expected!r}")
        may_train = trains and reward is not None and status not in ("failed", "aborted")
        self.ensure(
            may_train or not trajectory["trainable"],
            "trainable",
            place,
            f"is trainable with reward {reward!r}, status {status}, stop_reason {reason}",
        )

    def removed(self, place: str, trajectory: Raw, replaced: bool) -> None:
        """A removed sample is worth nothing, trains nothing, and is not replaced; the account says why for each token."""
        why = trajectory.get("removed")
        if why is None:
            return
        self.ensure(not replaced, "replaced", place, "was replaced, but its sample was removed, which is not replaced")
        bare = bool(why) and trajectory["reward"] is None and not trajectory["trainable"]
        text = f"was removed for {why!r}, with reward {trajectory['reward']!r}, trainable: {trajectory['trainable']}"
        self.ensure(bare and "turn_rewards" not in trajectory, "removed", place, text)

    def call(self, place: str, call: Any, model: str, own: bool) -> bool:
        if isinstance(call, dict) and isinstance(call.get("call_id"), str):
            place = f"{place}, call {call['call_id']}"
        if not self.form(place, call, CALL_KEYS) or not self.form(f"{place}, sampling", call["sampling"], SAMPLING_KEYS):
            return False
        self.once("call_id", call["call_id"], place)
        text = f"is to {call['model']!r}, the group's model is {model!r}"
        self.ensure((call["model"] == model) == own, "model", place, text)
        self.ensure(call["finish"] in FINISHES, "words", place, f"finish is {call['finish']!r}")
        self.ensure(call["logprob_kind"] in LOGPROB_KINDS, "words", place, f"logprob_kind is {call['logprob_kind']!r}")
        at = 0
        for version in call["versions"]:
            fits = (
                isinstance(version, list)
                and len(version) >= 4
                and _is(version[0], INT)
                and _is(version[1], INT)
                and _is(version[2], STR)
                and (version[3] is None or isinstance(version[3], int))
            )
            if not self.ensure(fits, "form", place, f"version {_shown(version)} is not [offset, len, label, train_step]"):
                return False
            if version[0] != at:
                break
            at += version[1]
        sampled = call["n_sampled"]
        return self.ensure(
            at == sampled and sum(version[1] for version in call["versions"]) == sampled,
            "call-versions",
            place,
            f"its versions do not cover its {sampled} tokens in order",
        )

    def segment(self, place: str, trajectory: Raw, row: int, segment: Any, calls: Dict[str, Raw]) -> bool:
        if not self.form(place, segment, SEGMENT_KEYS, SEGMENT_OPTIONAL):
            return False
        length = len(segment["tokens"])
        for name in ("mask", "origin", "logprobs", "advantages", "token_rewards"):
            if name in segment and len(segment[name]) != length:
                self.note("lengths", place, f"{length} tokens, but {len(segment[name])} in `{name}`")
                return False
        mask, origin, logprobs = segment["mask"], segment["origin"], segment["logprobs"]
        sampled = origin == SAMPLED
        first = int(np.argmax(sampled)) if sampled.any() else length
        text = f"prompt_len is {segment['prompt_len']}, the first sampled token stands at {first}"
        self.ensure(segment["prompt_len"] == first, "prompt-len", place, text)
        self.nowhere(mask > 1, "codes", place, lambda at: f"token {at} has mask {mask[at]}")
        self.nowhere(origin >= ORIGINS, "codes", place, lambda at: f"token {at} has origin {origin[at]}")
        real = np.isfinite(logprobs) & (logprobs <= 0)
        self.nowhere(
            (mask == 1) & ~(sampled & real),
            "mask",
            place,
            lambda at: f"token {at} trains with origin {origin[at]} and logprob {logprobs[at]}",
        )
        self.nowhere(
            ~np.isfinite(logprobs) | (~sampled & (logprobs != 0)),
            "logprobs",
            place,
            lambda at: f"token {at} has origin {origin[at]} and logprob {logprobs[at]}",
        )
        for name in ("advantages", "token_rewards"):
            if name in segment:
                values = segment[name]
                self.nowhere(~np.isfinite(values), "finite", place, lambda at: f"{name}[{at}] is {values[at]}")
        behind = 0
        for image in segment.get("images", []):
            if not self.form(f"{place}, images", image, IMAGE_KEYS):
                return False
            start, end = image["start"], image["start"] + image["len"]
            inside = behind <= start < end <= length
            text = f"image at {start}, +{image['len']}"
            if self.ensure(inside, "images", place, f"{text} is empty, overlaps another, or leaves the row"):
                self.ensure(not sampled[start:end].any(), "images", place, f"{text} holds sampled tokens")
            behind = end
        self.parent(place, trajectory, row, segment)
        return self.spans(place, segment, calls) and self.versions(place, segment, calls)

    def nowhere(self, broken: Any, rule: str, place: str, text: Any) -> None:
        """Of one kind in one row, the first and how many more."""
        count = int(np.count_nonzero(broken))
        if count:
            more = f", and {count - 1} more" if count > 1 else ""
            self.note(rule, place, text(int(np.argmax(broken))) + more)

    def parent(self, place: str, trajectory: Raw, row: int, segment: Raw) -> None:
        parent, shared = segment.get("parent_segment"), segment.get("fork_at")
        if parent is None:
            self.ensure(shared is None, "parent", place, "fork_at without parent_segment")
            return
        if not self.ensure(parent < row, "parent", place, f"parent_segment {parent} does not come before it"):
            return
        shared = shared or 0
        mine, theirs = segment["tokens"], trajectory["segments"][parent]["tokens"]
        same = shared <= min(len(mine), len(theirs)) and np.array_equal(mine[:shared], theirs[:shared])
        self.ensure(same, "parent", place, f"does not share {shared} tokens with segment {parent}")

    def spans(self, place: str, segment: Raw, calls: Dict[str, Raw]) -> bool:
        length, origin = len(segment["tokens"]), segment["origin"]
        in_span = np.zeros(length, dtype=bool)
        behind = 0
        for number, span in enumerate(segment["spans"]):
            if not self.form(f"{place}, spans[{number}]", span, SPAN_KEYS):
                return False
            start, end, offset, use = span["start"], span["start"] + span["len"], span["offset"], span["use"]
            text = f"span [{start}, +{span['len']}) of call {span['call_id']}"
            if not self.ensure(use in ("sampled", "reused"), "words", place, f"{text} has use {use!r}"):
                return False
            call = calls.get(span["call_id"])
            inside = span["len"] > 0 and start >= behind and end <= length
            if not self.ensure(inside, "spans", place, f"{text} is empty, overlaps another, or leaves the row"):
                return False
            # A past that another trajectory sampled is only context here.
            known = call is not None or use == "reused"
            if not self.ensure(known, "spans", place, f"{text} is of no call of this trajectory"):
                return False
            fits = call is None or offset + span["len"] <= call["n_sampled"]
            if not self.ensure(fits, "spans", place, f"{text} at offset {offset} leaves the call"):
                return False
            behind = end
            expected = SAMPLED if use == "sampled" else PROMPT
            text = f"{text}, {use}, holds a token of another origin than {expected}"
            self.ensure(bool((origin[start:end] == expected).all()), "span-origin", place, text)
            if use == "sampled":
                in_span[start:end] = True
        self.nowhere(
            (origin == SAMPLED) & ~in_span, "span-origin", place, lambda at: f"token {at} is sampled, but in no sampled span"
        )
        return True

    def versions(self, place: str, segment: Raw, calls: Dict[str, Raw]) -> bool:
        labels: List[Optional[str]] = [None] * len(segment["tokens"])
        behind = 0
        for run in segment["version_runs"]:
            form = isinstance(run, list) and len(run) >= 3 and _is(run[0], INT) and _is(run[1], INT) and _is(run[2], STR)
            if not self.ensure(form, "form", place, f"version run {_shown(run)} is not [start, len, label]"):
                return False
            start, count, label = run[:3]
            inside = start >= behind and start + count <= len(labels)
            text = f"version run [{start}, +{count}) overlaps another, or leaves the row"
            if not self.ensure(inside, "version-runs", place, text):
                return False
            behind = start + count
            labels[start:behind] = [label] * count
        for span in segment["spans"]:
            if span["use"] != "sampled":
                continue
            said = [version[2] for version in calls[span["call_id"]]["versions"] for _ in range(version[1])]
            for i in range(span["len"]):
                at = span["start"] + i
                expected = said[span["offset"] + i]
                if segment["mask"][at] == 1 and labels[at] != expected:
                    text = f"token {at} trains with version {labels[at]!r}, its call says {expected!r}"
                    self.note("version-runs", place, text)
                    return True
        return True

    def account(
        self, place: str, trajectory: Raw, calls: Dict[str, Raw], trained: Dict[Tuple[str, int], str]
    ) -> None:
        """Each token of each call is trained, masked or dropped, exactly once; what trains, trains once in the group."""
        trains = {call_id: np.zeros(call["n_sampled"], dtype=np.int64) for call_id, call in calls.items()}
        bare = {call_id: np.zeros(call["n_sampled"], dtype=np.int64) for call_id, call in calls.items()}
        for row, segment in enumerate(trajectory["segments"]):
            for span in segment["spans"]:
                if span["use"] != "sampled":
                    continue
                mask = segment["mask"][span["start"] : span["start"] + span["len"]] == 1
                part = slice(span["offset"], span["offset"] + span["len"])
                trains[span["call_id"]][part] += mask
                bare[span["call_id"]][part] += ~mask
                for offset in np.flatnonzero(mask):
                    key = (span["call_id"], int(span["offset"] + offset))
                    there = trained.setdefault(key, f"{place}, segments[{row}]")
                    if there != f"{place}, segments[{row}]":
                        self.note("once", place, f"token {key[1]} of call {key[0]} trains here and in {there}")
        masked = {call_id: np.zeros(call["n_sampled"], dtype=np.int64) for call_id, call in calls.items()}
        dropped = {call_id: np.zeros(call["n_sampled"], dtype=np.int64) for call_id, call in calls.items()}
        sums = {"masked": 0, "dropped": 0}
        for excluded in trajectory["excluded"]:
            call_id, how, reason = excluded["call_id"], excluded["how"], excluded["reason"]
            text = f"excluded [{excluded['offset']}, +{excluded['len']}) of call {call_id}"
            if not self.ensure(how in sums, "words", place, f"{text} is {how!r}"):
                continue
            fits = (
                call_id in calls
                and excluded["len"] > 0
                and excluded["offset"] + excluded["len"] <= calls[call_id]["n_sampled"]
            )
            if not self.ensure(fits, "account", place, f"{text} names no tokens"):
                continue
            sums[how] += excluded["len"]
            where = masked if how == "masked" else dropped
            where[call_id][excluded["offset"] : excluded["offset"] + excluded["len"]] += 1
            own = bool(reason) and not (trajectory["trainable"] and reason in WHOLE_ROLLOUT)
            self.ensure(own, "reason", place, f"{text} has reason {reason!r}")
            why = trajectory.get("removed")
            fits = not reason.startswith(REMOVED) if why is None else reason == REMOVED + why
            self.ensure(fits, "removed", place, f"{text} has reason {reason!r}, the sample was removed for {why!r}")
        for call_id, call in calls.items():
            total = trains[call_id] + masked[call_id] + dropped[call_id]
            place_of_call = f"{place}, call {call_id}"
            self.nowhere(
                trains[call_id] + bare[call_id] > 1, "once", place_of_call, lambda at: f"token {at} stands as sampled twice"
            )
            self.nowhere(
                total == 0, "account", place_of_call, lambda at: f"token {at} is neither trained, masked nor dropped"
            )
            self.nowhere(total > 1, "account", place_of_call, lambda at: f"token {at} is accounted for {total[at]} times")
            self.nowhere(
                (masked[call_id] > 0) & (bare[call_id] == 0),
                "account",
                place_of_call,
                lambda at: f"token {at} is masked, but stands in no row with mask 0",
            )
            self.nowhere(
                (dropped[call_id] > 0) & (trains[call_id] + bare[call_id] > 0),
                "account",
                place_of_call,
                lambda at: f"token {at} is dropped, but stands in a row as sampled",
            )
        count = sum(int(values.sum()) for values in trains.values())
        self.ensure(trajectory["trainable"] or count == 0, "reason", place, f"is not trainable, but {count} tokens train")
        sampled = sum(call["n_sampled"] for call in calls.values())
        mine = TokenSums(sampled, count, sums["masked"], sums["dropped"])
        closes = sampled == count + sums["masked"] + sums["dropped"]
        self.ensure(closes, "account", place, f"the sums do not close: {mine}")
        self.report.sums = TokenSums(*(a + b for a, b in zip(self.report.sums, mine)))


def _is(value: Any, kind: str) -> bool:
    if kind == STR:
        return isinstance(value, str)
    if kind == INT:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if kind == SIGNED:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == NUMBER:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == BOOL:
        return isinstance(value, bool)
    if kind == LIST:
        return isinstance(value, list)
    if kind == MAP:
        return isinstance(value, dict)
    return isinstance(value, np.ndarray)


def _shown(value: Any) -> str:
    text = "an array" if isinstance(value, np.ndarray) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
