/* Messages, reports, scores and votes: what is common to those who make and those who read them, and what is checked in them. */
#include "internal.h"

#include <math.h>

espalier_message espalier_message_of(espalier_role role, espalier_str text) {
    espalier_part *part = espalier_alloc(sizeof *part);
    *part = (espalier_part){.tag = ESPALIER_PART_TEXT, .text = espalier_as_utf8(text)};
    return (espalier_message){.role = (uint8_t)role, .parts = {part, 1}};
}

void espalier_add_message(espalier_messages *messages, espalier_message message) {
    messages->items = espalier_room(messages->items, messages->len, sizeof message);
    messages->items[messages->len++] = message;
}

espalier_str espalier_message_text(const espalier_message *message) {
    espalier_str text = {"", 0};
    for (size_t index = 0; index < message->parts.len; index++) {
        const espalier_part *part = &message->parts.items[index];
        if (part->tag != ESPALIER_PART_TEXT)
            continue;
        if (text.len == 0) {
            text = part->text;
            continue;
        }
        char *joined = espalier_grow((void *)(uintptr_t)text.ptr, text.len, text.len + part->text.len);
        memcpy(joined + text.len, part->text.ptr, part->text.len);
        text = (espalier_str){joined, text.len + part->text.len};
    }
    return text;
}

espalier_status espalier_submit(espalier_report *report, espalier_str answer, espalier_str data) {
    *report = (espalier_report){.outcome = {.tag = ESPALIER_SUBMITTED}, .answer = {answer.ptr != NULL, answer}, .data = data};
    return ESPALIER_OK;
}

espalier_status espalier_give_up(espalier_report *report, espalier_str data) {
    *report = (espalier_report){.outcome = {.tag = ESPALIER_GAVE_UP}, .data = data};
    return ESPALIER_OK;
}

espalier_status espalier_limit(espalier_report *report, espalier_limit_tag limit, espalier_str data) {
    *report = (espalier_report){.outcome = {.tag = ESPALIER_LIMIT, .limit = {.tag = (uint8_t)limit}}, .data = data};
    return ESPALIER_OK;
}

espalier_score *espalier_add_score(espalier_scores *scores, const char *name, double value, const char *reason, ...) {
    va_list values;
    va_start(values, reason);
    scores->items = espalier_room(scores->items, scores->len, sizeof *scores->items);
    espalier_score *score = &scores->items[scores->len++];
    *score = (espalier_score){.name = espalier_text(name), .value = value};
    score->reason = espalier_as_utf8(espalier_vformat(reason, values));
    va_end(values);
    return score;
}

espalier_str espalier_rollout_answer(const espalier_rollout *rollout) {
    bool is_there = rollout->report.is_some && rollout->report.value.answer.is_some;
    return is_there ? rollout->report.value.answer.value : (espalier_str){NULL, 0};
}

espalier_vote *espalier_add_vote(espalier_judgement *judgement) {
    judgement->votes.items = espalier_room(judgement->votes.items, judgement->votes.len, sizeof *judgement->votes.items);
    espalier_vote *vote = &judgement->votes.items[judgement->votes.len++];
    *vote = (espalier_vote){0};
    return vote;
}

espalier_status espalier_check_text(const char *where, espalier_str text) {
    return espalier_is_utf8(text) ? ESPALIER_OK : espalier_invalid("%s: expected UTF-8", where);
}

espalier_status espalier_check_json(const char *where, espalier_str *json) {
    espalier_str error;
    if (json->ptr == NULL)
        *json = espalier_text("null");
    ESPALIER_TRY(espalier_check_text(where, *json));
    return espalier_json_parse(*json, &error) != NULL ? ESPALIER_OK : espalier_invalid("%s: %s", where, error.ptr);
}

espalier_status espalier_check_scores(const espalier_scores *scores) {
    for (size_t index = 0; index < scores->len; index++) {
        const espalier_score *score = &scores->items[index];
        espalier_str where = espalier_format("scores[%zu]", index);
        if (score->name.len == 0)
            return espalier_invalid("%s.name: expected a name, got none", where.ptr);
        if (!isfinite(score->value))
            return espalier_invalid("%s.value (%s): expected a finite number, got %g", where.ptr, score->name.ptr, score->value);
        ESPALIER_TRY(espalier_check_text(espalier_format("%s.reason", where.ptr).ptr, score->reason));
    }
    return ESPALIER_OK;
}

#pragma clang attribute pop
