/* Executes the commands on its input, one per line, and prints a line for each: "ok HEIGHT WIDTH", or the error.
 *
 *   decode PATH OUT
 *   resize PATH OUT TOP LEFT HEIGHT WIDTH NEW_HEIGHT NEW_WIDTH
 *   eval PATH OUT SIZE RESIZE f32|u8            values, and the size twice
 *   train PATH OUT SIZE SEED EPOCH INDEX        u8 values, "ok TOP LEFT HEIGHT WIDTH MIRRORED"
 *   list FOLDER OUT                             a line "CLASS PATH" a picture; the numbers of pictures and classes
 *
 * Paths have no spaces. OUT receives the raw pixels without a header. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "cairn/pictures.h"

enum { WORDS = 9, LONGEST = 4096 };

static void write_out(const char *path, const void *bytes, size_t nbytes) {
    FILE *f = fopen(path, "wb");
    MUST(f && fwrite(bytes, 1, nbytes, f) == nbytes && fclose(f) == 0);
}

static void say(cairn_status st, int64_t a, int64_t b) {
    if (st == CAIRN_OK) printf("ok %" PRId64 " %" PRId64 "\n", a, b);
    else printf("%s %s\n", cairn_status_name(st), cairn_last_error());
}

static void save_picture(cairn_status st, const cairn_picture *p, const char *out) {
    const int64_t h = cairn_picture_height(p), w = cairn_picture_width(p);
    if (st == CAIRN_OK) write_out(out, cairn_picture_pixels(p), (size_t)(h * w) * 3);
    say(st, h, w);
}

static void resize(char **words, const cairn_picture *p) {
    cairn_picture *resized = NULL;
    int64_t n[6];
    for (int i = 0; i < 6; i++) n[i] = atoll(words[3 + i]);
    const struct cairn_picture_box box = {n[0], n[1], n[2], n[3]};
    const cairn_status st = cairn_picture_resize(p, &box, n[4], n[5], &resized);
    save_picture(st, resized, words[2]);
    cairn_picture_destroy(&resized);
}

static void apply(char **words, const cairn_picture *p) {
    const int is_train = strcmp(words[0], "train") == 0;
    struct cairn_picture_transform t = *cairn_picture_transform(.size = atoll(words[3]));
    struct cairn_random random;
    struct cairn_picture_box box = {0};
    int mirrored = 0;
    if (is_train) {
        t.augment = CAIRN_ON, t.dtype = CAIRN_U8;
        cairn_random_begin(&random, strtoull(words[4], NULL, 10), atoll(words[5]), atoll(words[6]));
        MUST_OK(
            cairn_picture_random_box(cairn_picture_height(p), cairn_picture_width(p), &t, &random, &box, &mirrored));
        cairn_random_begin(&random, strtoull(words[4], NULL, 10), atoll(words[5]), atoll(words[6]));
    } else {
        t.resize = atoll(words[4]);
        t.dtype = strcmp(words[5], "u8") == 0 ? CAIRN_U8 : CAIRN_F32;
    }
    const size_t nbytes = cairn_picture_transform_nbytes(&t);
    void *values = malloc(nbytes);
    const cairn_status st = cairn_picture_apply(p, &t, &random, values, nbytes);
    if (st == CAIRN_OK) write_out(words[2], values, nbytes);
    if (is_train)
        printf("ok %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d\n", box.top, box.left, box.height, box.width,
               mirrored);
    else say(st, t.size, t.size);
    free(values);
}

static void list(char **words) {
    cairn_picture_folder *folder = NULL;
    const cairn_status st = cairn_picture_folder_create(words[1], NULL, &folder);
    FILE *f = fopen(words[2], "w");
    MUST(f);
    for (int64_t i = 0; i < cairn_picture_folder_count(folder); i++) {
        char path[LONGEST];
        MUST(cairn_picture_folder_path(folder, i, path, sizeof(path)) > 0);
        fprintf(f, "%" PRId64 " %s\n", cairn_picture_folder_class(folder, i), path);
    }
    MUST(fclose(f) == 0);
    say(st, cairn_picture_folder_count(folder), cairn_picture_folder_num_classes(folder));
    cairn_picture_folder_destroy(&folder);
}

static void obey(char **words) {
    cairn_picture *p = NULL;
    if (strcmp(words[0], "list") == 0) {
        list(words);
        return;
    }
    const cairn_status st = cairn_picture_read(words[1], NULL, &p);
    if (st != CAIRN_OK) say(st, 0, 0);
    else if (strcmp(words[0], "decode") == 0) save_picture(st, p, words[2]);
    else if (strcmp(words[0], "resize") == 0) resize(words, p);
    else apply(words, p);
    cairn_picture_destroy(&p);
}

int main(void) {
    char line[LONGEST];
    while (fgets(line, sizeof(line), stdin)) {
        static char none[] = "0";
        char *words[WORDS], *rest = line;
        for (int i = 0; i < WORDS; i++) {
            words[i] = strtok_r(rest, " \n", &rest);
            if (!words[i]) words[i] = none;
        }
        obey(words);
    }
    return 0;
}
