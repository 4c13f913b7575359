/* The judge {{name}}: asks a model several times whether an answer meets a rubric. */
#include "sdk/espalier.h"

#include <string.h>

struct settings {
    espalier_str rubric;
    int64_t votes;
};

ESPALIER_SETTINGS(struct settings,
    ESPALIER_FIELD(struct settings, rubric, "What an answer must meet.",
        .default_value = "The answer is correct and complete."),
    ESPALIER_FIELD(struct settings, votes, "How often the model is asked.",
        .default_value = "3", .minimum = "1", .maximum = "9"));

/* The last `\boxed{0}` or `\boxed{1}`; none where there is neither. */
static espalier_maybe_f64 verdict(espalier_str text) {
    espalier_maybe_f64 value = {0};
    for (const char *at = text.ptr; (at = strstr(at, "\\boxed{")) != NULL; at++) {
        const char *inside = at + strlen("\\boxed{");
        if ((inside[0] == '0' || inside[0] == '1') && inside[1] == '}')
            value = (espalier_maybe_f64){true, inside[0] - '0'};
    }
    return value;
}

static espalier_status judge(const espalier_rollout *rollout, espalier_judgement *judgement) {
    const struct settings *settings = espalier_settings();
    espalier_str answer = espalier_rollout_answer(rollout);

    espalier_conversation *chat = espalier_conversation_with("judge");
    espalier_conversation_system(chat, "You are a strict judge. Think briefly, then end with \\boxed{1} "
        "if the rubric is met, else \\boxed{0}.");
    espalier_conversation_user(chat, "Rubric: %s\n\nTask: %s\n\nAnswer: %s", settings->rubric.ptr,
        rollout->task.instruction.ptr, answer.len > 0 ? answer.ptr : "(none)");

    espalier_branch *branches;
    ESPALIER_TRY(espalier_conversation_complete_many(chat, (uint32_t)settings->votes, &branches));
    int parsed = 0, votes_for = 0;
    for (int64_t i = 0; i < settings->votes; i++) {
        espalier_vote *vote = espalier_add_vote(judgement);
        vote->text = branches[i].answer.text;
        vote->call = branches[i].answer.call;
        vote->value = verdict(vote->text);
        parsed += vote->value.is_some;
        votes_for += vote->value.is_some && vote->value.value == 1;
    }
    if (parsed == 0)
        return espalier_other("no-verdict", "none of the %lld votes could be parsed", settings->votes);
    espalier_add_score(&judgement->scores, "reward", (double)votes_for / parsed, "%d of %d votes for", votes_for, parsed);
    return ESPALIER_OK;
}

ESPALIER_JUDGE(judge);
