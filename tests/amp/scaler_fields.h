/* Compares scaler states by the fields that are saved. Needs cmocka. */
#ifndef TESTS_AMP_SCALER_FIELDS_H
#define TESTS_AMP_SCALER_FIELDS_H

#include <string.h>

#include "scaler.h"

static inline void assert_same_scaler(const struct cairn__scaler_state *a, const struct cairn__scaler_state *b) {
    struct amp_scaler_state x, y;
    cairn__scaler_state_show(a, &x);
    cairn__scaler_state_show(b, &y);
    assert_int_equal(x.kind, y.kind);
    for (int i = 0; i < CAIRN__SCALER_FIELDS; i++) {
        const struct cairn__scaler_field *f = &cairn__scaler_fields[i];
        const size_t nbytes = f->type == CAIRN__FIELD_INT ? sizeof(int) : sizeof(double);
        if (memcmp((char *)&x + f->offset, (char *)&y + f->offset, nbytes) != 0) fail_msg("%s differs", f->name);
    }
}

#endif
