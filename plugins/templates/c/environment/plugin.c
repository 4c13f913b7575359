/* The environment {{name}}: a number is to be guessed. */
#include "sdk/espalier.h"

struct settings {
    int64_t max_guesses;
};

ESPALIER_SETTINGS(struct settings,
    ESPALIER_FIELD(struct settings, max_guesses, "Guesses until the episode is over.",
        .default_value = "10", .minimum = "1"));

/* What `data` of a task says. */
struct range {
    int64_t low;
    int64_t high;
};

static const espalier_field range_fields[] = {
    ESPALIER_FIELD(struct range, low, "The lowest number."),
    ESPALIER_FIELD(struct range, high, "The highest number."),
    ESPALIER_END,
};

/* What `private` of a task says. */
struct answer {
    int64_t secret;
};

static const espalier_field answer_fields[] = {
    ESPALIER_FIELD(struct answer, secret, "The number."),
    ESPALIER_END,
};

/* The episode. One instance of the plugin serves one rollout, so it stays from call to call. */
static struct {
    int64_t secret;
    int64_t guesses;
} episode;

static espalier_status reset(const espalier_task *task, espalier_observation *seen) {
    struct range range;
    struct answer answer;
    ESPALIER_TRY(espalier_task_data(task, range_fields, &range));
    ESPALIER_TRY(espalier_task_private(task, answer_fields, &answer));
    episode.secret = answer.secret;
    episode.guesses = 0;
    seen->text = espalier_format("Guess a number between %lld and %lld.", range.low, range.high);
    return ESPALIER_OK;
}

static espalier_status step(espalier_str action, espalier_step_result *result) {
    const struct settings *settings = espalier_settings();
    espalier_str text;
    int64_t guess;
    episode.guesses++;
    if (!espalier_parse_integer(espalier_trim(action), &guess)) {
        text = espalier_format("`%s` is not a number.", action.ptr);
    } else if (guess < episode.secret) {
        text = espalier_text("The number is higher.");
    } else if (guess > episode.secret) {
        text = espalier_text("The number is lower.");
    } else {
        text = espalier_text("Correct.");
        result->done = true;
        result->reward = (espalier_maybe_f64){true, 1};
    }
    if (!result->done && episode.guesses >= settings->max_guesses) {
        text = espalier_format("%s No guesses left.", text.ptr);
        result->done = true;
        result->reward = (espalier_maybe_f64){true, 0};
    }
    espalier_json *info = espalier_json_object();
    espalier_json_set(info, "guesses", espalier_json_integer(episode.guesses));
    result->info = espalier_json_write(info);
    result->observation.text = text;
    return ESPALIER_OK;
}

ESPALIER_ENVIRONMENT(.reset = reset, .step = step);
