#include "sdk/espalier.h"

ESPALIER_NO_SETTINGS();

static espalier_status score(const espalier_rollout *rollout, espalier_scores *scores) {
    (void)rollout;
    espalier_browser browser;
    espalier_str title, none, found, kept, error;
    ESPALIER_TRY(espalier_browser_open("main", &browser));
    ESPALIER_TRY(espalier_browser_evaluate_isolated(browser, espalier_text("document.title"), &title));
    if (espalier_browser_evaluate(browser, espalier_text("missing"), &none) != ESPALIER_OTHER)
        return espalier_invalid("`missing` is there");
    espalier_str code = espalier_failure_code();
    if (espalier_service_get("shop", "/none", &none) != ESPALIER_INVALID)
        return espalier_invalid("/none is there");
    espalier_str text = espalier_failure_text(ESPALIER_INVALID);
    ESPALIER_TRY(espalier_service_post("shop", "/find", espalier_text("{\"name\":\"lamp\"}"), &found));
    ESPALIER_TRY(espalier_service_get("shop", "/go", &kept));
    const espalier_json *state = espalier_json_get(espalier_json_parse(kept, &error), "state");
    size_t orders = espalier_json_get(state, "orders")->len;
    double value = espalier_equal(found, espalier_text("{\"found\":1}")) ? (double)orders : 0;
    title = (espalier_str){title.ptr + 1, title.len - 2};
    espalier_add_score(scores, "reward", value, "%.*s, %s, %s", (int)title.len, title.ptr, code.ptr, text.ptr);
    return ESPALIER_OK;
}

ESPALIER_REWARD(score);
