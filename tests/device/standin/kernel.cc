/* Execution of blocks and threads; see kernel.h.
 *
 * GPU threads run on fibers, that is, on separate stacks within the one host thread that runs kernels. A fiber runs one
 * GPU thread after another, so that a kernel whose threads never wait needs a single fiber and no switch. When a GPU
 * thread waits, its fiber is suspended and another fiber continues with the next thread; once all threads of the block
 * are waiting or done, those whose barrier is complete resume. */
#include "standin/kernel.h"

#include <algorithm>
#include <cxxabi.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <string.h>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#include "standin/standin.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace {

enum { STACK = 128 << 10 };

/* Tops of stacks differ by so much, or they would share a few lines of the processor's caches. */
enum { COLOUR = 17 * 64, COLOURS = 32 };

enum state { IDLE, WAITS_AT_BARRIER, WAITS_AT_SHUFFLE, LET_GO };

using jump_buffer = void *[5];

struct fiber {
    jump_buffer resume;
    state is;
    unsigned thread; /* the one it runs */
    standin_place place;
    int vote;                        /* at a barrier */
    unsigned mask, source;           /* at a shuffle */
    unsigned long long given, taken; /* at a shuffle */
};

/* The block that runs. */
struct {
    const void *kernel;
    const std::function<void()> *body;
    std::vector<unsigned> order;  /* of its threads */
    size_t begun;                 /* so many of them */
    std::vector<fiber *> waiting; /* by thread; NULL = not begun, or done */
    unsigned done;
} block;

jump_buffer scheduler;
fiber *running;
std::vector<fiber *> &idle = *new std::vector<fiber *>; /* never destroyed, so that its fibers are no leak */

/* ---- fibers ---- */

/* The compiler's jumps, since swapcontext makes a system call each time, and _longjmp looks for cleanups of the thread.
 * noipa: callers may not rely on registers that a function seems to keep. */
[[noreturn, gnu::noipa]] void jump(jump_buffer to) {
    __builtin_longjmp(to, 1);
}

[[gnu::noipa]] void leave(fiber *f) {
    if (__builtin_setjmp(f->resume) == 0) jump(scheduler);
}

void live() {
    fiber *self = running;
    for (;;) {
        while (block.begun < block.order.size()) {
            self->thread = block.order[block.begun++];
            threadIdx.x = self->thread;
            (*block.body)();
            block.done++;
        }
        self->is = IDLE;
        idle.push_back(self);
        leave(self);
    }
}

/* Runs a new one, until it leaves. */
[[gnu::noipa]] void bear() {
    static unsigned born;
    static ucontext_t birth;
    char *stack = (char *)mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || getcontext(&birth) != 0) standin_die("no memory for the stack of a thread");
    birth.uc_stack.ss_sp = stack;
    birth.uc_stack.ss_size = STACK - born++ % COLOURS * COLOUR;
    birth.uc_link = NULL;
    makecontext(&birth, live, 0);
    running = new fiber();
    if (__builtin_setjmp(scheduler) == 0) setcontext(&birth);
}

/* Returns when f's thread waits, or when there are no more threads to begin. */
[[gnu::noipa]] void run(fiber *f) {
    running = f;
    threadIdx.x = f->thread;
    if (__builtin_setjmp(scheduler) == 0) jump(f->resume);
}

void begin_threads() {
    if (idle.empty()) {
        bear();
    } else {
        fiber *f = idle.back();
        idle.pop_back();
        run(f);
    }
}

void wait_as(state why) {
    fiber *self = running;
    self->is = why;
    block.waiting[self->thread] = self;
    leave(self);
}

/* ---- who has met ---- */

bool same_place(const fiber *a, const fiber *b) {
    if (a->place.line != b->place.line) return false;
    return a->place.function == b->place.function || strcmp(a->place.function, b->place.function) == 0;
}

/* Names one thread a place. */
[[noreturn]] void die_diverged() {
    std::vector<const fiber *> told;
    std::string who;
    for (const fiber *f : block.waiting) {
        if (!f || std::any_of(told.begin(), told.end(), [f](const fiber *g) { return same_place(f, g); })) continue;
        told.push_back(f);
        who += ";\n  thread " + std::to_string(f->thread) + " waits at a " +
               (f->is == WAITS_AT_BARRIER ? "barrier" : "shuffle") + " in " + f->place.function + ", line " +
               std::to_string(f->place.line);
    }
    standin_die("%s, block %u: threads wait for others that do not come; %u of %u have returned%s",
                standin_kernel_name(block.kernel).c_str(), blockIdx.x, block.done, blockDim.x, who.c_str());
}

bool pass_barrier() {
    int votes = 0;
    for (const fiber *f : block.waiting) {
        if (!f || f->is != WAITS_AT_BARRIER || !same_place(f, block.waiting[0])) return false;
        votes |= f->vote;
    }
    for (fiber *f : block.waiting) f->is = LET_GO, f->vote = votes;
    return true;
}

/* The lanes that first's mask names, all of them waiting with the same mask at the same place, exchange what they
 * hold. */
bool pass_shuffle(const fiber *first) {
    const unsigned warp = first->thread / warpSize * warpSize;
    const unsigned lanes = std::min<unsigned>(warpSize, blockDim.x - warp);
    fiber *const *lane = &block.waiting[warp];
    for (unsigned i = 0; i < lanes; i++) {
        if (!(first->mask >> i & 1)) continue;
        const bool meets = lane[i] && lane[i]->is == WAITS_AT_SHUFFLE && lane[i]->mask == first->mask;
        if (!meets || !same_place(lane[i], first)) return false;
    }
    for (unsigned i = 0; i < lanes; i++) {
        if (!(first->mask >> i & 1)) continue;
        const unsigned from = lane[i]->source;
        lane[i]->taken = from < lanes && first->mask >> from & 1 ? lane[from]->given : ~0ull;
    }
    for (unsigned i = 0; i < lanes; i++) {
        if (first->mask >> i & 1) lane[i]->is = LET_GO;
    }
    return true;
}

bool let_go() {
    if (block.done == 0 && pass_barrier()) return true;
    bool any = false;
    for (const fiber *f : block.waiting) {
        if (f && f->is == WAITS_AT_SHUFFLE && pass_shuffle(f)) any = true;
    }
    return any;
}

/* ---- blocks ---- */

/* NaNs in whatever the kernel's library holds in thread_local variables: __shared__ is nothing else. */
int poison_shared(struct dl_phdr_info *object, size_t, void *kernel) {
    const ElfW(Addr) address = (ElfW(Addr))kernel;
    size_t nbytes = 0;
    bool here = false;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        const ElfW(Addr) begin = object->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && address >= begin && address - begin < part->p_memsz) here = true;
        if (part->p_type == PT_TLS) nbytes = part->p_memsz;
    }
    if (here && object->dlpi_tls_data) memset(object->dlpi_tls_data, 0xff, nbytes);
    return here;
}

void run_block() {
    block.begun = block.done = 0;
    block.waiting.assign(blockDim.x, NULL);
    dl_iterate_phdr(poison_shared, const_cast<void *>(block.kernel));
    for (;;) {
        while (block.begun < blockDim.x) begin_threads();
        if (block.done == blockDim.x) return;
        if (!let_go()) die_diverged();
        for (unsigned t : block.order) {
            fiber *f = block.waiting[t];
            if (!f || f->is != LET_GO) continue;
            block.waiting[t] = NULL;
            run(f);
        }
    }
}

/* What CAIRN_STANDIN_ORDER says. */
struct order {
    bool backward = false, shuffled = false;
    std::mt19937_64 numbers;

    order() {
        const char *said = getenv("CAIRN_STANDIN_ORDER");
        backward = said && strcmp(said, "backward") == 0;
        shuffled = said && said[0] >= '0' && said[0] <= '9';
        if (shuffled) numbers.seed(strtoull(said, NULL, 10));
    }

    std::vector<unsigned> of(size_t n) {
        std::vector<unsigned> list(n);
        std::iota(list.begin(), list.end(), 0u);
        if (shuffled) std::shuffle(list.begin(), list.end(), numbers);
        if (backward) std::reverse(list.begin(), list.end());
        return list;
    }
};

/* ---- names ---- */

/* A file, which stays mapped; empty where it cannot be read. */
std::string_view contents(const char *path) {
    static std::map<std::string, std::string_view> files;
    const auto known = files.find(path);
    if (known != files.end()) return known->second;
    struct stat about = {};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *all = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &about) == 0) all = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0) close(fd);
    return files[path] = all == MAP_FAILED ? "" : std::string_view((const char *)all, (size_t)about.st_size);
}

/* Kernels that are static, as most are, are unknown to dladdr: the symbol at that place of an object file. */
std::string local_symbol(const char *path, size_t at) {
    const std::string_view all = contents(path);
    const auto *head = (const ElfW(Ehdr) *)all.data();
    const auto *sections = (const ElfW(Shdr) *)(all.data() + (all.size() > sizeof(*head) ? head->e_shoff : 0));
    for (int s = 0; all.size() > sizeof(*head) && s < head->e_shnum; s++) {
        if (sections[s].sh_type != SHT_SYMTAB) continue;
        const auto *symbols = (const ElfW(Sym) *)(all.data() + sections[s].sh_offset);
        const char *text = all.data() + sections[sections[s].sh_link].sh_offset;
        for (size_t i = 0; i < sections[s].sh_size / sizeof(*symbols); i++) {
            if (symbols[i].st_value == at && (symbols[i].st_info & 0xf) == STT_FUNC) return text + symbols[i].st_name;
        }
    }
    return "";
}

} // namespace

int standin_barrier(int vote, standin_place place) {
    fiber *self = running;
    self->vote = vote;
    self->place = place;
    wait_as(WAITS_AT_BARRIER);
    return self->vote;
}

unsigned long long standin_shuffle(unsigned mask, unsigned long long given, unsigned source, standin_place place) {
    fiber *self = running;
    self->mask = mask;
    self->given = given;
    self->source = source;
    self->place = place;
    if (!(mask >> self->thread % warpSize & 1))
        standin_die("%s: a lane shuffles that its mask does not name", place.function);
    wait_as(WAITS_AT_SHUFFLE);
    return self->taken;
}

std::string standin_kernel_name(const void *kernel) {
    static std::map<const void *, std::string> names;
    static std::mutex mutex; /* ranks that are threads launch at once */
    const std::lock_guard<std::mutex> hold(mutex);
    const auto known = names.find(kernel);
    if (known != names.end()) return known->second;
    Dl_info info;
    if (!dladdr(kernel, &info)) return "a kernel";
    const ptrdiff_t at = (const char *)kernel - (const char *)info.dli_fbase;
    const std::string symbol = info.dli_saddr == kernel ? info.dli_sname : local_symbol(info.dli_fname, (size_t)at);
    int status = 0;
    char text[512], *readable = abi::__cxa_demangle(symbol.c_str(), NULL, NULL, &status);
    snprintf(text, sizeof(text), "kernel %s+0x%tx", info.dli_fname, at); /* stripped: for addr2line */
    names[kernel] = readable ? readable : symbol != "" ? symbol : text;
    free(readable);
    return names[kernel];
}

void standin_run_kernel(const void *kernel, size_t blocks, int threads, const std::function<void()> &thread) {
    block.kernel = kernel;
    block.body = &thread;
    gridDim = dim3((unsigned)blocks);
    blockDim = dim3((unsigned)threads);
    static order order;
    bool first = true;
    for (unsigned b : order.of(blocks)) {
        if (first || order.shuffled) block.order = order.of((size_t)threads);
        first = false;
        blockIdx = {b, 0, 0};
        run_block();
    }
}

cudaError_t standin_launch(const void *kernel, size_t blocks, int threads, cudaStream_t stream,
                           std::function<void()> thread) {
    if (blocks == 0 || blocks > 0x7fffffff || threads < 1 || threads > 1024)
        return standin_error(cudaErrorInvalidConfiguration);
    return standin_queue(stream, standin_kernel_name(kernel),
                         [=] { standin_run_kernel(kernel, blocks, threads, thread); });
}
