/* Datasets: a count and functions. */
#include "data/dataset.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"

cairn_status cairn_dataset_create(void *self, int64_t count, const struct cairn_dataset_functions *functions,
                                  cairn_dataset **out) {
    struct cairn_dataset_functions f = *cairn_dataset_functions(.read = NULL);
    cairn_dataset *d = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(functions && out, CAIRN_EINVAL, "cairn_dataset_create: functions and out must be set");
    TRY(cairn__options_read(&f, sizeof(f), functions, "cairn_dataset_functions"));
    REQUIRE(f.read, CAIRN_EINVAL, "cairn_dataset_functions.read is NULL; it reads an example");
    REQUIRE(count >= 0, CAIRN_EINVAL, "a dataset of %" PRId64 " examples; it must have 0 or more", count);
    TRY(cairn__alloc(sizeof(*d), (void **)&d));
    *d = (cairn_dataset){.self = self, .count = count, .functions = f};
    *out = d;
out:
    return st;
}

void cairn_dataset_destroy(cairn_dataset **dataset) {
    if (!dataset || !*dataset) return;
    if ((*dataset)->functions.destroy) (*dataset)->functions.destroy((*dataset)->self);
    cairn__free(*dataset);
    *dataset = NULL;
}

int64_t cairn_dataset_count(const cairn_dataset *dataset) {
    return dataset ? dataset->count : 0;
}

cairn_status cairn_dataset_read(const cairn_dataset *dataset, int64_t index, struct cairn_random *random,
                                cairn_fields *example) {
    cairn_status st = CAIRN_OK;
    REQUIRE(dataset && random && example, CAIRN_EINVAL, "cairn_dataset_read: dataset, random and example must be set");
    REQUIRE(index >= 0 && index < dataset->count, CAIRN_EINVAL,
            "cairn_dataset_read: index is %" PRId64 ", but the dataset has %" PRId64 " examples", index,
            dataset->count);
    const uint64_t failures = cairn__failures();
    TRY(dataset->functions.read(dataset->self, index, random, example));
    return CAIRN_OK;
out:
    if (cairn__failures() == failures)
        return cairn__fail(st, "the dataset's read returned %s without a sentence, which cairn_dataset_fail writes",
                           cairn_status_name(st));
    return st;
}

cairn_status cairn_dataset_fail(cairn_status status, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return cairn__fail(status, "%s", text);
}
