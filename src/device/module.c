/* Finds modules and passes them libcairn's functions. The build defines which modules exist and where they are
 * (src/meson.build). */
#include "device/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "core/trust.h"
#include "core/vars.h"

/* CAIRN__MODULES: names of the modules that this build made, each with spaces around it.
 * CAIRN__MODULE_FOLDERS: the build's folder and the installation folder, separated by a colon. */
static const char built_modules[] = CAIRN__MODULES;
static const char built_folders[] = CAIRN__MODULE_FOLDERS;

static cairn_status host_fail(cairn_status status, const char *text) {
    return cairn__fail(status, "%s", text);
}

static void host_log(int level, const char *text) {
    cairn__log((cairn_log_level)level, "%s", text);
}

static const struct cairn__module_host host = {
    .size = sizeof(struct cairn__module_host),
    .version = CAIRN__VERSION_TEXT,
    .fail = host_fail,
    .log = host_log,
    .alloc = cairn__alloc,
    .calloc = cairn__calloc,
    .grow = cairn__grow,
    .free = cairn__free,
    .last_error = cairn_last_error,
    .var = cairn__var,
    .open = cairn__module_open,
};

/* "/usr/lib" of "/usr/lib/libcairn.so", or of the program that libcairn.a is linked into. */
static bool own_folder(char *folder, size_t nbytes) {
    Dl_info info;
    if (!dladdr(&host, &info) || !info.dli_fname) return false;
    const char *slash = strrchr(info.dli_fname, '/');
    if (!slash) return false;
    const int length = snprintf(folder, nbytes, "%.*s", (int)(slash - info.dli_fname), info.dli_fname);
    return length >= 0 && (size_t)length < nbytes;
}

/* The last of built_folders, to which only an administrator installs. */
static const char *installed_folder(void) {
    const char *colon = strrchr(built_folders, ':');
    return colon ? colon + 1 : built_folders;
}

/* All folders in search order, "a:b:c". */
static void write_folders(char *folders, size_t nbytes) {
    const char *wanted = cairn__var("CAIRN_MODULE_PATH");
    char own[PATH_MAX];
    if (cairn__has_raised_rights()) {
        snprintf(folders, nbytes, "%s", installed_folder());
    } else if (wanted) {
        snprintf(folders, nbytes, "%s", wanted);
    } else if (own_folder(own, sizeof(own))) {
        snprintf(folders, nbytes, "%s:%s", own, built_folders);
    } else {
        snprintf(folders, nbytes, "%s", built_folders);
    }
}

static cairn_status find(const struct cairn__module_use *use, const char *name, char *path, size_t nbytes) {
    char folders[3 * PATH_MAX + sizeof(built_folders)], word[64];
    write_folders(folders, sizeof(folders));
    for (const char *f = folders; *f; f += f[strcspn(f, ":")] == ':') {
        const size_t length = strcspn(f, ":");
        const int written = snprintf(path, nbytes, "%.*s/libcairn_%s.so", (int)length, f, name);
        if (written >= 0 && (size_t)written < nbytes && access(path, F_OK) == 0) return CAIRN_OK;
        f += length;
    }
    snprintf(word, sizeof(word), " %s ", name);
    REQUIRE(strstr(built_modules, word) || cairn__var("CAIRN_MODULE_PATH"), CAIRN_ENOTBUILT,
            "%s '%s' is not in this build of Cairn (meson option '%s'); use %s", use->kind, name, name, use->instead);
    return cairn__fail(CAIRN_ENOTBUILT, "%s '%s' needs libcairn_%s.so, which is not in %s%s%s", use->kind, name, name,
                       cairn__var("CAIRN_MODULE_PATH") ? "CAIRN_MODULE_PATH, " : "", folders,
                       cairn__has_raised_rights() ? ", the one folder for programs with more rights than their user"
                                                  : "");
}

/* Checks that a module's file can be trusted: anyone who can write it could run code with the rights of this program's
 * owner, who is root unless the program is set-user-ID of another user. */
static cairn_status judge(const struct cairn__module_use *use, const char *name, const char *path) {
    char why[PATH_MAX + CAIRN__WHY_NBYTES];
    const uid_t owner = geteuid() == getuid() ? 0 : geteuid();
    if (!cairn__has_raised_rights()) return CAIRN_OK;
    REQUIRE(
        cairn__is_trusted_path(path, owner, why, sizeof(why)), CAIRN_ESYSTEM,
        "%s '%s' is not opened in a program with more rights than its user: %s; its files and folders must belong to "
        "root or to the program's owner, and be writable by them alone",
        use->kind, name, why);
    return CAIRN_OK;
}

cairn_status cairn__module_open(const struct cairn__module_use *use, const char *name, const void **table) {
    cairn_status st = CAIRN_OK;
    char path[PATH_MAX];
    size_t nbytes = 0;
    TRY(find(use, name, path, sizeof(path)));
    TRY(judge(use, name, path));
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* never closed: objects that it made may still be in use */
    REQUIRE(handle, CAIRN_ESYSTEM, "%s '%s' cannot be opened: %s", use->kind, name, dlerror());
    void *symbol = dlsym(handle, CAIRN__MODULE_ENTRY);
    REQUIRE(symbol, CAIRN_EINTERNAL, "%s is not a module of Cairn: it has no %s", path, CAIRN__MODULE_ENTRY);
    cairn__module_entry_fn entry;
    memcpy(&entry, &symbol, sizeof(entry)); /* C has no cast from an object to a function */
    const void *given = entry(&host, use->kind);
    if (!given) return cairn__last_status(); /* the module has set the error */
    memcpy(&nbytes, given, sizeof(nbytes));
    REQUIRE(nbytes == use->nbytes, CAIRN_EINTERNAL,
            "%s is of another build of Cairn: its table has %zu bytes, want %zu", path, nbytes, use->nbytes);
    *table = given;
out:
    return st;
}
