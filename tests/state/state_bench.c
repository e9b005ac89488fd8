/* The cost of saving and loading a state against dd on the same disk and memcpy of the same bytes, alternating in one
 * run. Prints no figure unless the loaded state equals the saved one.
 *
 * usage: state-bench [FOLDER [MEGABYTES]]      works in a new subfolder; default 1000 MB */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../bench.h"
#include "cairn/cairn.h"

enum { ARRAYS = 64, BACKGROUND_MB = 400 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of a shell's command. */
static double shell(const char *command) {
    const double since = now();
    require(system(command) == 0, command);
    return now() - since;
}

static void forget_pages(const char *path) {
    const int fd = open(path, O_RDONLY);
    require(fd >= 0, path);
    fsync(fd);
    require(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
    close(fd);
}

static void fill(unsigned char *x, size_t nbytes, uint64_t seed) {
    uint64_t *words = (uint64_t *)x;
    for (size_t i = 0; i < nbytes / 8; i++) words[i] = (i + seed) * UINT64_C(0x9e3779b97f4a7c15);
}

static cairn_state *make_state(cairn_env *env, unsigned char *x, size_t nbytes) {
    cairn_state *state;
    char name[16];
    done(cairn_state_create(env, &state));
    for (int i = 0; i < ARRAYS; i++) {
        snprintf(name, sizeof(name), "array %d", i);
        done(cairn_state_add_bytes(state, name, x + nbytes / ARRAYS * (size_t)i, nbytes / ARRAYS));
    }
    return state;
}

static double seconds_of_save(cairn_state *state, const char *folder) {
    const double since = now();
    done(cairn_state_save(state, folder, 1, NULL));
    return now() - since;
}

static double seconds_of_load(cairn_state *state, const char *folder, const char *path, int64_t *step) {
    forget_pages(path);
    const double since = now();
    done(cairn_state_load_latest(state, folder, NULL, step));
    return now() - since;
}

static void time_disk(cairn_env *env, const char *folder, size_t mb) {
    const size_t nbytes = mb << 20;
    double dd_write[ROUNDS], save[ROUNDS], dd_read[ROUNDS], load[ROUNDS];
    char write_command[1024], read_command[512], remove_command[300], file[256], path[256];
    unsigned char *x = aligned_alloc(64, nbytes);
    require(x != NULL, "no memory");
    cairn_state *state = make_state(env, x, nbytes);
    snprintf(file, sizeof(file), "%s/dd", folder);
    snprintf(path, sizeof(path), "%s/step-00000001/shared.safetensors", folder);
    snprintf(remove_command, sizeof(remove_command), "rm -rf %s/step-00000001; sync", folder);
    snprintf(write_command, sizeof(write_command), "dd if=%s.in of=%s bs=4M conv=fdatasync 2>/dev/null", file, file);
    snprintf(read_command, sizeof(read_command), "dd if=%s of=/dev/null bs=4M 2>/dev/null", file);
    for (int r = 0; r < ROUNDS; r++) {
        int64_t step = 0;
        fill(x, nbytes, (uint64_t)r);
        if (r == 0) { /* dd's bytes come from the page cache, as ours do from memory */
            char name[300];
            snprintf(name, sizeof(name), "%s.in", file);
            FILE *f = fopen(name, "wb");
            require(f && fwrite(x, 1, nbytes, f) == nbytes && fclose(f) == 0, name);
        }
        unlink(file);
        shell(remove_command); /* outside of the times: neither side pays for giving blocks back */
        /* In turns first: disks of virtual machines are fast for some GB, and slow for whoever comes after. */
        if (r % 2) save[r] = seconds_of_save(state, folder);
        dd_write[r] = shell(write_command);
        if (r % 2 == 0) save[r] = seconds_of_save(state, folder);
        memset(x, 0, nbytes);
        if (r % 2) load[r] = seconds_of_load(state, folder, path, &step);
        forget_pages(file);
        dd_read[r] = shell(read_command);
        if (r % 2 == 0) load[r] = seconds_of_load(state, folder, path, &step);
        unsigned char *want = aligned_alloc(64, nbytes);
        fill(want, nbytes, (uint64_t)r);
        require(step == 1 && memcmp(x, want, nbytes) == 0, "what was loaded is not what was saved");
        free(want);
    }
    const double write_s = median(dd_write), save_s = median(save), read_s = median(dd_read), load_s = median(load);
    printf("save and sync %zu MiB  %7.0f ms, %.2f GB/s; dd conv=fdatasync %7.0f ms: %.2f of its speed (goal 0.80)\n",
           mb, 1e3 * save_s, 1e-9 * (double)nbytes / save_s, 1e3 * write_s, write_s / save_s);
    printf("load, no page cache   %7.0f ms, %.2f GB/s; dd of=/dev/null    %7.0f ms: %.2f of its speed (goal 0.80)\n",
           1e3 * load_s, 1e-9 * (double)nbytes / load_s, 1e3 * read_s, read_s / load_s);
    cairn_state_destroy(&state);
    free(x);
}

static void time_background(cairn_env *env, const char *folder) {
    const size_t nbytes = (size_t)BACKGROUND_MB << 20;
    double copy[ROUNDS], save[ROUNDS];
    unsigned char *x = aligned_alloc(64, nbytes), *y = aligned_alloc(64, nbytes);
    require(x && y, "no memory");
    fill(x, nbytes, 1);
    memcpy(y, x, nbytes);
    cairn_state *state = make_state(env, x, nbytes);
    const struct cairn_state_save_options *how = cairn_state_save_options(.background = CAIRN_ON);
    done(cairn_state_save(state, folder, 2, how)); /* makes the memory of the copy */
    done(cairn_state_wait(state));
    for (int r = 0; r < ROUNDS; r++) {
        double since = now();
        memcpy(y, x, nbytes);
        copy[r] = now() - since;
        since = now();
        done(cairn_state_save(state, folder, 2, how));
        save[r] = now() - since;
        done(cairn_state_wait(state));
    }
    require(memcmp(x, y, nbytes) == 0, "memcpy");
    const double copy_s = median(copy), save_s = median(save);
    printf("background save of %d MiB returns after %.1f ms; memcpy %.1f ms: %.2f of 1.15 memcpy + 1 ms (goal 1)\n",
           BACKGROUND_MB, 1e3 * save_s, 1e3 * copy_s, save_s / (1.15 * copy_s + 1e-3));
    cairn_state_destroy(&state);
    free(x);
    free(y);
}

int main(int argc, char **argv) {
    char folder[200], remove[256];
    cairn_env *env;
    snprintf(folder, sizeof(folder), "%.150s/state-bench-XXXXXX", argc > 1 ? argv[1] : "/tmp");
    require(mkdtemp(folder) != NULL, folder);
    done(cairn_env_create(NULL, NULL, NULL, &env));
    time_disk(env, folder, argc > 2 ? (size_t)atoi(argv[2]) : 1000);
    time_background(env, folder);
    cairn_env_destroy(&env);
    snprintf(remove, sizeof(remove), "rm -r '%s'", folder);
    return system(remove) != 0;
}
