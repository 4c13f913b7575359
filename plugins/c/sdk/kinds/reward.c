/* The exports of a reward. */
#include "../src/internal.h"

#include "../bindings/reward.h"

SAME(espalier_rollout, espalier_plugin_scores_rollout_view_t);
SAME(espalier_turn, espalier_plugin_scores_turn_t);
SAME(espalier_step, espalier_plugin_scores_step_t);
SAME(espalier_score, espalier_plugin_scores_score_t);

extern const espalier_reward_functions espalier_plugin_reward;

void exports_espalier_base_configurable_settings_schema(reward_string_t *ret) {
    espalier_settings_schema(ret);
}

static espalier_status score(const espalier_rollout *rollout, espalier_scores *scores) {
    ESPALIER_TRY(espalier_begin_export());
    ESPALIER_TRY(espalier_plugin_reward.score(rollout, scores));
    return espalier_check_scores(scores);
}

bool exports_espalier_plugin_reward_score_rollout(exports_espalier_plugin_reward_rollout_view_t *rollout,
                                                  exports_espalier_plugin_reward_list_score_t *ret,
                                                  exports_espalier_plugin_reward_failure_t *err) {
    memset(ret, 0, sizeof *ret);
    return espalier_end_export(score((const void *)rollout, (void *)ret), err);
}

NO_OBJECT_FILE(reward)

#define free(memory) ((void)(memory))
#include "../bindings/reward.c"

#pragma clang attribute pop
