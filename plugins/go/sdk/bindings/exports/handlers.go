// Package exports is what the host calls: generated functions that read its arguments, and the ones here, which the SDK sets for the
// kind of plugin that was registered.
package exports

import (
	"espalier/sdk/bindings/imports/espalier_base_types"
	"espalier/sdk/bindings/imports/espalier_environment_types"
	"espalier/sdk/bindings/imports/espalier_plugin_judge"
	"espalier/sdk/bindings/imports/espalier_plugin_reports"
	"espalier/sdk/bindings/imports/espalier_plugin_scores"
	"espalier/sdk/bindings/imports/espalier_plugin_task_generator"
	"espalier/sdk/bindings/types"
)

type (
	failure = espalier_base_types.Failure
	task    = espalier_base_types.TaskView
	rollout = espalier_plugin_scores.RolloutView
	score   = espalier_plugin_scores.Score
)

// The exports of all kinds, until one is registered.
var (
	SettingsSchema = func() string {
		panic("no plugin is registered: call espalier.Harness, Reward ... in init")
	}
	Run = func(task) (none types.Result[espalier_plugin_reports.Report, failure]) {
		return unregistered(none, "Harness")
	}
	Reset = func(task) (none types.Result[espalier_environment_types.Observation, failure]) {
		return unregistered(none, "Environment")
	}
	Step = func(action string) (none types.Result[espalier_environment_types.StepResult, failure]) {
		return unregistered(none, "Environment")
	}
	Actions = func() (none types.Result[[]string, failure]) {
		return unregistered(none, "Environment")
	}
	Close        = func() {}
	ScoreRollout = func(rollout) (none types.Result[[]score, failure]) {
		return unregistered(none, "Reward")
	}
	ScoreGroup = func([]rollout) (none types.Result[[][]score, failure]) {
		return unregistered(none, "GroupReward")
	}
	Judge = func(rollout) (none types.Result[espalier_plugin_judge.Judgement, failure]) {
		return unregistered(none, "Judge")
	}
	Generate = func(espalier_plugin_task_generator.Request) (none types.Result[[]string, failure]) {
		return unregistered(none, "TaskGenerator")
	}
	Adapt = func(task string, statistics espalier_plugin_task_generator.Statistics) (none types.Result[[]string, failure]) {
		return unregistered(none, "TaskGenerator")
	}
)

// unregistered is what an export of another kind than the registered one gives.
func unregistered[T any](_ types.Result[T, failure], function string) types.Result[T, failure] {
	text := "espalier." + function + " is not called in init; the kind in plugin.toml and the one registered differ"
	return types.Err[T](espalier_base_types.MakeFailureInvalid(text))
}
