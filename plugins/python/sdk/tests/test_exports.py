"""Decorators, and what is exported for them."""

import json
from dataclasses import dataclass, make_dataclass
from typing import Any

import fake_world
import pytest

import espalier_sdk as sdk
from espalier_sdk import exports


@dataclass
class Settings:
    count: int = 2


def failure_of(act: Any) -> Any:
    with pytest.raises(fake_world.Err) as error:
        act()
    return error.value.value


def test_a_harness_is_given_task_and_settings(world: fake_world.World) -> None:
    world.settings = '{"count": 5}'

    @sdk.harness
    def run(task: sdk.Task, settings: Settings) -> sdk.Report:
        return sdk.Report.limit("turns", data={"count": settings.count, "low": task.data["low"], "private": task.private})

    report = exports.Harness().run(fake_world.task('{"low": 1}'))
    assert report.outcome == fake_world.reports.Outcome_Limit(fake_world.reports.Limit_Turns())
    assert json.loads(report.data) == {"count": 5, "low": 1, "private": None}
    schema = json.loads(exports.Configurable().settings_schema())
    assert schema["properties"] == {"count": {"type": "integer", "default": 2}}


def test_without_settings_none_are_allowed() -> None:
    @sdk.harness
    def run(task: sdk.Task) -> sdk.Report:
        return sdk.Report.gave_up()

    assert exports.Harness().run(fake_world.task()).outcome == fake_world.reports.Outcome_GaveUp()
    assert json.loads(exports.Configurable().settings_schema()) == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (None, "`run` returned: Report: expected a Report, got None"),
        ("done", "`run` returned: Report: expected a Report, got 'done' (str)"),
        (sdk.Report("submitted", 4), "`run` returned: Report.answer: expected a str or None, got 4 (int)"),  # type: ignore[arg-type]
        (sdk.Report("submitted", data={"a": {1}}), "`run` returned: Report.data.a: {1} (set) cannot be JSON"),
        (sdk.Report("limit"), "`run` returned: Report.limit_kind: expected a str, got None"),
    ],
)
def test_a_wrong_report_is_named(world: fake_world.World, returned: Any, problem: str) -> None:
    @sdk.harness
    def run(task: sdk.Task) -> sdk.Report:
        return returned  # type: ignore[no-any-return]

    with pytest.raises(TypeError) as error:
        exports.Harness().run(fake_world.task())
    assert str(error.value).startswith(problem)
    ((level, text, _fields),) = world.logged
    assert level == "ERROR"
    assert "test_exports.py" in text and f", in {run.__qualname__}" in text


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ([1, "x"], "scores[1]: expected a Score or a number, got 'x' (str)"),
        ("x", "scores: expected a list of Score, got 'x' (str)"),
        (sdk.Score(float("nan")), "scores.value: expected a finite number, got nan (float)"),
        (sdk.Score(10**400), f"scores.value: expected a finite number, got 1{'0' * 76}... (int)"),
        ([sdk.Score(1, turn=-1)], "scores[0].turn: expected an int from 0 to 4294967295 or None, got -1 (int)"),
        ([sdk.Score(1, name=None)], "scores[0].name: expected a str, got None"),  # type: ignore[arg-type]
    ],
)
def test_wrong_scores_are_named(returned: Any, problem: str) -> None:
    @sdk.reward
    def score(rollout: sdk.Rollout) -> Any:
        return returned

    with pytest.raises(TypeError) as error:
        exports.Reward().score_rollout(fake_world.rollout())
    assert str(error.value) == f"`score` returned: {problem}"


def test_a_reward_sees_the_rollout() -> None:
    @sdk.reward
    def score(rollout: sdk.Rollout) -> list[sdk.Score]:
        assert rollout.report == sdk.Report.limit("turns", answer="4", data={"turns": 1})
        assert rollout.turns[0].text == "Hm. 4" and rollout.turns[0].tool_calls[0].name == "add"
        assert rollout.steps[0].reward == 0.5 and rollout.blobs == {"log": "b1"} and rollout.extra == {"reward": 1}
        return [sdk.Score(1, "because", extra={"a": 1}), sdk.Score(2.5, name="length", turn=0)]

    first, second = exports.Reward().score_rollout(fake_world.rollout("4"))
    assert (first.name, first.value, first.reason, first.extra) == ("reward", 1.0, "because", '{"a": 1}')
    assert (second.name, second.value, second.turn) == ("length", 2.5, 0)


def test_missing_private_data_is_a_failure() -> None:
    @dataclass
    class Expected:
        answer: str

    @sdk.reward
    def score(rollout: sdk.Rollout) -> float:
        return float(rollout.task.private_as(Expected).answer == rollout.answer)

    types = fake_world.types
    for private, text in [
        (None, "task.private: `answer` is missing"),
        ("{}", "task.private: `answer` is missing"),
        ('{"answer": 4}', "task.private: `answer`: expected a string, got 4"),
    ]:
        failed = failure_of(lambda private=private: exports.Reward().score_rollout(fake_world.rollout("4", private)))
        assert failed == types.Failure_Invalid(text)
    assert exports.Reward().score_rollout(fake_world.rollout("4", '{"answer": "4", "more": 1}'))[0].value == 1


def test_a_group_needs_scores_for_each_rollout() -> None:
    @sdk.group_reward
    def score(rollouts: list[sdk.Rollout]) -> Any:
        return [1.0] if len(rollouts) == 1 else [sdk.Score(0.5)]

    assert exports.GroupReward().score_group([fake_world.rollout()])[0][0].value == 1
    with pytest.raises(TypeError, match="expected scores for 2 rollouts, got 1"):
        exports.GroupReward().score_group([fake_world.rollout(), fake_world.rollout()])


def test_a_judge_gives_scores_and_votes(world: fake_world.World) -> None:
    world.answers = [fake_world.completion("yes", extra='{"call": "c1"}'), fake_world.completion("no")]

    @sdk.judge
    def evaluate(rollout: sdk.Rollout) -> sdk.Judgement:
        branches = sdk.Conversation("judge").user("Well?").complete_many(2)
        votes = [sdk.Vote(float(answer.text == "yes"), answer.text, answer.call) for _branch, answer in branches]
        return sdk.Judgement([sdk.Score(0.5)], votes)

    judgement = exports.Judge().judge(fake_world.rollout())
    assert [(vote.value, vote.text, vote.call, vote.turn) for vote in judgement.votes] == [
        (1.0, "yes", "c1", None),
        (0.0, "no", None, None),
    ]


def test_an_environment_has_an_object_for_each_episode() -> None:
    @sdk.environment
    class Counter:
        def __init__(self, task: sdk.Task, settings: Settings) -> None:
            self.left = settings.count

        def reset(self) -> sdk.Observation:
            return sdk.Observation("begin", images=["b"])

        def step(self, action: str) -> sdk.StepResult:
            self.left -= 1
            return sdk.StepResult(action, reward=1, done=self.left == 0, info={"left": self.left})

    provider = exports.Provider()
    assert failure_of(lambda: provider.step("x")) == fake_world.types.Failure_Invalid("step before reset")
    assert provider.reset(fake_world.task()).images == ["b"]
    assert [provider.step("x").done, provider.step("x").done] == [False, True]
    provider.reset(fake_world.task())
    step = provider.step("y")
    assert (step.observation.text, step.reward, step.done, step.info) == ("y", 1.0, False, '{"left": 1}')
    assert provider.actions() == []
    provider.close()
    assert failure_of(lambda: provider.step("x")) == fake_world.types.Failure_Invalid("step before reset")


def test_a_generator_makes_and_adapts_tasks() -> None:
    @sdk.task_generator
    def generate(request: sdk.Request, settings: Settings) -> list[dict[str, Any]]:
        return [{"id": f"{request.seed}-{index}"} for index in range(settings.count)]

    @sdk.task_generator.adapt
    def adapt(task: dict[str, Any], statistics: sdk.Statistics) -> list[Any]:
        return [task | {"endings": statistics.endings}] if statistics.accuracy else ["no task"]

    request, statistics = sdk.Request(1, 7), sdk.Statistics(4, 0.5, 1.0, {"submitted": 4})
    wit_request = make_dataclass("Request", ["count", "seed", "extra"])(request.count, request.seed, None)
    assert exports.TaskGenerator().generate(wit_request) == ['{"id": "7-0"}', '{"id": "7-1"}']
    fields = ["attempts", "accuracy", "turns", "endings", "failures", "extra"]
    wit_statistics = make_dataclass("Statistics", fields)(4, 0.5, 1.0, list(statistics.endings.items()), [], None)
    assert exports.TaskGenerator().adapt('{"id": "a"}', wit_statistics) == ['{"id": "a", "endings": {"submitted": 4}}']
    wit_statistics.accuracy = 0.0
    with pytest.raises(TypeError, match=r"tasks\[0\]: expected a dict, got 'no task'"):
        exports.TaskGenerator().adapt("{}", wit_statistics)


def test_what_is_no_plugin_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected run\(task\) or run\(task, settings: Settings\), got run\(\)"):

        @sdk.harness  # type: ignore[type-var]
        def run() -> sdk.Report:
            return sdk.Report.submitted()

    with pytest.raises(TypeError, match="parameter `settings` of run2: expected the annotation of a dataclass, got"):

        @sdk.harness
        def run2(task: sdk.Task, settings: dict[str, Any]) -> sdk.Report:
            return sdk.Report.submitted()

    with pytest.raises(TypeError, match="World has no method `step`"):

        class World:
            def reset(self) -> str:
                return ""

        sdk.environment(World)  # type: ignore[type-var]

    sdk.harness(lambda task: sdk.Report.submitted())
    with pytest.raises(TypeError, match="@reward: there is @harness already"):
        sdk.reward(lambda rollout: 1.0)
