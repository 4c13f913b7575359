/* The group reward {{name}}: the answer that most rollouts of the group gave is taken for the right one. */
#include "sdk/espalier.h"

ESPALIER_NO_SETTINGS();

static espalier_status score(const espalier_rollouts *rollouts, espalier_scores *scores) {
    /* The answers as they are compared; `ptr` is NULL where there is none. */
    espalier_str *answers = espalier_alloc(rollouts->len * sizeof *answers);
    for (size_t i = 0; i < rollouts->len; i++) {
        espalier_str answer = espalier_rollout_answer(&rollouts->items[i]);
        if (answer.ptr != NULL)
            answers[i] = espalier_lower(espalier_trim(answer));
    }
    /* Of several with the same number of rollouts the first one wins. */
    espalier_str majority = {NULL, 0};
    size_t most = 0;
    for (size_t i = 0; i < rollouts->len; i++) {
        size_t count = 0;
        for (size_t j = 0; answers[i].ptr != NULL && j < rollouts->len; j++)
            count += answers[j].ptr != NULL && espalier_equal(answers[i], answers[j]);
        if (count > most) {
            most = count;
            majority = answers[i];
        }
    }
    espalier_str reason = espalier_text("no answers");
    if (most > 0)
        reason = espalier_format("majority: \"%s\" (%zu of %zu)", majority.ptr, most, rollouts->len);
    for (size_t i = 0; i < rollouts->len; i++) {
        bool wins = answers[i].ptr != NULL && espalier_equal(answers[i], majority);
        espalier_add_score(&scores[i], "reward", wins ? 1 : 0, "%s", reason.ptr);
    }
    return ESPALIER_OK;
}

ESPALIER_GROUP_REWARD(score);
