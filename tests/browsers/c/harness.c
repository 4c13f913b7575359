#include "sdk/espalier.h"

ESPALIER_NO_SETTINGS();

/* What the browser shows at the end, beside what became of the actions. */
static espalier_status seen(espalier_browser browser, espalier_str outcomes, espalier_str *data) {
    espalier_picture picture;
    espalier_tabs tabs;
    espalier_str title, lamps;
    espalier_screenshot_options half = {.scale = 0.5};
    ESPALIER_TRY(espalier_browser_screenshot(browser, &half, &picture));
    ESPALIER_TRY(espalier_browser_tabs(browser, &tabs));
    ESPALIER_TRY(espalier_browser_evaluate_isolated(browser, espalier_text("document.title"), &title));
    ESPALIER_TRY(espalier_browser_evaluate(browser, espalier_text("lamps"), &lamps));
    *data = espalier_format("{\"outcomes\":\"%s\",\"url\":\"%s\",\"title\":%s,\"lamps\":%s,\"picture\":\"%u x %u\"}", outcomes.ptr,
        tabs.items[0].url.ptr, title.ptr, lamps.ptr, picture.width, picture.height);
    return ESPALIER_OK;
}

static const char *outcome_of(const espalier_step_outcome *outcome) {
    static const char *const words[] = {"done", "failed", "skipped", "ended", "asked", "other"};
    return outcome->tag == ESPALIER_STEP_FAILED ? outcome->failed.code.ptr : words[outcome->tag];
}

static espalier_status run(const espalier_task *task, espalier_report *report) {
    espalier_browser browser;
    espalier_snapshot page;
    ESPALIER_TRY(espalier_browser_open("main", &browser));
    ESPALIER_TRY(espalier_browser_snapshot(browser, NULL, &page));
    espalier_conversation *chat = espalier_conversation_with("policy");
    espalier_conversation_browser(chat, browser);
    espalier_conversation_user(chat, "%s\n\n%s", task->instruction.ptr, page.text.ptr);
    espalier_str outcomes = espalier_text("");
    for (;;) {
        espalier_answer answer;
        espalier_browser_steps steps;
        ESPALIER_TRY(espalier_conversation_complete(chat, &answer));
        ESPALIER_TRY(espalier_browser_act(browser, answer.tool_calls, &steps));
        for (size_t index = 0; index < steps.len; index++) {
            const espalier_browser_step *step = &steps.items[index];
            outcomes = espalier_format("%s%s%s", outcomes.ptr, outcomes.len > 0 ? " " : "", outcome_of(&step->outcome));
            if (step->outcome.tag == ESPALIER_STEP_ENDED) {
                espalier_str data;
                ESPALIER_TRY(seen(browser, outcomes, &data));
                return espalier_submit(report, step->outcome.ended.response, data);
            }
            bool is_error = step->outcome.tag != ESPALIER_STEP_DONE;
            espalier_conversation_tool_result(chat, &answer.tool_calls.items[index], step->text, is_error);
        }
    }
}

ESPALIER_HARNESS(run);
