/* The exports of a harness. */
#include "../src/internal.h"

#include "../bindings/harness.h"

SAME(espalier_task, espalier_base_types_task_view_t);
SAME(espalier_report, espalier_plugin_reports_report_t);
SAME(espalier_failure, espalier_base_types_failure_t);

extern const espalier_harness_functions espalier_plugin_harness;

void exports_espalier_base_configurable_settings_schema(harness_string_t *ret) {
    espalier_settings_schema(ret);
}

static espalier_status run(const espalier_task *task, espalier_report *report) {
    ESPALIER_TRY(espalier_begin_export());
    ESPALIER_TRY(espalier_plugin_harness.run(task, report));
    if (report->answer.is_some)
        ESPALIER_TRY(espalier_check_text("report.answer", report->answer.value));
    return espalier_check_json("report.data", &report->data);
}

bool exports_espalier_plugin_harness_run(exports_espalier_plugin_harness_task_view_t *task,
                                         exports_espalier_plugin_harness_report_t *ret,
                                         exports_espalier_plugin_harness_failure_t *err) {
    memset(ret, 0, sizeof *ret);
    return espalier_end_export(run((const void *)task, (void *)ret), err);
}

NO_OBJECT_FILE(harness)

#define free(memory) ((void)(memory))
#include "../bindings/harness.c"

#pragma clang attribute pop
