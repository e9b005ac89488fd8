/* fp8_codes FORMAT DTYPE: reads numbers on stdin; writes their codes by cairn_fp8_encode, without saturation, to
 * stdout, then the f32 values of these codes by cairn_fp8_decode. FORMAT: e4m3, e5m2. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/cairn.h"

enum { MOST = 1 << 26 };

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const cairn_dtype dtype = strcmp(argv[2], "f32") == 0   ? CAIRN_F32
                              : strcmp(argv[2], "f16") == 0 ? CAIRN_F16
                                                            : CAIRN_BF16;
    const struct cairn_fp8_options *o =
        cairn_fp8_options(.format = strcmp(argv[1], "e4m3") == 0 ? CAIRN_FP8_E4M3 : CAIRN_FP8_E5M2,
                          .saturate = CAIRN_OFF);
    char *x = malloc(MOST);
    if (!x) return 1;
    const size_t n = fread(x, 1, MOST, stdin) / cairn_dtype_nbytes(dtype);
    uint8_t *codes = malloc(n + 1);
    float *values = malloc((n + 1) * sizeof(float));
    if (!codes || !values) return 1;
    CAIRN_CHECK(cairn_fp8_encode(codes, x, dtype, n, o));
    CAIRN_CHECK(cairn_fp8_decode(values, CAIRN_F32, codes, n, o));
    const size_t written = fwrite(codes, 1, n, stdout) + fwrite(values, sizeof(float), n, stdout);
    free(x);
    free(codes);
    free(values);
    return written == 2 * n ? 0 : 1;
}
