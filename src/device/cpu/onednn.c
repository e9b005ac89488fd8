/* Checked calls of oneDNN, and the number of its threads during them. */
#include "device/cpu/onednn.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "core/parallel.h"

enum {
    FIRST_NBYTES = 16 << 20, /* the kernels of dnnl_sgemm, made by its first call, and memory that all kernels share */
    NEXT_NBYTES = 4 << 20,   /* a primitive's kernels, and the buffers of a thread */
    STACK_NBYTES = 8 << 20   /* of a thread */
};

cairn_status cairn__dnnl_check(dnnl_status_t status, const char *call) {
    if (status == dnnl_success) return CAIRN_OK;
    return cairn__fail(status == dnnl_out_of_memory ? CAIRN_ENOMEM : CAIRN_EDEVICE, "oneDNN: %s returned status %d",
                       call, (int)status);
}

cairn_status cairn__dnnl_ask_for_room(const struct cairn__engine *e, bool is_first_gemm) {
    static atomic_bool was_called;            /* oneDNN, in this process */
    static _Thread_local int max_threads = 1; /* that oneDNN has used: OpenMP has a team per calling thread */
    const int threads = cairn__dnnl_threads(e);
    const size_t first = !atomic_load(&was_called) || is_first_gemm ? FIRST_NBYTES : 0;
    const size_t stacks = threads > max_threads ? (size_t)(threads - max_threads) * STACK_NBYTES : 0;
    const size_t nbytes = NEXT_NBYTES + first + stacks;
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED, CAIRN_ENOMEM,
            "oneDNN needs %zu MiB for its machine code and threads, and this process gets no more memory; raise "
            "ulimit -v, or the job's limit",
            nbytes >> 20);
    (void)munmap(at, nbytes);
    atomic_store(&was_called, true);
    if (threads > max_threads) max_threads = threads;
    return CAIRN_OK;
}

/* A child of fork has no threads of its parent, and GNU's OpenMP would wait for them forever. */
static bool is_child_of_fork;

void cairn__dnnl_note_fork(void) {
    is_child_of_fork = true;
}

int cairn__dnnl_threads(const struct cairn__engine *e) {
    const int threads = is_child_of_fork ? 1 : cairn__num_threads();
    return e->max_threads > 0 && e->max_threads < threads ? e->max_threads : threads;
}

int cairn__dnnl_take_threads(const struct cairn__engine *e) {
    const int want = cairn__dnnl_threads(e), before = e->get_threads ? e->get_threads() : want;
    if (before != want) e->set_threads(want);
    return before;
}

void cairn__dnnl_give_threads_back(const struct cairn__engine *e, int before) {
    if (e->get_threads && e->get_threads() != before) e->set_threads(before);
}
