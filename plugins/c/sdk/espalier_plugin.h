/* What makes a plugin of functions: one macro for each kind. Included by espalier.h. */
#ifndef ESPALIER_PLUGIN_H
#define ESPALIER_PLUGIN_H

#include "espalier.h"

/* Carries out one rollout. The report is empty at first: submitted, without answer and data. */
typedef struct {
    espalier_status (*run)(const espalier_task *task, espalier_report *report);
} espalier_harness_functions;

#define ESPALIER_HARNESS(run_function) const espalier_harness_functions espalier_plugin_harness = {run_function}

/* A small simulated world; one instance of the plugin serves one rollout. */
typedef struct {
    /* Starts the episode of this task, or starts it again. */
    espalier_status (*reset)(const espalier_task *task, espalier_observation *seen);
    /* Carries out one action. One that the world refuses is an observation, not a failure. */
    espalier_status (*step)(espalier_str action, espalier_step_result *result);
    /* Adds the actions possible now. May be left out. */
    espalier_status (*actions)(espalier_strs *actions);
    /* The episode is over. May be left out. */
    void (*close)(void);
} espalier_environment_functions;

/* Takes .reset, .step, .actions, .close. */
#define ESPALIER_ENVIRONMENT(...) const espalier_environment_functions espalier_plugin_environment = {__VA_ARGS__}

/* Adds the scores of one rollout. */
typedef struct {
    espalier_status (*score)(const espalier_rollout *rollout, espalier_scores *scores);
} espalier_reward_functions;

#define ESPALIER_REWARD(score_function) const espalier_reward_functions espalier_plugin_reward = {score_function}

/* Adds the scores of the rollouts of one group: scores[i] are those of rollouts->items[i]. */
typedef struct {
    espalier_status (*score)(const espalier_rollouts *rollouts, espalier_scores *scores);
} espalier_group_reward_functions;

#define ESPALIER_GROUP_REWARD(score_function) \
    const espalier_group_reward_functions espalier_plugin_group_reward = {score_function}

/* Adds scores and votes. */
typedef struct {
    espalier_status (*judge)(const espalier_rollout *rollout, espalier_judgement *judgement);
} espalier_judge_functions;

#define ESPALIER_JUDGE(judge_function) const espalier_judge_functions espalier_plugin_judge = {judge_function}

/* Makes and adapts tasks, each a JSON object as a line of a task file has it. */
typedef struct {
    /* Adds `request->count` tasks to the list `tasks`, or fewer. */
    espalier_status (*generate)(const espalier_request *request, espalier_json *tasks);
    /* Adds variants of a task, given how it went. May be left out. */
    espalier_status (*adapt)(const espalier_json *task, const espalier_statistics *statistics, espalier_json *tasks);
} espalier_task_generator_functions;

/* Takes .generate, .adapt. */
#define ESPALIER_TASK_GENERATOR(...) \
    const espalier_task_generator_functions espalier_plugin_task_generator = {__VA_ARGS__}

#endif
