/* The exports of a group reward. */
#include "../src/internal.h"

#include "../bindings/group_reward.h"

SAME(espalier_rollout, espalier_plugin_scores_rollout_view_t);
SAME(espalier_score, espalier_plugin_scores_score_t);

extern const espalier_group_reward_functions espalier_plugin_group_reward;

/* The scores of each rollout. */
typedef struct {
    espalier_scores *items;
    size_t len;
} all_scores;

void exports_espalier_base_configurable_settings_schema(group_reward_string_t *ret) {
    espalier_settings_schema(ret);
}

static espalier_status score(const espalier_rollouts *rollouts, all_scores *all) {
    ESPALIER_TRY(espalier_begin_export());
    *all = (all_scores){espalier_alloc(rollouts->len * sizeof *all->items), rollouts->len};
    ESPALIER_TRY(espalier_plugin_group_reward.score(rollouts, all->items));
    for (size_t index = 0; index < all->len; index++)
        ESPALIER_TRY(espalier_check_scores(&all->items[index]));
    return ESPALIER_OK;
}

bool exports_espalier_plugin_group_reward_score_group(exports_espalier_plugin_group_reward_list_rollout_view_t *rollouts,
                                                      exports_espalier_plugin_group_reward_list_list_score_t *ret,
                                                      exports_espalier_plugin_group_reward_failure_t *err) {
    memset(ret, 0, sizeof *ret);
    return espalier_end_export(score((const void *)rollouts, (void *)ret), err);
}

NO_OBJECT_FILE(group_reward)

#define free(memory) ((void)(memory))
#include "../bindings/group_reward.c"

#pragma clang attribute pop
