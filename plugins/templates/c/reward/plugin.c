/* The reward {{name}}: compares the answer of the report with the task's own. */
#include "sdk/espalier.h"

struct settings {
    bool case_sensitive;
};

ESPALIER_SETTINGS(struct settings,
    ESPALIER_FIELD(struct settings, case_sensitive, "Whether upper and lower case must agree.",
        .default_value = "false"));

/* What `private` of a task says. */
struct expected {
    espalier_str answer;
};

static const espalier_field expected_fields[] = {
    ESPALIER_FIELD(struct expected, answer, "The right answer."),
    ESPALIER_END,
};

/* The text as it is compared. */
static espalier_str compared(espalier_str text) {
    const struct settings *settings = espalier_settings();
    text = espalier_trim(text);
    return settings->case_sensitive ? text : espalier_lower(text);
}

static espalier_status score(const espalier_rollout *rollout, espalier_scores *scores) {
    struct expected expected;
    ESPALIER_TRY(espalier_task_private(&rollout->task, expected_fields, &expected));
    espalier_str answer = espalier_rollout_answer(rollout);
    if (answer.ptr == NULL) {
        espalier_add_score(scores, "reward", 0, "no answer");
    } else {
        bool equal = espalier_equal(compared(answer), compared(expected.answer));
        espalier_add_score(scores, "reward", equal ? 1 : 0, "expected \"%s\", got \"%s\"",
            expected.answer.ptr, answer.ptr);
    }
    espalier_add_score(scores, "turns", (double)rollout->turns.len, "%s", "");
    return ESPALIER_OK;
}

ESPALIER_REWARD(score);
