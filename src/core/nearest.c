#include "nearest.h"

#include <string.h>

static int least(int a, int b) {
    return a < b ? a : b;
}

/* Keeps the last three rows of the table of distances, the current one included. */
static int distance(const char *a, const char *b) {
    int row[3][CAIRN__NEAREST_MAX + 1];
    const int n = (int)strlen(a), m = (int)strlen(b);
    if (m > CAIRN__NEAREST_MAX) return m;
    for (int j = 0; j <= m; j++) row[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = row[i % 3], *before = row[(i + 2) % 3], *two = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            now[j] = least(least(before[j], now[j - 1]) + 1, before[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = least(now[j], two[j - 2] + 1);
        }
    }
    return row[n % 3][m];
}

void cairn__nearest_try(struct cairn__nearest *nearest, const char *name) {
    const size_t n = strlen(nearest->written);
    const int limit = nearest->name ? nearest->distance : n < 4 ? 1 : n < 8 ? 2 : 3;
    const int d = distance(nearest->written, name);
    if (d >= limit) return;
    nearest->distance = d;
    nearest->name = name;
}
