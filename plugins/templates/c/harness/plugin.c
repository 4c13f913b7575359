/* The harness {{name}}: a conversation in which each answer names the next action in the environment. */
#include "sdk/espalier.h"

#include <string.h>

struct settings {
    espalier_str system;
    int64_t max_turns;
};

ESPALIER_SETTINGS(struct settings,
    ESPALIER_FIELD(struct settings, system, "The first message of the conversation.",
        .default_value = "You act in a text world. End each answer with one line `Action: <action>`."),
    ESPALIER_FIELD(struct settings, max_turns, "Most answers of the model.", .default_value = "10", .minimum = "1"));

/* What stands behind the last line that starts with `Action:`. */
static bool find_action(espalier_str answer, espalier_str *action) {
    espalier_str line;
    bool found = false;
    while (espalier_next_line(&answer, &line)) {
        line = espalier_trim(line);
        if (espalier_starts_with(line, "Action:")) {
            *action = espalier_trim(espalier_text(line.ptr + strlen("Action:")));
            found = action->len > 0;
        }
    }
    return found;
}

/* What the report says beside the answer. */
static espalier_str data_of(int64_t turns, double reward) {
    espalier_json *data = espalier_json_object();
    espalier_json_set(data, "turns", espalier_json_integer(turns));
    espalier_json_set(data, "reward", espalier_json_number(reward));
    return espalier_json_write(data);
}

static espalier_status run(const espalier_task *task, espalier_report *report) {
    const struct settings *settings = espalier_settings();
    double reward = 0;

    espalier_environment world;
    espalier_observation seen;
    ESPALIER_TRY(espalier_environment_open(&world));
    ESPALIER_TRY(espalier_environment_reset(world, &seen));

    espalier_conversation *chat = espalier_conversation_with("policy");
    espalier_conversation_system(chat, "%s", settings->system.ptr);
    espalier_conversation_user(chat, "%s\n\n%s", task->instruction.ptr, seen.text.ptr);

    for (int64_t turn = 1; turn <= settings->max_turns; turn++) {
        espalier_answer answer;
        espalier_str action;
        ESPALIER_TRY(espalier_conversation_complete(chat, &answer));
        if (!find_action(answer.text, &action)) {
            espalier_conversation_user(chat,
                "There was no action in your answer. End it with one line `Action: <action>`.");
            continue;
        }
        espalier_step_result step;
        ESPALIER_TRY(espalier_environment_step(world, action, &step));
        if (step.reward.is_some)
            reward += step.reward.value;
        if (step.done)
            return espalier_submit(report, step.observation.text, data_of(turn, reward));
        espalier_conversation_user(chat, "%s", step.observation.text.ptr);
    }
    return espalier_limit(report, ESPALIER_LIMIT_TURNS, data_of(settings->max_turns, reward));
}

ESPALIER_HARNESS(run);
