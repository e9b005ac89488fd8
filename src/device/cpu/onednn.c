/* Checked calls of oneDNN, and the number of its threads during them. */
#include "device/cpu/onednn.h"

#include "core/parallel.h"

cairn_status cairn__dnnl_check(dnnl_status_t status, const char *call) {
    if (status == dnnl_success) return CAIRN_OK;
    return cairn__fail(status == dnnl_out_of_memory ? CAIRN_ENOMEM : CAIRN_EDEVICE, "oneDNN: %s returned status %d",
                       call, (int)status);
}

/* A child of fork has none of its parent's threads, and GNU's OpenMP would wait for them forever. */
static bool is_child_of_fork;

void cairn__dnnl_note_fork(void) {
    is_child_of_fork = true;
}

int cairn__dnnl_threads(const struct cairn__engine *e) {
    const int threads = is_child_of_fork ? 1 : cairn__num_threads();
    return e->most_threads > 0 && e->most_threads < threads ? e->most_threads : threads;
}

int cairn__dnnl_take_threads(const struct cairn__engine *e) {
    const int want = cairn__dnnl_threads(e), before = e->get_threads ? e->get_threads() : want;
    if (before != want) e->set_threads(want);
    return before;
}

void cairn__dnnl_give_threads_back(const struct cairn__engine *e, int before) {
    if (e->get_threads && e->get_threads() != before) e->set_threads(before);
}
