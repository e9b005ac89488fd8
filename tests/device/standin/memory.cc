/* Device memory: one address range, reserved when the library is loaded. Only allocated parts are accessible, and only
 * to the device's thread while the device works: the first access to an allocation faults, and the handler makes it
 * accessible until the device is idle again. Addresses are never reused, so that freed memory stays inaccessible. Guard
 * patterns around an allocation are checked when it is freed and at exit. New memory, also pinned memory, is filled
 * with NaNs: it is a private mapping of a file of NaNs, so that a page costs memory only once it is written to. */
#include "standin/standin.h"

#include <algorithm>
#include <map>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr size_t RANGE = 1ull << 40, PAGE = 4096;
constexpr size_t BEFORE = 256; /* cudaMalloc promises that alignment and no more */
constexpr unsigned char PATTERN = 0xa5, NOT_A_NUMBER = 0xff;
constexpr size_t NANS = 2 << 20; /* bytes of the file */

struct extent {
    size_t nbytes; /* asked for */
    size_t pages;  /* bytes of them */
    int gpu;       /* whose memory it is */
    bool is_open;
};

struct arena {
    char *base, *next;
    size_t used = 0, total;
    bool protects;
    int nans;                         /* the file */
    std::map<char *, extent> extents; /* by the address given out */
    std::map<char *, size_t> pinned;
    std::vector<char *> opened; /* of the extents; has room for all, since on_fault must not allocate */
    int open[STANDIN_GPUS] = {}, open_in_all = 0;
    std::string who;  /* is at work */
    pthread_t worker; /* its thread */

    arena();
    ~arena();
};

arena &memory() {
    static arena a;
    return a;
}

char *pages_of(char *p) {
    return p - BEFORE;
}

template <class Map> auto holder_of(Map &map, const void *p) {
    auto it = map.upper_bound((char *)p);
    return it == map.begin() ? map.end() : --it;
}

/* ---- out of bounds ---- */

/* Opens the allocation whose pages `at` is in, if the device may touch it. */
bool opens(arena &a, const char *at) {
    if (!a.open_in_all || !pthread_equal(a.worker, pthread_self())) return false;
    const auto touched = holder_of(a.extents, at + BEFORE);
    if (touched == a.extents.end()) return false;
    extent &e = touched->second;
    if (at >= pages_of(touched->first) + e.pages || e.is_open || a.open[e.gpu] == 0) return false;
    if (mprotect(pages_of(touched->first), e.pages, PROT_READ | PROT_WRITE) != 0) return false;
    e.is_open = true;
    a.opened.push_back(touched->first);
    return true;
}

void on_fault(int number, siginfo_t *info, void *) {
    arena &a = memory();
    const char *at = (const char *)info->si_addr;
    if (opens(a, at)) return;
    const auto near = holder_of(a.extents, at);
    if (a.open_in_all || standin_in_range(at)) {
        const int gpu = standin_owner(at);
        fprintf(stderr, "stand-in for CUDA: %s touched %p, ", a.open_in_all ? a.who.c_str() : "host code",
                (const void *)at);
        if (gpu >= 0 && a.open_in_all) fprintf(stderr, "which is memory of GPU %d", gpu);
        else fputs(gpu >= 0 ? "which is the device's" : "which is not the device's", stderr);
        if (standin_in_range(at) && near != a.extents.end()) {
            fprintf(stderr, " (byte %td of the allocation of %zu at %p)", at - near->first, near->second.nbytes,
                    (void *)near->first);
        }
        fputs("\n", stderr);
    }
    signal(number, SIG_DFL); /* the access is repeated, and ends the process */
}

/* Again and again, since test frameworks set handlers of their own. A thread that blocks all signals can be the
 * device's, too. */
void watch_faults() {
    static thread_local bool lets_through;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    if (lets_through) return;
    sigset_t faults;
    sigemptyset(&faults);
    sigaddset(&faults, SIGSEGV);
    sigaddset(&faults, SIGBUS);
    lets_through = pthread_sigmask(SIG_UNBLOCK, &faults, NULL) == 0;
}

void close_idle(arena &a) {
    const auto closes = [&a](char *p) {
        extent &e = a.extents[p];
        if (a.open[e.gpu] > 0) return false;
        mprotect(pages_of(p), e.pages, PROT_NONE);
        e.is_open = false;
        return true;
    };
    a.opened.erase(std::remove_if(a.opened.begin(), a.opened.end(), closes), a.opened.end());
}

/* One more works on the memory of a GPU, or of every, or one fewer. */
void work_on(int gpu, int more) {
    arena &a = memory();
    for (int i = 0; i < STANDIN_GPUS; i++) {
        if (gpu == STANDIN_EVERY_GPU || gpu == i) a.open[i] += more;
    }
    a.open_in_all += more;
    if (!a.protects) return;
    a.worker = pthread_self();
    close_idle(a);
    watch_faults();
}

/* Whole pages that nothing may touch, from `at` on, or anywhere if it is NULL. Neighbours become one mapping, of which
 * a process has 65530 at most. */
char *reserve(char *at, size_t nbytes) {
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0);
    void *p = mmap(at, nbytes, PROT_NONE, how, -1, 0);
    if (p == MAP_FAILED) standin_die("no addresses or no mappings are left for the device's memory");
    return (char *)p;
}

/* Whole pages from `pages` on. */
bool view_nans(char *pages, size_t nbytes) {
    const int how = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    for (size_t at = 0; at < nbytes; at += NANS) {
        const size_t n = std::min(NANS, nbytes - at);
        if (mmap(pages + at, n, PROT_READ | PROT_WRITE, how, memory().nans, 0) == MAP_FAILED) return false;
    }
    return true;
}

void check_patterns(char *p, const extent &e) {
    const unsigned char *first = (const unsigned char *)pages_of(p), *end = first + e.pages;
    for (const unsigned char *at = first; at < end; at++) {
        if (at == (const unsigned char *)p) at += e.nbytes;
        if (at < end && *at != PATTERN) {
            standin_die("something wrote to byte %td of an allocation of %zu", at - (const unsigned char *)p, e.nbytes);
        }
    }
}

arena::arena() {
    base = next = reserve(NULL, RANGE);
    nans = memfd_create("NaNs", MFD_CLOEXEC);
    const std::string all(NANS, (char)NOT_A_NUMBER);
    if (nans < 0 || write(nans, all.data(), NANS) != (ssize_t)NANS) standin_die("no file of NaNs");
    total = (size_t)standin_env("CAIRN_STANDIN_MEMORY", 2ll << 30);
    protects = standin_env("CAIRN_STANDIN_PROTECT", 1) != 0;
}

arena::~arena() {
    for (auto &e : extents) {
        mprotect(pages_of(e.first), e.second.pages, PROT_READ);
        check_patterns(e.first, e.second);
    }
}

} // namespace

standin_open::standin_open(const std::string &what, int which) : gpu(which) {
    arena &a = memory();
    before = a.who;
    a.who = what;
    work_on(gpu, 1);
}

standin_open::~standin_open() {
    work_on(gpu, -1);
    memory().who = before;
}

bool standin_in_range(const void *p) {
    return (const char *)p >= memory().base && (const char *)p < memory().base + RANGE;
}

bool standin_is_device(const void *p, size_t nbytes) {
    auto it = holder_of(memory().extents, p);
    return it != memory().extents.end() && (size_t)((const char *)p - it->first) + nbytes <= it->second.nbytes;
}

int standin_owner(const void *p) {
    auto it = holder_of(memory().extents, p);
    return it != memory().extents.end() && standin_is_device(p, 1) ? it->second.gpu : -1;
}

bool standin_is_pinned(const void *p, size_t nbytes) {
    auto it = holder_of(memory().pinned, p);
    return it != memory().pinned.end() && (size_t)((const char *)p - it->first) + nbytes <= it->second;
}

void *standin_device_alloc(size_t nbytes, int gpu) {
    arena &a = memory();
    if (nbytes > a.total - a.used) return NULL;
    const extent e = {nbytes, (BEFORE + nbytes + PAGE) / PAGE * PAGE, gpu, false};
    char *pages = a.next + PAGE;
    if (pages + e.pages + PAGE > a.base + RANGE) standin_die("all addresses for the device's memory were given out");
    if (!view_nans(pages, e.pages)) {
        reserve(pages, e.pages);
        return NULL;
    }
    a.next = pages + e.pages;
    a.used += nbytes;
    memset(pages, PATTERN, BEFORE);
    memset(pages + BEFORE + nbytes, PATTERN, e.pages - BEFORE - nbytes);
    a.extents[pages + BEFORE] = e;
    a.opened.reserve(a.extents.size());
    if (a.protects) mprotect(pages, e.pages, PROT_NONE), watch_faults();
    return pages + BEFORE;
}

bool standin_device_free(void *p) {
    arena &a = memory();
    auto it = a.extents.find((char *)p);
    if (it == a.extents.end()) return false;
    mprotect(pages_of(it->first), it->second.pages, PROT_READ);
    check_patterns(it->first, it->second);
    reserve(pages_of(it->first), it->second.pages);
    a.used -= it->second.nbytes;
    a.opened.erase(std::remove(a.opened.begin(), a.opened.end(), it->first), a.opened.end());
    a.extents.erase(it);
    return true;
}

void *standin_pinned_alloc(size_t nbytes) {
    const size_t size = (nbytes + PAGE - 1) / PAGE * PAGE;
    char *p = (char *)mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    memory().pinned[p] = nbytes;
    if (view_nans(p, size)) return p;
    standin_pinned_free(p);
    return NULL;
}

bool standin_pinned_free(void *p) {
    const auto it = memory().pinned.find((char *)p);
    if (it == memory().pinned.end()) return false;
    munmap(p, (it->second + PAGE - 1) / PAGE * PAGE);
    memory().pinned.erase(it);
    return true;
}

void standin_memory_info(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = memory().total;
    *free_bytes = memory().total - memory().used;
}

long long standin_env(const char *name, long long otherwise) {
    const char *said = getenv(name);
    return said && said[0] ? strtoll(said, NULL, 10) : otherwise;
}

void standin_die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("stand-in for CUDA: ", stderr);
    vfprintf(stderr, format, args);
    fputs("\n", stderr);
    va_end(args);
    abort();
}
