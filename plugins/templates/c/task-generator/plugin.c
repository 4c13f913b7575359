/* The task generator {{name}}: sums of two numbers, with more digits where they are solved and fewer where not. */
#include "sdk/espalier.h"

struct settings {
    int64_t digits;
};

ESPALIER_SETTINGS(struct settings,
    ESPALIER_FIELD(struct settings, digits, "Digits of the numbers.",
        .default_value = "2", .minimum = "1", .maximum = "9"));

/* What `data` of a task says. */
static const espalier_field data_fields[] = {
    ESPALIER_FIELD(struct settings, digits, "Digits of the numbers.", .minimum = "1", .maximum = "9"),
    ESPALIER_END,
};

/* The next number of a generator, below 10^digits. */
static int64_t draw(int64_t *state, int64_t digits) {
    int64_t bound = 1;
    for (int64_t digit = 0; digit < digits; digit++)
        bound *= 10;
    *state = *state * 48271 % 2147483647;
    return *state % bound;
}

/* The sum that follows from a seed and an index. */
static espalier_json *sum(espalier_str id, uint64_t seed, uint32_t index, int64_t digits) {
    int64_t state = (int64_t)((seed % 2147483647 + index + 1) % 2147483647);
    if (state == 0)
        state = 1;
    int64_t left = draw(&state, digits);
    int64_t right = draw(&state, digits);
    espalier_json *data = espalier_json_set(espalier_json_object(), "digits", espalier_json_integer(digits));
    espalier_json *secret =
        espalier_json_set(espalier_json_object(), "answer", espalier_json_format("%lld", left + right));
    espalier_json *task = espalier_json_object();
    espalier_json_set(task, "id", espalier_json_string(id));
    espalier_json_set(task, "instruction", espalier_json_format("What is %lld + %lld?", left, right));
    espalier_json_set(task, "data", data);
    espalier_json_set(task, "private", secret);
    return task;
}

static espalier_status generate(const espalier_request *request, espalier_json *tasks) {
    const struct settings *settings = espalier_settings();
    for (uint32_t i = 0; i < request->count; i++) {
        espalier_str id = espalier_format("sum-%llu-%u", request->seed, i);
        espalier_json_add(tasks, sum(id, request->seed, i, settings->digits));
    }
    return ESPALIER_OK;
}

static espalier_status adapt(const espalier_json *task, const espalier_statistics *statistics, espalier_json *tasks) {
    struct settings data;
    espalier_str id = espalier_json_get_string(task, "id");
    ESPALIER_TRY(espalier_fields_read(espalier_json_get(task, "data"), "task.data", data_fields, false, &data));
    bool harder = statistics->accuracy >= 0.5;
    int64_t digits = harder ? data.digits + 1 : data.digits - 1;
    if (digits < 1 || digits > 9)
        return ESPALIER_OK;
    espalier_str other = espalier_format("%s-%s", id.ptr, harder ? "harder" : "easier");
    espalier_json_add(tasks, sum(other, id.len, 0, digits));
    return ESPALIER_OK;
}

ESPALIER_TASK_GENERATOR(.generate = generate, .adapt = adapt);
