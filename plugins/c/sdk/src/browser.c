/* Browsers. */
#include "internal.h"

#include "../bindings/imports.h"

SAME(espalier_element, espalier_browser_browsers_element_t);
SAME(espalier_tab, espalier_browser_browsers_tab_t);
SAME(espalier_step_outcome, espalier_browser_browsers_outcome_t);
SAME(espalier_effect, espalier_browser_browsers_effect_t);
SAME(espalier_browser_step, espalier_browser_browsers_step_t);
SAME(espalier_snapshot, espalier_browser_browsers_snapshot_t);
SAME(espalier_picture, espalier_browser_browsers_picture_t);
SAME(espalier_offered_tool, espalier_browser_browsers_tool_t);

#define DONE(call) ((call) ? ESPALIER_OK : espalier_failed(&failure))

typedef espalier_browser_browsers_borrow_session_t of_session;

espalier_status espalier_browser_open(const char *name, espalier_browser *browser) {
    espalier_base_types_failure_t failure;
    espalier_str text = espalier_text(name);
    return DONE(espalier_browser_browsers_open((void *)&text, (void *)browser, &failure));
}

void espalier_browser_close(espalier_browser browser) {
    espalier_browser_browsers_session_drop_own((espalier_browser_browsers_own_session_t){browser.handle});
}

void espalier_conversation_browser(espalier_conversation *chat, espalier_browser browser) {
    of_session self = {browser.handle};
    espalier_browser_browsers_method_session_tools(self, (void *)&chat->offered);
}

static espalier_status act(espalier_browser browser, espalier_browser_browsers_list_action_t actions, espalier_browser_steps *steps) {
    espalier_base_types_failure_t failure;
    of_session self = {browser.handle};
    return DONE(espalier_browser_browsers_method_session_act(self, &actions, (void *)steps, &failure));
}

/* An action as the host takes it. */
static espalier_browser_browsers_action_t action_of(espalier_str name, espalier_str arguments) {
    espalier_browser_browsers_action_t action;
    espalier_str texts[] = {espalier_as_utf8(name), espalier_as_utf8(arguments)};
    memcpy(&action, texts, sizeof texts);
    return action;
}

espalier_status espalier_browser_act(espalier_browser browser, espalier_tool_calls calls, espalier_browser_steps *steps) {
    espalier_browser_browsers_action_t *actions = espalier_alloc(calls.len * sizeof *actions);
    for (size_t index = 0; index < calls.len; index++)
        actions[index] = action_of(calls.items[index].name, calls.items[index].arguments);
    return act(browser, (espalier_browser_browsers_list_action_t){actions, calls.len}, steps);
}

espalier_status espalier_browser_tool(espalier_browser browser, const char *name, espalier_str arguments, espalier_browser_step *step) {
    espalier_browser_browsers_action_t action = action_of(espalier_text(name), arguments);
    espalier_browser_steps steps;
    ESPALIER_TRY(act(browser, (espalier_browser_browsers_list_action_t){&action, 1}, &steps));
    if (steps.len != 1)
        return espalier_invalid("%s: no step came back", name);
    *step = steps.items[0];
    return ESPALIER_OK;
}

espalier_status espalier_browser_tabs(espalier_browser browser, espalier_tabs *tabs) {
    espalier_base_types_failure_t failure;
    of_session self = {browser.handle};
    return DONE(espalier_browser_browsers_method_session_tabs(self, (void *)tabs, &failure));
}

espalier_status espalier_browser_snapshot(espalier_browser browser, const espalier_snapshot_options *how, espalier_snapshot *snapshot) {
    espalier_base_types_failure_t failure;
    espalier_browser_browsers_snapshot_options_t options = {0};
    if (how != NULL) {
        options.tokens_max.is_some = how->tokens_max > 0;
        options.tokens_max.val = how->tokens_max;
        options.changes = how->changes;
        options.whole_page = how->whole_page;
    }
    of_session self = {browser.handle};
    return DONE(espalier_browser_browsers_method_session_snapshot(self, &options, (void *)snapshot, &failure));
}

espalier_status espalier_browser_screenshot(espalier_browser browser, const espalier_screenshot_options *how, espalier_picture *picture) {
    espalier_base_types_failure_t failure;
    espalier_browser_browsers_screenshot_options_t options = {0};
    if (how != NULL) {
        options.format = (espalier_browser_browsers_format_t)how->format;
        options.quality.is_some = how->quality > 0;
        options.quality.val = how->quality;
        options.scale.is_some = how->scale != 0;
        options.scale.val = how->scale;
        options.full_page = how->full_page;
    }
    of_session self = {browser.handle};
    return DONE(espalier_browser_browsers_method_session_screenshot(self, &options, (void *)picture, &failure));
}

static espalier_status evaluate(espalier_browser browser, espalier_str expression, espalier_browser_browsers_script_world_t world,
                                espalier_str *json) {
    espalier_base_types_failure_t failure;
    expression = espalier_as_utf8(expression);
    of_session self = {browser.handle};
    return DONE(
        espalier_browser_browsers_method_session_evaluate(self, (void *)&expression, world, (void *)json, &failure));
}

espalier_status espalier_browser_evaluate(espalier_browser browser, espalier_str expression, espalier_str *json) {
    return evaluate(browser, expression, ESPALIER_BROWSER_BROWSERS_SCRIPT_WORLD_PAGE, json);
}

espalier_status espalier_browser_evaluate_isolated(espalier_browser browser, espalier_str expression, espalier_str *json) {
    return evaluate(browser, expression, ESPALIER_BROWSER_BROWSERS_SCRIPT_WORLD_ISOLATED, json);
}

espalier_status espalier_browser_storage_state(espalier_browser browser, espalier_str *json) {
    espalier_base_types_failure_t failure;
    of_session self = {browser.handle};
    return DONE(espalier_browser_browsers_method_session_storage_state(self, (void *)json, &failure));
}

#pragma clang attribute pop
