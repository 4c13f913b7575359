/* The exports of a judge. */
#include "../src/internal.h"

#include "../bindings/judge.h"

#include <math.h>

SAME(espalier_rollout, espalier_plugin_scores_rollout_view_t);
SAME(espalier_judgement, exports_espalier_plugin_judge_judgement_t);
SAME(espalier_vote, exports_espalier_plugin_judge_vote_t);

extern const espalier_judge_functions espalier_plugin_judge;

void exports_espalier_base_configurable_settings_schema(judge_string_t *ret) {
    espalier_settings_schema(ret);
}

static espalier_status judge(const espalier_rollout *rollout, espalier_judgement *judgement) {
    ESPALIER_TRY(espalier_begin_export());
    ESPALIER_TRY(espalier_plugin_judge.judge(rollout, judgement));
    for (size_t index = 0; index < judgement->votes.len; index++) {
        const espalier_vote *vote = &judgement->votes.items[index];
        if (vote->value.is_some && !isfinite(vote->value.value))
            return espalier_invalid("votes[%zu].value: expected a finite number, got %g", index, vote->value.value);
        ESPALIER_TRY(espalier_check_text(espalier_format("votes[%zu].text", index).ptr, vote->text));
    }
    return espalier_check_scores(&judgement->scores);
}

bool exports_espalier_plugin_judge_judge(exports_espalier_plugin_judge_rollout_view_t *rollout,
                                         exports_espalier_plugin_judge_judgement_t *ret,
                                         exports_espalier_plugin_judge_failure_t *err) {
    memset(ret, 0, sizeof *ret);
    return espalier_end_export(judge((const void *)rollout, (void *)ret), err);
}

NO_OBJECT_FILE(judge)

#define free(memory) ((void)(memory))
#include "../bindings/judge.c"

#pragma clang attribute pop
