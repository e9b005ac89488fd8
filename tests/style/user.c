/* What programs write with Cairn's headers besides calls. headers.py compiles it as C99 and as C++17, with warnings. */
#include <cairn/cairn.h>

static void set_threads(int many) {
    if (many) CAIRN_CHECK(cairn_set_num_threads(2));
    else CAIRN_CHECK(cairn_set_num_threads(1));
}

static double rates(void) {
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_adam_options adam = CAIRN_ADAM_OPTIONS_INIT, adamw = CAIRN_ADAMW_OPTIONS_INIT;
    sgd.lr = 0.1;
    return sgd.lr + adam.lr + adamw.lr;
}

static cairn_switch chosen(void) {
#ifdef __cplusplus
    amp_options amp = {};
    amp.struct_size = sizeof(amp);
    amp.master_weights = CAIRN_ON;
    return amp.master_weights;
#else
    return amp_options(.master_weights = CAIRN_ON)->master_weights;
#endif
}

int main(void) {
    set_threads(rates() > 1);
    return chosen() != CAIRN_ON;
}
