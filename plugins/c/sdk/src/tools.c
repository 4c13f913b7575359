/* Tools that a model may call. */
#include "internal.h"

static const espalier_tool *named(const espalier_tool *tools, size_t count, espalier_str name) {
    for (size_t index = 0; index < count; index++) {
        if (espalier_equal(name, espalier_text(tools[index].name)))
            return &tools[index];
    }
    return NULL;
}

/* A failure that the model can do something about: shown to it. Any other is the rollout's. */
static espalier_status told(espalier_status status, espalier_str *text, bool *is_error) {
    if (status != ESPALIER_INVALID && status != ESPALIER_OTHER)
        return status;
    *text = espalier_failure_text(status);
    *is_error = true;
    return ESPALIER_OK;
}

espalier_status espalier_tools_run(const espalier_tool *tools, size_t count, const espalier_tool_call *call, void *context,
                                   espalier_str *text, bool *is_error) {
    *is_error = false;
    *text = espalier_text("");
    const espalier_tool *tool = named(tools, count, call->name);
    if (tool == NULL) {
        espalier_str all = espalier_text("");
        for (size_t index = 0; index < count; index++)
            all = espalier_format("%s%s%s", all.ptr, index == 0 ? "" : ", ", tools[index].name);
        *text = espalier_format("unknown tool `%s`; there is: %s", call->name.ptr, all.ptr);
        *is_error = true;
        return ESPALIER_OK;
    }
    espalier_str error;
    const espalier_json *given = espalier_json_parse(call->arguments, &error);
    if (given == NULL) {
        *text = espalier_format("arguments of `%s`: %s", tool->name, error.ptr);
        *is_error = true;
        return ESPALIER_OK;
    }
    void *arguments = espalier_alloc(tool->size);
    espalier_str where = espalier_format("arguments of `%s`", tool->name);
    espalier_status status = espalier_fields_read(given, where.ptr, tool->fields, true, arguments);
    if (status == ESPALIER_OK)
        status = tool->run(arguments, context, text);
    return told(status, text, is_error);
}

espalier_status espalier_conversation_run_tools(espalier_conversation *chat, const espalier_answer *answer, void *context) {
    for (size_t index = 0; index < answer->tool_calls.len; index++) {
        const espalier_tool_call *call = &answer->tool_calls.items[index];
        espalier_str text;
        bool is_error;
        ESPALIER_TRY(espalier_tools_run(chat->tools, chat->tool_count, call, context, &text, &is_error));
        espalier_conversation_tool_result(chat, call, text, is_error);
    }
    return ESPALIER_OK;
}

#pragma clang attribute pop
