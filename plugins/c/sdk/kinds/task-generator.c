/* The exports of a task generator. */
#include "../src/internal.h"

#include "../bindings/task_generator.h"

SAME(espalier_request, exports_espalier_plugin_task_generator_request_t);
SAME(espalier_statistics, exports_espalier_plugin_task_generator_statistics_t);

extern const espalier_task_generator_functions espalier_plugin_task_generator;

void exports_espalier_base_configurable_settings_schema(task_generator_string_t *ret) {
    espalier_settings_schema(ret);
}

/* Each task as a line. */
static espalier_status lines_of(const espalier_json *tasks, espalier_strs *lines) {
    for (size_t index = 0; index < tasks->len; index++) {
        if (tasks->items[index]->type != ESPALIER_JSON_OBJECT)
            return espalier_invalid("tasks[%zu]: expected an object, got %s", index,
                                    espalier_json_write(tasks->items[index]).ptr);
        espalier_str line = espalier_json_write(tasks->items[index]);
        ESPALIER_TRY(espalier_check_text(espalier_format("tasks[%zu]", index).ptr, line));
        espalier_add_text(lines, line);
    }
    return ESPALIER_OK;
}

static espalier_status generate(const espalier_request *request, espalier_strs *lines) {
    ESPALIER_TRY(espalier_begin_export());
    espalier_json *tasks = espalier_json_list();
    ESPALIER_TRY(espalier_plugin_task_generator.generate(request, tasks));
    return lines_of(tasks, lines);
}

bool exports_espalier_plugin_task_generator_generate(exports_espalier_plugin_task_generator_request_t *request,
                                                     exports_espalier_plugin_task_generator_list_json_t *ret,
                                                     exports_espalier_plugin_task_generator_failure_t *err) {
    memset(ret, 0, sizeof *ret);
    return espalier_end_export(generate((const void *)request, (void *)ret), err);
}

static espalier_status adapt(espalier_str text, const espalier_statistics *statistics, espalier_strs *lines) {
    espalier_str error;
    ESPALIER_TRY(espalier_begin_export());
    if (espalier_plugin_task_generator.adapt == NULL)
        return ESPALIER_OK;
    const espalier_json *task = espalier_json_parse(text, &error);
    if (task == NULL)
        return espalier_invalid("task: %s", error.ptr);
    espalier_json *tasks = espalier_json_list();
    ESPALIER_TRY(espalier_plugin_task_generator.adapt(task, statistics, tasks));
    return lines_of(tasks, lines);
}

bool exports_espalier_plugin_task_generator_adapt(exports_espalier_plugin_task_generator_json_t *task,
                                                  exports_espalier_plugin_task_generator_statistics_t *statistics,
                                                  exports_espalier_plugin_task_generator_list_json_t *ret,
                                                  exports_espalier_plugin_task_generator_failure_t *err) {
    espalier_str text;
    memcpy(&text, task, sizeof text);
    memset(ret, 0, sizeof *ret);
    return espalier_end_export(adapt(text, (const void *)statistics, (void *)ret), err);
}

NO_OBJECT_FILE(task_generator)

#define free(memory) ((void)(memory))
#include "../bindings/task_generator.c"

#pragma clang attribute pop
