/* The exports of an environment. */
#include "../src/internal.h"

#include "../bindings/environment.h"

SAME(espalier_task, espalier_base_types_task_view_t);
SAME(espalier_observation, espalier_environment_types_observation_t);
SAME(espalier_step_result, espalier_environment_types_step_result_t);
SAME(espalier_failure, espalier_base_types_failure_t);

extern const espalier_environment_functions espalier_plugin_environment;

void exports_espalier_base_configurable_settings_schema(environment_string_t *ret) {
    espalier_settings_schema(ret);
}

static espalier_status reset(const espalier_task *task, espalier_observation *seen) {
    ESPALIER_TRY(espalier_begin_export());
    ESPALIER_TRY(espalier_plugin_environment.reset(task, seen));
    return espalier_check_text("observation.text", seen->text);
}

bool exports_espalier_environment_provider_reset(exports_espalier_environment_provider_task_view_t *task,
                                                 exports_espalier_environment_provider_observation_t *ret,
                                                 exports_espalier_environment_provider_failure_t *err) {
    memset(ret, 0, sizeof *ret);
    return espalier_end_export(reset((const void *)task, (void *)ret), err);
}

static espalier_status step(espalier_str action, espalier_step_result *result) {
    ESPALIER_TRY(espalier_begin_export());
    ESPALIER_TRY(espalier_plugin_environment.step(action, result));
    ESPALIER_TRY(espalier_check_text("observation.text", result->observation.text));
    return espalier_check_json("step.info", &result->info);
}

bool exports_espalier_environment_provider_step(environment_string_t *action,
                                                exports_espalier_environment_provider_step_result_t *ret,
                                                exports_espalier_environment_provider_failure_t *err) {
    espalier_str text;
    memcpy(&text, action, sizeof text);
    memset(ret, 0, sizeof *ret);
    return espalier_end_export(step(text, (void *)ret), err);
}

static espalier_status actions(espalier_strs *all) {
    ESPALIER_TRY(espalier_begin_export());
    return espalier_plugin_environment.actions == NULL ? ESPALIER_OK : espalier_plugin_environment.actions(all);
}

bool exports_espalier_environment_provider_actions(environment_list_string_t *ret,
                                                   exports_espalier_environment_provider_failure_t *err) {
    memset(ret, 0, sizeof *ret);
    return espalier_end_export(actions((void *)ret), err);
}

void exports_espalier_environment_provider_close(void) {
    espalier_failure failure;
    if (espalier_plugin_environment.close != NULL)
        espalier_plugin_environment.close();
    espalier_end_export(ESPALIER_OK, &failure);
}

NO_OBJECT_FILE(environment)

#define free(memory) ((void)(memory))
#include "../bindings/environment.c"

#pragma clang attribute pop
