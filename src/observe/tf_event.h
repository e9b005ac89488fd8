/* Records of TensorBoard's event files: a protocol buffer in TFRecord's frame. */
#ifndef CAIRN__OBSERVE_TF_EVENT_H
#define CAIRN__OBSERVE_TF_EVENT_H

#include "cairn/observe.h"

/* One of version, and tag with a value or a histogram. */
struct cairn__tf_event {
    double wall_time; /* seconds since 1970 */
    int64_t step;
    const char *version; /* of a file's first record, "brain.Event:2"; NULL = another's */
    const char *tag;
    float value;
    const struct cairn_histogram *histogram; /* NULL = value */
};

/* Enough room for any event: names are cut at 256 bytes, histograms have 2048 buckets. */
enum { CAIRN__TF_RECORD = 40 * 1024 };

/* Writes the whole record to out [CAIRN__TF_RECORD]; returns its bytes. */
size_t cairn__tf_record(const struct cairn__tf_event *event, unsigned char *out);

#endif
