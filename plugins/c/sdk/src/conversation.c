/* Conversations. */
#include "internal.h"

#include "../bindings/imports.h"

SAME(espalier_message, espalier_model_messages_message_t);
SAME(espalier_part, espalier_model_messages_part_t);
SAME(espalier_offered_tool, espalier_model_conversations_tool_t);
SAME(espalier_tool_call, espalier_model_messages_tool_call_t);
SAME(espalier_options, espalier_model_conversations_options_t);
SAME(espalier_usage, espalier_model_conversations_usage_t);

typedef espalier_model_conversations_borrow_conversation_t borrowed;

espalier_conversation *espalier_conversation_with(const char *model) {
    espalier_conversation *chat = espalier_alloc(sizeof *chat);
    chat->model = espalier_text(model);
    return chat;
}

void espalier_conversation_tools(espalier_conversation *chat, const espalier_tool *tools, size_t count) {
    chat->tools = tools;
    chat->tool_count = count;
}

void espalier_conversation_add(espalier_conversation *chat, espalier_message message) {
    espalier_add_message(&chat->pending, message);
}

void espalier_conversation_say(espalier_conversation *chat, espalier_role role, espalier_str text) {
    espalier_conversation_add(chat, espalier_message_of(role, text));
}

#define SAY(name, role)                                                                  \
    void espalier_conversation_##name(espalier_conversation *chat, const char *format, ...) { \
        va_list values;                                                                  \
        va_start(values, format);                                                        \
        espalier_conversation_say(chat, role, espalier_vformat(format, values));         \
        va_end(values);                                                                  \
    }

SAY(system, ESPALIER_SYSTEM)
SAY(user, ESPALIER_USER)
SAY(assistant, ESPALIER_ASSISTANT)

void espalier_conversation_user_with_images(espalier_conversation *chat, espalier_str text, espalier_strs images) {
    espalier_part *parts = espalier_alloc((images.len + 1) * sizeof *parts);
    parts[0] = (espalier_part){.tag = ESPALIER_PART_TEXT, .text = espalier_as_utf8(text)};
    for (size_t index = 0; index < images.len; index++)
        parts[index + 1] = (espalier_part){.tag = ESPALIER_PART_IMAGE, .blob = images.items[index]};
    espalier_conversation_add(chat, (espalier_message){.role = ESPALIER_USER, .parts = {parts, images.len + 1}});
}

void espalier_conversation_tool_result(espalier_conversation *chat, const espalier_tool_call *call, espalier_str text,
                                       bool is_error) {
    espalier_part *part = espalier_alloc(sizeof *part);
    *part = (espalier_part){.tag = ESPALIER_PART_TOOL_RESULT, .tool_result = {call->id, espalier_as_utf8(text), is_error}};
    espalier_conversation_add(chat, (espalier_message){.role = ESPALIER_TOOL, .parts = {part, 1}});
}

static borrowed handle_of(const espalier_conversation *chat) {
    return (borrowed){chat->handle};
}

/* Opens the conversation, or sends what is new. */
static espalier_status send(espalier_conversation *chat) {
    espalier_base_types_failure_t failure;
    if (chat->is_open) {
        if (chat->pending.len > 0 &&
            !espalier_model_conversations_method_conversation_append(handle_of(chat), (void *)&chat->pending, &failure))
            return espalier_failed(&failure);
    } else {
        espalier_model_conversations_tool_t *tools = espalier_alloc((chat->tool_count + chat->offered.len) * sizeof *tools);
        for (size_t index = 0; index < chat->tool_count; index++) {
            const espalier_tool *tool = &chat->tools[index];
            espalier_str declared[] = {espalier_text(tool->name), espalier_text(tool->description),
                                       espalier_json_write(espalier_fields_schema(tool->fields))};
            memcpy(&tools[index], declared, sizeof declared);
        }
        if (chat->offered.len > 0)
            memcpy(&tools[chat->tool_count], chat->offered.items, chat->offered.len * sizeof *tools);
        espalier_model_conversations_list_tool_t list = {tools, chat->tool_count + chat->offered.len};
        espalier_model_conversations_own_conversation_t opened;
        if (!espalier_model_conversations_open((void *)&chat->model, (void *)&chat->pending, &list, &opened, &failure))
            return espalier_failed(&failure);
        chat->handle = opened.__handle;
        chat->is_open = true;
    }
    chat->pending = (espalier_messages){0};
    return ESPALIER_OK;
}

static espalier_answer answer_of(const espalier_model_conversations_completion_t *completion) {
    espalier_answer answer = {0};
    espalier_message message;
    memcpy(&message, &completion->message, sizeof message);
    answer.text = espalier_message_text(&message);
    memcpy(&answer.tool_calls, &completion->tool_calls, sizeof answer.tool_calls);
    memcpy(&answer.malformed, &completion->malformed, sizeof answer.malformed);
    answer.finish = (espalier_finish)completion->finish.tag;
    memcpy(&answer.usage, &completion->usage, sizeof answer.usage);
    espalier_maybe_str extra;
    memcpy(&extra, &completion->extra, sizeof extra);
    espalier_str call = {NULL, 0};
    if (extra.is_some)
        call = espalier_json_get_string(espalier_json_parse(extra.value, NULL), "call");
    answer.call = (espalier_maybe_str){call.ptr != NULL, call};
    return answer;
}

espalier_status espalier_conversation_complete(espalier_conversation *chat, espalier_answer *answer) {
    espalier_base_types_failure_t failure;
    espalier_model_conversations_completion_t completion;
    ESPALIER_TRY(send(chat));
    if (!espalier_model_conversations_method_conversation_complete(handle_of(chat), (void *)&chat->options, &completion,
                                                                   &failure))
        return espalier_failed(&failure);
    *answer = answer_of(&completion);
    return ESPALIER_OK;
}

/* A branch of a conversation that the host opened. */
static espalier_conversation *branch_of(const espalier_conversation *chat, int32_t handle) {
    espalier_conversation *branch = espalier_alloc(sizeof *branch);
    *branch = *chat;
    branch->handle = handle;
    branch->is_open = true;
    branch->pending = (espalier_messages){0};
    return branch;
}

espalier_status espalier_conversation_complete_many(espalier_conversation *chat, uint32_t n, espalier_branch **branches) {
    espalier_base_types_failure_t failure;
    espalier_model_conversations_list_branch_t list;
    ESPALIER_TRY(send(chat));
    if (!espalier_model_conversations_method_conversation_complete_many(handle_of(chat), n, (void *)&chat->options, &list,
                                                                        &failure))
        return espalier_failed(&failure);
    espalier_branch *all = espalier_alloc(list.len * sizeof *all);
    for (size_t index = 0; index < list.len; index++) {
        all[index].chat = branch_of(chat, list.ptr[index].conversation.__handle);
        all[index].answer = answer_of(&list.ptr[index].completion);
    }
    *branches = all;
    return ESPALIER_OK;
}

espalier_status espalier_conversation_fork(espalier_conversation *chat, espalier_conversation **fork) {
    espalier_base_types_failure_t failure;
    espalier_model_conversations_own_conversation_t opened;
    ESPALIER_TRY(send(chat));
    if (!espalier_model_conversations_method_conversation_fork(handle_of(chat), &opened, &failure))
        return espalier_failed(&failure);
    *fork = branch_of(chat, opened.__handle);
    return ESPALIER_OK;
}

void espalier_conversation_discard(espalier_conversation *chat) {
    if (!chat->is_open)
        return;
    espalier_model_conversations_method_conversation_discard(handle_of(chat));
    espalier_conversation_close(chat);
}

espalier_status espalier_conversation_rewrite(espalier_conversation *chat, espalier_messages messages) {
    espalier_base_types_failure_t failure;
    chat->pending = (espalier_messages){0};
    if (!chat->is_open) {
        for (size_t index = 0; index < messages.len; index++)
            espalier_conversation_add(chat, messages.items[index]);
        return ESPALIER_OK;
    }
    return espalier_model_conversations_method_conversation_rewrite(handle_of(chat), (void *)&messages, &failure)
               ? ESPALIER_OK
               : espalier_failed(&failure);
}

espalier_status espalier_conversation_elide_images(espalier_conversation *chat, uint32_t keep, uint32_t *elided) {
    espalier_base_types_failure_t failure;
    ESPALIER_TRY(send(chat));
    return espalier_model_conversations_method_conversation_elide_images(handle_of(chat), keep, elided, &failure)
               ? ESPALIER_OK
               : espalier_failed(&failure);
}

espalier_status espalier_conversation_set_trainable(espalier_conversation *chat, uint32_t message, bool trainable) {
    espalier_base_types_failure_t failure;
    ESPALIER_TRY(send(chat));
    return espalier_model_conversations_method_conversation_set_trainable(handle_of(chat), message, trainable, &failure)
               ? ESPALIER_OK
               : espalier_failed(&failure);
}

espalier_status espalier_conversation_usage(espalier_conversation *chat, espalier_usage *usage) {
    ESPALIER_TRY(send(chat));
    espalier_model_conversations_method_conversation_usage(handle_of(chat), (void *)usage);
    return ESPALIER_OK;
}

void espalier_conversation_close(espalier_conversation *chat) {
    if (!chat->is_open)
        return;
    espalier_model_conversations_conversation_drop_own((espalier_model_conversations_own_conversation_t){chat->handle});
    chat->is_open = false;
}

#pragma clang attribute pop
