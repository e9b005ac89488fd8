/* Prints the records of a file for test_text.py: the bytes of sentence1 and sentence2 in hex, and the label. */
#include <cairn/cairn.h>

#include <stdio.h>

static void print_hex(const struct cairn_field *text) {
    for (size_t i = 0; i < text->nbytes; i++) printf("%02x", ((const unsigned char *)text->data)[i]);
    printf(" ");
}

int main(int argc, char **argv) {
    static const char *const labels[] = {"entailment", "neutral", "contradiction"};
    cairn_dataset *texts = NULL;
    cairn_fields *example = NULL;
    struct cairn_random random;
    if (argc < 2) return 2;
    CAIRN_CHECK(cairn_text_dataset_create(argv[1], CAIRN_COLUMNS("sentence1", "sentence2"),
                                          cairn_text_options(.label = "gold_label", .labels = labels, .num_labels = 3,
                                                             .dropped = "-"),
                                          &texts));
    CAIRN_CHECK(cairn_fields_create(&example));
    for (int64_t i = 0; i < cairn_dataset_count(texts); i++) {
        cairn_fields_clear(example);
        cairn_random_begin(&random, 0, 0, i);
        CAIRN_CHECK(cairn_dataset_read(texts, i, &random, example));
        for (int k = 0; k < 2; k++) print_hex(cairn_fields_at(example, k));
        printf("%d\n", (int)*(const int64_t *)cairn_fields_at(example, 2)->data);
    }
    cairn_fields_destroy(&example);
    cairn_dataset_destroy(&texts);
    return 0;
}
