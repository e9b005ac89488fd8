/* LD_PRELOAD this: the process receives a SIGTERM when it first opens /dev/null, which cairn-run does before anything
 * else. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int open_it(const char *path, int flags) {
    if (strcmp(path, "/dev/null") == 0 && unsetenv("LD_PRELOAD") == 0 && getenv("EARLY_TERM")) {
        unsetenv("EARLY_TERM");
        kill(getpid(), SIGTERM);
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0666);
}

/* Under the names that programs with files of 32 and of 64 bits call. */
int open_32(const char *path, int flags, ...) __asm__("open");
int open_64(const char *path, int flags, ...) __asm__("open64");

int open_32(const char *path, int flags, ...) {
    return open_it(path, flags);
}

int open_64(const char *path, int flags, ...) {
    return open_it(path, flags);
}
