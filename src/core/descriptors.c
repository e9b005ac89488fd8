#include "core/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

#include "core/status.h"

/* Of the numbers below limit, n at most. */
static int count_free(rlim_t limit, int n) {
    int count = 0;
    for (rlim_t fd = 0; fd < limit && count < n; fd++) count += fcntl((int)fd, F_GETFD) < 0 && errno == EBADF;
    return count;
}

cairn_status cairn__check_descriptors(int n, const char *what) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return CAIRN_OK;
    const int there = count_free(limit.rlim_cur, n);
    const unsigned long long most = limit.rlim_cur, wanted = most + (unsigned long long)(n - there);
    REQUIRE(there >= n, CAIRN_ESYSTEM,
            "%s opens %d file%s, and this process can open %d more: %llu may be open at a time; raise that to %llu or "
            "more (ulimit -n %llu)",
            what, n, n > 1 ? "s" : "", there, most, wanted, wanted);
    return CAIRN_OK;
}
