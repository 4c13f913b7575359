package espalier

import (
	"fmt"
	"sort"

	"espalier/sdk/bindings/exports"
	"espalier/sdk/bindings/imports/espalier_base_settings"
	"espalier/sdk/bindings/imports/espalier_base_types"
	"espalier/sdk/bindings/imports/espalier_environment_types"
	"espalier/sdk/bindings/imports/espalier_plugin_judge"
	"espalier/sdk/bindings/imports/espalier_plugin_reports"
	"espalier/sdk/bindings/imports/espalier_plugin_scores"
	"espalier/sdk/bindings/imports/espalier_plugin_task_generator"
	"espalier/sdk/bindings/types"
)

// Harness registers what drives the turns of a rollout. Call it in init.
func Harness[S any](run func(task *Task, settings S) (*Report, error)) {
	register[S]("Harness")
	exports.Run = func(view espalier_base_types.TaskView) types.Result[espalier_plugin_reports.Report, failureOfImport] {
		defer ended()
		return returned(func() (out espalier_plugin_reports.Report, err error) {
			settings, err := settingsOf[S]()
			if err != nil {
				return out, err
			}
			report, err := run(taskIn(view), settings)
			if err != nil {
				return out, err
			}
			return report.out()
		})
	}
}

// Simulation is a small simulated world, as an environment plugin holds it: one value for each rollout. It may have the
// methods `Actions() ([]string, error)`, for the actions possible now, and `Close()`.
type Simulation interface {
	// Step carries out one action. One that the world refuses is an observation, not an error.
	Step(action string) (StepResult, error)
}

// Environment registers how an episode is started: start returns the world of this task, and what is seen first. Call it in init.
func Environment[S any, W Simulation](start func(task *Task, settings S) (W, Observation, error)) {
	register[S]("Environment")
	var world Simulation
	exports.Reset = func(view espalier_base_types.TaskView) types.Result[espalier_environment_types.Observation, failureOfImport] {
		defer ended()
		return returned(func() (out espalier_environment_types.Observation, err error) {
			settings, err := settingsOf[S]()
			if err != nil {
				return out, err
			}
			started, seen, err := start(taskIn(view), settings)
			if err != nil {
				return out, err
			}
			world = started
			return seen.out(), nil
		})
	}
	exports.Step = func(action string) types.Result[espalier_environment_types.StepResult, failureOfImport] {
		defer ended()
		return returned(func() (out espalier_environment_types.StepResult, err error) {
			if world == nil {
				return out, Invalid("step before reset")
			}
			step, err := world.Step(action)
			if err != nil {
				return out, err
			}
			return step.out()
		})
	}
	exports.Actions = func() types.Result[[]string, failureOfImport] {
		defer ended()
		return returned(func() ([]string, error) {
			if lists, ok := world.(interface{ Actions() ([]string, error) }); ok {
				return lists.Actions()
			}
			return nil, nil
		})
	}
	exports.Close = func() {
		defer ended()
		if closes, ok := world.(interface{ Close() }); ok {
			closes.Close()
		}
		world = nil
	}
}

// Reward registers what scores one rollout. An error leaves the rollout unscored, which is not 0. Call it in init.
func Reward[S any](score func(rollout *Rollout, settings S) ([]Score, error)) {
	register[S]("Reward")
	exports.ScoreRollout = func(view espalier_plugin_scores.RolloutView) types.Result[[]espalier_plugin_scores.Score, failureOfImport] {
		defer ended()
		return returned(func() ([]espalier_plugin_scores.Score, error) {
			settings, err := settingsOf[S]()
			if err != nil {
				return nil, err
			}
			scores, err := score(rolloutIn(view), settings)
			if err != nil {
				return nil, err
			}
			return scoresOut("scores", scores)
		})
	}
}

// GroupReward registers what scores the rollouts of one group together: one list of scores for each, in their order. Call it in
// init.
func GroupReward[S any](score func(rollouts []*Rollout, settings S) ([][]Score, error)) {
	register[S]("GroupReward")
	exports.ScoreGroup = func(views []espalier_plugin_scores.RolloutView) types.Result[[][]espalier_plugin_scores.Score, failureOfImport] {
		defer ended()
		return returned(func() ([][]espalier_plugin_scores.Score, error) {
			settings, err := settingsOf[S]()
			if err != nil {
				return nil, err
			}
			rollouts := []*Rollout{}
			for _, view := range views {
				rollouts = append(rollouts, rolloutIn(view))
			}
			lists, err := score(rollouts, settings)
			if err != nil {
				return nil, err
			}
			if len(lists) != len(views) {
				return nil, Invalid("scores: expected %d lists, one for each rollout, got %d", len(views), len(lists))
			}
			out := make([][]espalier_plugin_scores.Score, len(lists))
			for i, scores := range lists {
				if out[i], err = scoresOut(fmt.Sprintf("scores[%d]", i), scores); err != nil {
					return nil, err
				}
			}
			return out, nil
		})
	}
}

// Judge registers what scores a rollout by a model, which is `judge` to NewConversation. An error leaves the rollout unjudged,
// which is not 0. Call it in init.
func Judge[S any](judge func(rollout *Rollout, settings S) (*Judgement, error)) {
	register[S]("Judge")
	exports.Judge = func(view espalier_plugin_scores.RolloutView) types.Result[espalier_plugin_judge.Judgement, failureOfImport] {
		defer ended()
		return returned(func() (out espalier_plugin_judge.Judgement, err error) {
			settings, err := settingsOf[S]()
			if err != nil {
				return out, err
			}
			judgement, err := judge(rolloutIn(view), settings)
			if err != nil {
				return out, err
			}
			return judgement.out()
		})
	}
}

// TaskGenerator registers what makes tasks and, where adapt is not nil, variants of one, given how it went. T is the record of a
// task file as encoding/json writes it: `id`, `instruction`, `data`, `private` ... Call it in init.
func TaskGenerator[S, T any](
	generate func(request Request, settings S) ([]T, error),
	adapt func(task T, statistics Statistics, settings S) ([]T, error),
) {
	register[S]("TaskGenerator")
	exports.Generate = func(request espalier_plugin_task_generator.Request) types.Result[[]string, failureOfImport] {
		defer ended()
		return returned(func() ([]string, error) {
			settings, err := settingsOf[S]()
			if err != nil {
				return nil, err
			}
			tasks, err := generate(requestIn(request), settings)
			return tasksOut(tasks, err)
		})
	}
	exports.Adapt = func(line string, statistics espalier_plugin_task_generator.Statistics) types.Result[[]string, failureOfImport] {
		defer ended()
		return returned(func() ([]string, error) {
			settings, err := settingsOf[S]()
			if err != nil || adapt == nil {
				return nil, err
			}
			var task T
			if err := decode(line, &task, false); err != nil {
				return nil, Invalid("task: %v", err)
			}
			tasks, err := adapt(task, statisticsIn(statistics), settings)
			return tasksOut(tasks, err)
		})
	}
}

// registered is the function that registered the plugin.
var registered string

// register notes the settings of a plugin. A plugin is of one kind.
func register[S any](by string) {
	if registered != "" {
		panic(fmt.Sprintf("espalier.%s and espalier.%s are called: a plugin is of one kind", registered, by))
	}
	registered = by
	exports.SettingsSchema = func() string {
		defer ended()
		return SchemaOf[S]()
	}
}

// settingsOf are the experiment's settings for this plugin.
func settingsOf[S any]() (settings S, err error) {
	if err := decode(espalier_base_settings.Get(), &settings, true); err != nil {
		return settings, Invalid("settings: %v", err)
	}
	return settings, nil
}

// returned is what an export gives back.
func returned[T any](work func() (T, error)) types.Result[T, failureOfImport] {
	value, err := work()
	if err != nil {
		return types.Err[T](failureOut(err))
	}
	return types.Ok[T, failureOfImport](value)
}

func sortedKeys[V any](values map[string]V) []string {
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
