/* Browsers to act in, and services that the engine answers itself. Included by espalier.h. What a tool could not do is an outcome of its
 * step, not a failure; ESPALIER_UNAVAILABLE means that the browser is lost.
 *
 *     espalier_browser browser;
 *     ESPALIER_TRY(espalier_browser_open("main", &browser));
 *     espalier_conversation_browser(chat, browser);
 *     ESPALIER_TRY(espalier_conversation_complete(chat, &answer));
 *     espalier_browser_steps steps;
 *     ESPALIER_TRY(espalier_browser_act(browser, answer.tool_calls, &steps));
 *     for (size_t index = 0; index < steps.len; index++)
 *         espalier_conversation_tool_result(chat, &answer.tool_calls.items[index], steps.items[index].text, false); */
#ifndef ESPALIER_BROWSER_H
#define ESPALIER_BROWSER_H

#include "espalier_conversation.h"

typedef struct {
    int32_t handle;
} espalier_browser;

/* A rectangle in the viewport, in CSS pixels. */
typedef struct {
    double x, y, width, height;
} espalier_area;

/* A position in the viewport, in CSS pixels. */
typedef struct {
    double x, y;
} espalier_position;

/* The element that an action was on, as it was before. */
typedef struct {
    /* A short line: `button "Save"`. */
    espalier_str text;
    /* As assistive technology sees it; empty for none. */
    espalier_str role;
    /* Accessible name; empty for none. */
    espalier_str name;
    /* Name of the tag, in lower case. */
    espalier_str tag;
    struct {
        bool is_some;
        espalier_area value;
    } area;
    espalier_maybe_str extra;
} espalier_element;

typedef struct {
    /* From 0. */
    uint32_t index;
    espalier_str url;
    espalier_str title;
    bool is_active;
    espalier_maybe_str extra;
} espalier_tab;

typedef struct {
    espalier_tab *items;
    size_t len;
} espalier_tabs;

typedef enum {
    ESPALIER_STEP_DONE,
    ESPALIER_STEP_FAILED,
    /* Not tried, because of an action before it. */
    ESPALIER_STEP_SKIPPED,
    /* The model ended the episode. */
    ESPALIER_STEP_ENDED,
    /* The model asks the user. */
    ESPALIER_STEP_ASKED,
    ESPALIER_STEP_OTHER
} espalier_step_tag;

/* What became of an action. */
typedef struct {
    /* An espalier_step_tag. */
    uint8_t tag;
    union {
        struct {
            /* Word for programs: `stale-reference`, `invalid-arguments`, `blocked-url`, `covered` ... */
            espalier_str code;
            /* For the model. */
            espalier_str text;
        } failed;
        /* Why. */
        espalier_str skipped;
        struct {
            espalier_str response;
            /* With `terminate`: `success` or `failure`. */
            espalier_maybe_str status;
        } ended;
        /* The message. */
        espalier_str asked;
        /* JSON. */
        espalier_str other;
    };
} espalier_step_outcome;

typedef enum {
    ESPALIER_NAVIGATED,
    ESPALIER_NAVIGATION_FAILED,
    ESPALIER_BLOCKED,
    ESPALIER_TAB_OPENED,
    ESPALIER_TAB_CLOSED,
    ESPALIER_DIALOG,
    ESPALIER_DOWNLOADED,
    ESPALIER_DOWNLOAD_FAILED,
    ESPALIER_CONSOLE_ERRORS,
    ESPALIER_SCROLLED,
    ESPALIER_CHANGED,
    ESPALIER_NOTHING_CHANGED,
    ESPALIER_EFFECT_OTHER
} espalier_effect_tag;

/* What an action led to. */
typedef struct {
    /* An espalier_effect_tag. */
    uint8_t tag;
    union {
        struct {
            espalier_str url;
            espalier_str title;
            struct {
                bool is_some;
                uint16_t value;
            } status;
            bool within_document;
        } navigated;
        struct {
            espalier_str url;
            espalier_str reason;
        } navigation_failed;
        /* The address. */
        espalier_str blocked;
        espalier_tab tab_opened;
        /* Its index. */
        uint32_t tab_closed;
        struct {
            espalier_str kind;
            espalier_str message;
            espalier_str answer;
        } dialog;
        struct {
            espalier_str name;
            espalier_str url;
            espalier_maybe_str blob;
            uint64_t length;
        } downloaded;
        struct {
            espalier_str name;
            espalier_str reason;
        } download_failed;
        struct {
            uint32_t count;
            espalier_str first;
        } console_errors;
        struct {
            espalier_str what;
            double x;
            double y;
            bool at_end;
        } scrolled;
        /* A short summary. */
        espalier_str changed;
        /* JSON. */
        espalier_str other;
    };
} espalier_effect;

typedef struct {
    espalier_effect *items;
    size_t len;
} espalier_effects;

/* One action, carried out or not. */
typedef struct {
    /* The tool. */
    espalier_str name;
    espalier_step_outcome outcome;
    struct {
        bool is_some;
        espalier_element value;
    } element;
    /* Where it acted. */
    struct {
        bool is_some;
        espalier_position value;
    } position;
    /* What had happened since the step before, by itself. */
    espalier_effects meanwhile;
    espalier_effects effects;
    /* How the page came to rest. */
    struct {
        bool is_some;
        struct {
            /* `quiet`, `bound`, `navigation`, `dialog`, `closed`. */
            espalier_str cause;
            uint64_t after_ms;
            espalier_strs pending;
        } value;
    } settled;
    uint64_t duration_ms;
    /* What the model is told. */
    espalier_str text;
    espalier_maybe_str extra;
} espalier_browser_step;

typedef struct {
    espalier_browser_step *items;
    size_t len;
} espalier_browser_steps;

/* What a snapshot tells; zero is the standard. */
typedef struct {
    /* Bound of the text in tokens, estimated. 0: 2,000. */
    uint32_t tokens_max;
    /* Only what is new or changed since the last one, and what is gone. */
    bool changes;
    /* Also what is scrolled away. */
    bool whole_page;
} espalier_snapshot_options;

/* A page as text, with references to its interactive elements. */
typedef struct {
    espalier_str text;
    /* Estimated. */
    uint32_t tokens;
    /* Interactive elements that the bound left out. */
    uint32_t left_out;
    espalier_maybe_str extra;
} espalier_snapshot;

typedef enum { ESPALIER_PNG, ESPALIER_JPEG, ESPALIER_WEBP } espalier_format_of_picture;

/* What a picture shows, and how; zero is the viewport as PNG. */
typedef struct {
    espalier_format_of_picture format;
    /* 1 to 100, not for PNG. 0: 80. */
    uint8_t quality;
    /* Size over that of the viewport, up to 4. 0: the browser's own. */
    double scale;
    /* The page from top to bottom. */
    bool full_page;
} espalier_screenshot_options;

typedef struct {
    espalier_str blob;
    /* Pixels. */
    uint32_t width;
    uint32_t height;
    espalier_maybe_str extra;
} espalier_picture;

/* The browser of this name: `main`, or as the task names it. The first call starts it, at its start page. */
espalier_status espalier_browser_open(const char *name, espalier_browser *browser);
/* Drops the handle; the browser stays until the rollout is scored. */
void espalier_browser_close(espalier_browser browser);

/* Offers the model the tools that the experiment gives it in this browser, beside the conversation's own. Before the first answer. */
void espalier_conversation_browser(espalier_conversation *chat, espalier_browser browser);
/* Carries out calls of the model one after another, 32 at most, each until the page has settled. One step for each. */
espalier_status espalier_browser_act(espalier_browser browser, espalier_tool_calls calls, espalier_browser_steps *steps);
/* Carries out one tool with arguments of the plugin's own, a JSON object. */
espalier_status espalier_browser_tool(espalier_browser browser, const char *name, espalier_str arguments, espalier_browser_step *step);

espalier_status espalier_browser_tabs(espalier_browser browser, espalier_tabs *tabs);
/* The active tab as text, with references that are good until the next one. `how` may be NULL. */
espalier_status espalier_browser_snapshot(espalier_browser browser, const espalier_snapshot_options *how, espalier_snapshot *snapshot);
/* The active tab as a picture, kept as a blob. `how` may be NULL. */
espalier_status espalier_browser_screenshot(espalier_browser browser, const espalier_screenshot_options *how, espalier_picture *picture);
/* Value of a JavaScript expression, as JSON, where the page's own scripts run; promises are awaited. The page can forge it: a reward uses
 * espalier_browser_evaluate_isolated, or asks the page's server. One that throws is ESPALIER_OTHER `script`. */
espalier_status espalier_browser_evaluate(espalier_browser browser, espalier_str expression, espalier_str *json);
/* The same in a world of its own on the same document. */
espalier_status espalier_browser_evaluate_isolated(espalier_browser browser, espalier_str expression, espalier_str *json);
/* Cookies and the local storage of each origin, as JSON: `{"cookies": [...], "origins": [...]}`. */
espalier_status espalier_browser_storage_state(espalier_browser browser, espalier_str *json);

/* What a service answered. */
typedef struct {
    /* Of HTTP: 200, 422 ... */
    uint16_t status;
    espalier_str content_type;
    espalier_bytes body;
    espalier_maybe_str extra;
} espalier_response;

/* For rewards and judges: what GET of a path answers, as text, from the service that the task names so in `services`. A status of 400 or
 * more is ESPALIER_INVALID with what the service says. */
espalier_status espalier_service_get(const char *service, const char *path, espalier_str *text);
/* The same for POST of a JSON text. */
espalier_status espalier_service_post(const char *service, const char *path, espalier_str body, espalier_str *text);
/* The answer as it is, whatever its status; `method` is GET or POST. */
espalier_status espalier_service_request(const char *service, const char *method, const char *path, espalier_bytes body,
                                         espalier_response *response);

#endif
