/* The environment of a harness. */
#include "internal.h"

#include "../bindings/imports.h"

SAME(espalier_observation, espalier_environment_types_observation_t);
SAME(espalier_step_result, espalier_environment_types_step_result_t);

typedef espalier_environment_environments_borrow_environment_t borrowed;

espalier_status espalier_environment_open(espalier_environment *world) {
    espalier_base_types_failure_t failure;
    espalier_environment_environments_own_environment_t opened;
    if (!espalier_environment_environments_open(&opened, &failure))
        return espalier_failed(&failure);
    world->handle = opened.__handle;
    return ESPALIER_OK;
}

espalier_status espalier_environment_reset(espalier_environment world, espalier_observation *seen) {
    espalier_base_types_failure_t failure;
    borrowed self = {world.handle};
    return espalier_environment_environments_method_environment_reset(self, (void *)seen, &failure)
               ? ESPALIER_OK
               : espalier_failed(&failure);
}

espalier_status espalier_environment_step(espalier_environment world, espalier_str action, espalier_step_result *result) {
    espalier_base_types_failure_t failure;
    borrowed self = {world.handle};
    action = espalier_as_utf8(action);
    return espalier_environment_environments_method_environment_step(self, (void *)&action, (void *)result, &failure)
               ? ESPALIER_OK
               : espalier_failed(&failure);
}

espalier_status espalier_environment_actions(espalier_environment world, espalier_strs *actions) {
    espalier_base_types_failure_t failure;
    borrowed self = {world.handle};
    return espalier_environment_environments_method_environment_actions(self, (void *)actions, &failure)
               ? ESPALIER_OK
               : espalier_failed(&failure);
}

#pragma clang attribute pop
