from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import making
import numpy as np
import pytest
from espalier import samples

FORMS = ["groups.jsonl", "groups.msgpack"]


@pytest.mark.parametrize("form", FORMS)
def test_a_valid_file_reads_as_typed_arrays_and_passes(tmp_path: Path, form: str) -> None:
    path = making.write(tmp_path / form, [making.group(0), making.group(1)])
    groups = list(samples.read(path))
    assert [group.group_id for group in groups] == ["run.g0", "run.g1"]
    first = groups[0].trajectories[0]
    main, rewritten = first.segments
    expected = making.two_turns("x", 0)["segments"]
    for mine, theirs in zip((main, rewritten), expected):
        for name in ("tokens", "mask", "origin", "logprobs"):
            got = getattr(mine, name)
            assert got.dtype == theirs[name].dtype and np.array_equal(got, theirs[name]), name
    assert main.advantages is not None and main.advantages.dtype == np.float32
    assert rewritten.advantages is None and rewritten.fork_at == 5 and len(rewritten) == 8
    assert first.calls[0].versions[1] == samples.VersionSpan(2, 3, "v2", 2)
    assert first.token_sums() == samples.TokenSums(sampled=12, trained=7, masked=1, dropped=4)
    assert groups[0].trajectories[2].reward is None and groups[0].replaced[0].stop_reason == "guest-trap"
    report = samples.check_file(path)
    assert report.findings == []
    assert (report.groups, report.trajectories, report.segments) == (2, 8, 10)
    assert report.sums == samples.TokenSums(28, 14, 6, 8)


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    read = [list(samples.read(making.write(tmp_path / form, [making.group()])))[0] for form in FORMS]
    for a, b in zip(read[0].trajectories, read[1].trajectories):
        assert (a.calls, a.excluded, a.reward_parts) == (b.calls, b.excluded, b.reward_parts)
        for left, right in zip(a.segments, b.segments):
            assert np.array_equal(left.logprobs.view(np.uint32), right.logprobs.view(np.uint32))
            assert left.spans == right.spans


def at(group: making.Raw, *keys: Any) -> Any:
    for key in keys:
        group = group[key]
    return group


def setting(*path: Any, to: Any) -> Callable[[making.Raw], None]:
    def change(group: making.Raw) -> None:
        at(group, *path[:-1])[path[-1]] = to

    return change


def without(*path: Any) -> Callable[[making.Raw], None]:
    def change(group: making.Raw) -> None:
        del at(group, *path[:-1])[path[-1]]

    return change


FIRST = ("trajectories", 0)
MAIN = (*FIRST, "segments", 0)
REWRITTEN = (*FIRST, "segments", 1)


def with_a_longer_array(name: str) -> Callable[[making.Raw], None]:
    def change(group: making.Raw) -> None:
        row = at(group, *MAIN)
        row[name] = np.append(row[name], row[name][-1:])

    return change


def two_rows_train_the_same(group: making.Raw) -> None:
    row = at(group, *REWRITTEN)
    row["spans"][0]["use"] = "sampled"
    row["origin"][3:5] = 1
    row["mask"][3:5] = 1
    row["logprobs"][3:5] = -1
    row["prompt_len"] = 3
    row["version_runs"] = [[3, 2, "v1"], [5, 2, "v2"]]


def same_id_again(key: str) -> Callable[[making.Raw], None]:
    def change(group: making.Raw) -> None:
        group["trajectories"][1][key] = group["trajectories"][0][key]

    return change


def a_call_stands_twice(group: making.Raw) -> None:
    group["trajectories"][2]["calls"][0]["call_id"] = "run.g0.r0.a0.c1"
    group["trajectories"][2]["segments"][0]["spans"][0]["call_id"] = "run.g0.r0.a0.c1"
    group["trajectories"][2]["excluded"][0]["call_id"] = "run.g0.r0.a0.c1"


def a_failed_one_trains(group: making.Raw) -> None:
    one = group["trajectories"][2]
    one["segments"][0]["mask"][1] = 1
    one["segments"][0]["version_runs"] = [[1, 1, "v1"]]
    one["excluded"] = []


BROKEN: Dict[str, Any] = {
    "another schema": (setting("schema", to="group/v2"), "schema"),
    "a key is missing": (without("task_hash"), "form"),
    "reward is left out": (without(*FIRST, "reward"), "form"),
    "null for an absent key": (setting("drop_reason", to=None), "form"),
    "a truth value as a number": (setting(*FIRST, "trainable", to=1), "form"),
    "a negative count": (setting("n_requested", to=-1), "form"),
    "timing without a stage": (without(*FIRST, "timing_ms", "env"), "form"),
    "sampling without a sampler": (without(*FIRST, "calls", 0, "sampling", "min_p"), "form"),
    "n_ready counts another number": (setting("n_ready", to=3), "counts"),
    "ready, but one lacks": (setting("status", to="ready"), "counts"),
    "short, but whole": (setting("n_requested", to=2), "counts"),
    "an unknown group status": (setting("status", to="done"), "words"),
    "an unknown kind": (setting("kind", to="tasks"), "words"),
    "a judge's group without parent": (setting("kind", to="judge-turn"), "parent"),
    "a trajectory stands twice": (same_id_again("traj_id"), "unique"),
    "a rollout stands twice": (same_id_again("rollout_id"), "unique"),
    "a place is taken twice": (same_id_again("rollout_index"), "unique"),
    "a call stands twice": (a_call_stands_twice, "unique"),
    "a replaced one has a reward": (setting("replaced", 0, "reward", to=0.0), "replaced"),
    "a status of another row": (setting(*FIRST, "status", to="truncated"), "ending"),
    "an unknown ending": (setting(*FIRST, "stop_reason", to="done"), "words"),
    "a failed one is trainable": (setting("trajectories", 2, "trainable", to=True), "trainable"),
    "trainable without a reward": (setting(*FIRST, "reward", to=None), "trainable"),
    "a reward that is not a number": (setting(*FIRST, "reward", to=float("nan")), "reward"),
    "a score that is not a number": (setting(*FIRST, "reward_parts", "reward", "score", to=float("inf")), "reward"),
    "a turn's reward is text": (setting(*FIRST, "turn_rewards", 0, to="high"), "reward"),
    "a call of another model": (setting(*FIRST, "calls", 1, "model", to="judge"), "model"),
    "an own call among the others": (setting(*FIRST, "other_calls", 0, "model", to="policy"), "model"),
    "an unknown finish": (setting(*FIRST, "calls", 0, "finish", to="eos"), "words"),
    "an unknown logprob kind": (setting(*FIRST, "calls", 0, "logprob_kind", to="cooked"), "words"),
    "versions with a gap": (setting(*FIRST, "calls", 0, "versions", 1, to=[3, 2, "v2", 2]), "call-versions"),
    "versions that end early": (setting(*FIRST, "calls", 1, "versions", to=[[0, 1, "v2", 2]]), "call-versions"),
    **{
        f"{name} is longer": (with_a_longer_array(name), "lengths")
        for name in ("mask", "origin", "logprobs", "advantages")
    },
    "prompt_len past the first answer": (setting(*MAIN, "prompt_len", to=4), "prompt-len"),
    "prompt_len of a row without answer": (setting("trajectories", 1, "segments", 0, "prompt_len", to=0), "prompt-len"),
    "a mask of 2": (setting(*MAIN, "mask", 3, to=2), "codes"),
    "an origin of 5": (setting(*MAIN, "origin", 8, to=5), "codes"),
    "a prompt token trains": (setting(*MAIN, "mask", 0, to=1), "mask"),
    "a logprob above 0 trains": (setting(*MAIN, "logprobs", 3, to=0.5), "mask"),
    "a logprob where nothing was sampled": (setting(*MAIN, "logprobs", 0, to=-1.0), "logprobs"),
    "an advantage that is not a number": (setting(*MAIN, "advantages", 3, to=np.inf), "finite"),
    "a span leaves the row": (setting(*MAIN, "spans", 1, "len", to=3), "spans"),
    "spans overlap": (setting(*MAIN, "spans", 1, "start", to=6), "spans"),
    "a span leaves its call": (setting(*REWRITTEN, "spans", 1, "offset", to=1), "spans"),
    "a sampled span of an unknown call": (setting(*MAIN, "spans", 1, "call_id", to="else"), "spans"),
    "a span of an unknown use": (setting(*MAIN, "spans", 1, "use", to="kept"), "words"),
    "a reused span over an answer": (setting(*MAIN, "spans", 1, "use", to="reused"), "span-origin"),
    "an answer in no span": (setting(*MAIN, "origin", 8, to=1), "span-origin"),
    "version runs that leave a gap": (setting(*MAIN, "version_runs", 1, to=[5, 0, "v2"]), "version-runs"),
    "version runs that overlap": (setting(*MAIN, "version_runs", 1, to=[4, 3, "v2"]), "version-runs"),
    "a label the call does not say": (setting(*MAIN, "version_runs", 0, to=[3, 2, "v9"]), "version-runs"),
    "an image leaves the row": (setting(*REWRITTEN, "images", 0, "len", to=9), "images"),
    "an image of nothing": (setting(*REWRITTEN, "images", 0, "len", to=0), "images"),
    "an image was sampled": (setting(*REWRITTEN, "images", 0, "len", to=6), "images"),
    "an image that is not counted": (without("images"), "images"),
    "an image that no row names": (setting("image_data", to={"ab": {}}), "images"),
    "a parent that comes later": (setting(*MAIN, "parent_segment", to=1), "parent"),
    "fork_at without a parent": (setting(*MAIN, "fork_at", to=1), "parent"),
    "a prefix that is not shared": (setting(*REWRITTEN, "fork_at", to=6), "parent"),
    "two rows train the same token": (two_rows_train_the_same, "once"),
    "a token without account": (setting(*FIRST, "excluded", to=[]), "account"),
    "a token is dropped and trains": (setting(*FIRST, "excluded", 1, "offset", to=1), "account"),
    "a masked token stands nowhere": (setting(*FIRST, "excluded", 1, "how", to="masked"), "account"),
    "an exclusion of no call": (setting(*FIRST, "excluded", 0, "call_id", to="else"), "account"),
    "an exclusion past its call": (setting(*FIRST, "excluded", 1, "len", to=2), "account"),
    "an exclusion of an unknown kind": (setting(*FIRST, "excluded", 0, "how", to="hidden"), "words"),
    "an exclusion without a reason": (setting(*FIRST, "excluded", 0, "reason", to=""), "reason"),
    "a trainable rollout excluded as a whole": (setting(*FIRST, "excluded", 0, "reason", to="not-trainable"), "reason"),
    "an untrainable one trains": (setting(*FIRST, "trainable", to=False), "reason"),
    "a failed one trains a token": (a_failed_one_trains, "reason"),
    "a removed one has a reward": (setting(*FIRST, "removed", to="captcha"), "removed"),
    "a removed one keeps other reasons": (setting(*FIRST, "removed", to="captcha"), "removed"),
    "a removed one was replaced": (setting("replaced", 0, "removed", to="captcha"), "replaced"),
    "an exclusion for a removal that was none": (setting(*FIRST, "excluded", 0, "reason", to="removed: x"), "removed"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_invariant_is_missed_when_broken(tmp_path: Path, name: str) -> None:
    change, rule = BROKEN[name]
    group = making.group()
    change(group)
    # JSON knows no NaN: there the form itself is broken.
    path = making.write(tmp_path / "groups.msgpack", [group])
    report = samples.check_file(path)
    assert rule in {finding.rule for finding in report.findings}, [str(finding) for finding in report.findings]
    assert all(finding.place and finding.text for finding in report.findings)


def test_ids_are_unique_across_the_groups_of_a_file(tmp_path: Path) -> None:
    path = making.write(tmp_path / "groups.jsonl", [making.group(), making.group()])
    texts = [finding.text for finding in samples.check_file(path).findings]
    assert "group_id 'run.g0' stands twice in the file" in texts
    assert "call_id 'run.g0.r0.a0.c0' stands twice in the file" in texts


@pytest.mark.parametrize("form", FORMS)
def test_a_file_cut_anywhere_is_never_taken_for_whole(tmp_path: Path, form: str) -> None:
    whole = making.write(tmp_path / form, [making.group(0), making.group(1)]).read_bytes()
    ends = {0}
    if form.endswith(".jsonl"):
        ends |= {index + 1 for index, byte in enumerate(whole) if byte == ord("\n")}
    else:
        first = 4 + int.from_bytes(whole[:4], "little")
        ends |= {first, len(whole)}
    path = tmp_path / f"cut-{form}"
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        if end not in ends:
            assert [finding.rule for finding in samples.check_file(path).findings] == ["form"], end


def test_damage_of_the_form_names_its_place(tmp_path: Path) -> None:
    path = making.write(tmp_path / "groups.jsonl", [making.group(0), making.group(1)])
    lines = path.read_text().splitlines(keepends=True)

    def finding(line: str) -> str:
        path.write_text(lines[0] + line)
        (found,) = samples.check_file(path).findings
        return str(found)

    assert finding("{]\n").startswith("line 2: is not JSON")
    assert finding("[]\n") == "line 2: is a list, expected a map (form)"
    group = json.loads(lines[1])
    group["trajectories"][0]["segments"][1]["tokens"][2] = -1
    assert finding(json.dumps(group) + "\n") == (
        "line 2, trajectories[0], segments[1].tokens: element 2 is -1, not a whole number from 0 to 4294967295 (form)"
    )
    group["trajectories"][0]["segments"][1]["tokens"][2] = 1.5
    assert "element 2 is 1.5" in finding(json.dumps(group) + "\n")
    with pytest.raises(samples.FormatError, match="line 2"):
        list(samples.read(path))


def test_unknown_keys_are_ignored(tmp_path: Path) -> None:
    group = making.group()
    group["later"] = {"a": 1}
    group["trajectories"][0]["segments"][0]["later"] = [1, 2]
    for form in FORMS:
        path = making.write(tmp_path / form, [group])
        assert samples.check_file(path).findings == []
        assert next(samples.read(path)).raw["later"] == {"a": 1}


def shell(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "espalier.samples", "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_command_says_what_it_found_and_exits_by_it(tmp_path: Path) -> None:
    path = making.write(tmp_path / "groups.msgpack", [making.group()])
    good = shell(str(path))
    assert good.returncode == 0
    assert good.stdout == (
        f"{path}: all invariants hold; 1 groups, 4 trajectories, 5 segments; "
        "14 sampled = 7 trained + 3 masked + 4 dropped; 1 images in rows\n"
    )
    group = making.group()
    group["trajectories"][0]["segments"][0]["prompt_len"] = 5
    making.write(path, [group])
    bad = shell(str(path))
    assert bad.returncode == 1
    assert bad.stdout.splitlines()[0] == (
        f"{path}: byte 0, group run.g0, trajectory run.g0.r0.a0, segments[0]: prompt_len is 5, the first sampled "
        "token stands at 3 (prompt-len)"
    )
    machine = shell("--json", str(path))
    assert machine.returncode == 1 and json.loads(machine.stdout)["findings"][0]["rule"] == "prompt-len"
    missing = shell(str(tmp_path / "none"))
    assert missing.returncode == 2 and "No such file" in missing.stderr


def a_removed_sample(group: making.Raw) -> None:
    one = group["trajectories"][0]
    del one["turn_rewards"]
    for row in one["segments"]:
        row["mask"][:] = 0
    one.update(
        reward=None,
        removed="captcha",
        trainable=False,
        excluded=[
            making.excluded(call["call_id"], 0, call["n_sampled"], how, "removed: captcha")
            for call, how in zip(one["calls"], ("masked", "masked", "masked", "dropped"))
        ],
    )
    first = one["excluded"][0]
    first["len"] = 4
    one["excluded"].append(making.excluded(first["call_id"], 4, 1, "dropped", "removed: captcha"))
    group.update(status="short", n_ready=group["n_ready"] - 1)


def test_a_removed_sample_trains_nothing_and_counts_for_nothing(tmp_path: Path) -> None:
    raw = making.group()
    a_removed_sample(raw)
    path = making.write(tmp_path / "groups.msgpack", [raw])
    assert samples.check_file(path).findings == []
    (group,) = samples.read(path)
    one = group.trajectories[0]
    assert one.removed == "captcha" and one.token_sums().trained == 0
    assert {excluded.reason for excluded in one.excluded} == {"removed: captcha"}
    assert samples.advantages(group)[0] is None
    assert [other.removed for other in group.trajectories[1:]] == [None] * (len(group.trajectories) - 1)


def test_a_row_for_each_call_keeps_the_account(tmp_path: Path) -> None:
    path = making.write(tmp_path / "groups.msgpack", [making.group()])
    (group,) = samples.read(path)
    cut = samples.per_call(group)
    main, rewritten = group.trajectories[0].segments
    first, second, third = cut.trajectories[0].segments
    assert first.tokens.tolist() == main.tokens[:7].tolist() and first.mask.tolist() == main.mask[:7].tolist()
    assert second.tokens.tolist() == main.tokens.tolist()
    assert second.mask.tolist() == [0] * 9 + [1, 1] and second.prompt_len == 9
    assert second.origin.tolist() == [0, 0, 0, 0, 0, 0, 0, 3, 2, 1, 1]
    assert second.logprobs.tolist() == [0.0] * 9 + main.logprobs[9:].tolist()
    assert [(span.use, span.len) for span in second.spans] == [("reused", 4), ("sampled", 2)]
    assert second.version_runs == [(9, 2, "v2")] and (second.parent_segment, second.fork_at) == (0, 7)
    assert (third.parent_segment, third.fork_at) == (1, 5) and third.tokens.tolist() == rewritten.tokens.tolist()
    assert cut.trajectories[0].token_sums() == group.trajectories[0].token_sums()
    assert cut.images == group.images


@pytest.mark.parametrize(
    "rewards, expected",
    [
        # Mean 0.25, s = sqrt(0.75 / 3) = 0.5.
        ([1.0, 0.0, 0.0, 0.0], [0.75 / 0.500001] + [-0.25 / 0.500001] * 3),
        ([1.0, None, -1.0], [1 / (math.sqrt(2) + 1e-6), None, -1 / (math.sqrt(2) + 1e-6)]),
        ([1.0, 1.0], [0.0, 0.0]),
        ([1.0], [0.0]),
        ([None], [None]),
    ],
)
def test_advantages_are_by_the_sample_deviation(
    tmp_path: Path, rewards: List[Optional[float]], expected: List[Optional[float]]
) -> None:
    (group,) = samples.read(making.write(tmp_path / "groups.msgpack", [making.group()]))
    one = group.trajectories[0]
    group = replace(group, trajectories=[replace(one, reward=reward) for reward in rewards])
    assert samples.advantages(group) == pytest.approx(expected)
    for given, value in zip(samples.with_advantages(group).trajectories, expected):
        for row in given.segments:
            if value is None:
                assert row.advantages is None
            else:
                assert row.advantages is not None and row.advantages.tolist() == pytest.approx((row.mask * value).tolist())


def with_one_not_chosen(group: making.Raw) -> None:
    """Another one had its reward, and was not chosen."""
    one = making.empty("run.g0.r4.a0", 4)
    one["trainable"] = False
    group["not_chosen"] = [one]


def test_rollouts_that_were_not_chosen_are_there_and_train_nothing(tmp_path: Path) -> None:
    raw = making.group()
    with_one_not_chosen(raw)
    for form in FORMS:
        path = making.write(tmp_path / form, [raw])
        report = samples.check_file(path)
        assert report.findings == [] and report.trajectories == 5
        (group,) = samples.read(path)
        (one,) = group.not_chosen
        assert (one.rollout_index, one.reward, one.trainable) == (4, 0.0, False)
        assert len(samples.per_call(group).not_chosen) == 1 and len(samples.advantages(group)) == 3
    for key, value in (("trainable", True), ("reward", None)):
        broken = making.group()
        with_one_not_chosen(broken)
        broken["not_chosen"][0][key] = value
        findings = samples.check_file(making.write(tmp_path / "groups.msgpack", [broken])).findings
        assert "not-chosen" in {finding.rule for finding in findings}, findings
