/* Replaces text_dataset.c if a library it needs is missing. */
#include "cairn/datasets.h"
#include "core/status.h"

cairn_status cairn_text_dataset_create(const char *path, int count, const char *const *columns,
                                       const struct cairn_text_options *options, cairn_dataset **out) {
    (void)path, (void)count, (void)columns, (void)options, (void)out;
    return cairn__fail(CAIRN_ENOTBUILT,
                       "cairn_text_dataset_create: this build has no jansson or no xxhash (meson's option 'state')");
}
