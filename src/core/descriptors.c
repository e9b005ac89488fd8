#include "core/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

#include "core/status.h"

cairn_status cairn__check_descriptors(int n, const char *what) {
    struct rlimit limit;
    int there = 0; /* free numbers below the limit, n at most */
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return CAIRN_OK;
    for (rlim_t fd = 0; fd < limit.rlim_cur && there < n; fd++) there += fcntl((int)fd, F_GETFD) < 0 && errno == EBADF;
    const unsigned long long most = limit.rlim_cur, wanted = most + (unsigned long long)(n - there);
    REQUIRE(there >= n, CAIRN_ESYSTEM,
            "%s opens %d file%s, and this process can open %d more: %llu may be open at a time; raise that to %llu or "
            "more (ulimit -n %llu)",
            what, n, n > 1 ? "s" : "", there, most, wanted, wanted);
    return CAIRN_OK;
}
