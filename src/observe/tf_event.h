/* Records of TensorBoard's event files: protocol buffers in TFRecord frames. */
#ifndef CAIRN__OBSERVE_TF_EVENT_H
#define CAIRN__OBSERVE_TF_EVENT_H

#include "cairn/observe.h"

/* Either version, or tag with a value or a histogram. */
struct cairn__tf_event {
    double wall_time; /* seconds since 1970 */
    int64_t step;
    const char *version; /* in a file's first record, "brain.Event:2"; NULL in others */
    const char *tag;
    float value;
    const struct cairn_histogram *histogram; /* NULL = value */
};

/* Enough for any event: names are cut at 256 bytes, histograms have at most 2048 buckets. */
enum { CAIRN__TF_RECORD = 40 * 1024 };

/* Writes the whole record to out [CAIRN__TF_RECORD] and returns its size. */
size_t cairn__tf_record(const struct cairn__tf_event *event, unsigned char *out);

#endif
