/* BERT's tokenizer: text to WordPiece tokens, the same as Hugging Face's BertTokenizerFast.
 *
 *     bert_tokenizer *tokenizer;
 *     bert_encoding encoding = BERT_ENCODING_INIT;
 *     CAIRN_CHECK(bert_tokenizer_create("vocab.txt", bert_tokenizer_options(.do_lower_case = CAIRN_OFF), &tokenizer));
 *     CAIRN_CHECK(bert_tokenizer_encode(tokenizer, BERT_TEXT("A man inspects."), BERT_TEXT("He sleeps."),
 *                                       bert_encode_options(.max_length = 512), &encoding));
 *     use(encoding.ids, encoding.types, encoding.n);
 *     bert_encoding_finish(&encoding);
 *     bert_tokenizer_destroy(&tokenizer);
 *
 * What happens to a text, in this order: special tokens in it ("[SEP]") are taken out, to the letter; controls, formats
 * and U+FFFD are removed and white space becomes spaces; Chinese characters become words; accents go (NFD, category
 * Mn); capitals become small; spaces part words, and each punctuation character is one; and each word is cut, from its
 * beginning, into the longest pieces that the vocabulary has, behind the first with "##" before them. A word of more
 * than 100 characters, or one that cannot be cut so, is [UNK].
 *
 * Text is UTF-8 of any length to 1 GiB, and may have zero bytes in it. What is not UTF-8 reads as U+FFFD, one for each
 * maximal part of a character, which counts as a character in offsets.
 *
 * Threads: a tokenizer does not change. Any number of threads encode with it at a time, each into an encoding of its
 * own.
 * Errors: calls return a status, and cairn_last_error() has the sentence.
 * Source: Devlin et al., BERT, 2018, and its tokenization.py; `tokenizers` 0.23.3, which tests/bert compares with. */
#ifndef EXAMPLES_BERT_TOKENIZER_H
#define EXAMPLES_BERT_TOKENIZER_H

#include <cairn/cairn.h>

#include <stdint.h>

typedef struct bert_tokenizer bert_tokenizer;

/* As in Hugging Face's tokenizer_config.json, whose names they have. bert-base-cased has do_lower_case OFF. */
struct bert_tokenizer_options {
    size_t struct_size;
    cairn_switch do_lower_case;          /* ON */
    cairn_switch strip_accents;          /* as do_lower_case */
    cairn_switch tokenize_chinese_chars; /* ON */
};
#define bert_tokenizer_options(...) \
    (&(struct bert_tokenizer_options){.struct_size = sizeof(struct bert_tokenizer_options), __VA_ARGS__})

/* A tokenizer with the vocabulary of path: a token a line, without the white space at its end, whose id is the number
 * of lines before it. Of equal tokens the last counts.
 *
 *   options  NULL = all defaults
 *
 * Errors: CAIRN_ESYSTEM path cannot be read; CAIRN_EINVAL a line that is not UTF-8, with its number, or one of [PAD],
 * [UNK], [CLS], [SEP] and [MASK] is missing; a file over 1 GiB; CAIRN_ENOMEM.
 * Cost: 30 thousand tokens, as bert-base has, take about 5 ms and 9 MB. */
cairn_status bert_tokenizer_create(const char *path, const struct bert_tokenizer_options *options,
                                   bert_tokenizer **out);

void bert_tokenizer_destroy(bert_tokenizer **tokenizer);

/* Ids are 0, ..., size - 1. The id of a token, as it stands in the vocabulary, or -1; the token of an id, or NULL. */
int32_t bert_tokenizer_size(const bert_tokenizer *tokenizer);
int32_t bert_tokenizer_id(const bert_tokenizer *tokenizer, const char *token);
const char *bert_tokenizer_token(const bert_tokenizer *tokenizer, int32_t id);

/* ---- encoding ---- */

struct bert_text {
    const char *bytes; /* NULL = there is no text */
    size_t nbytes;
};
#define BERT_TEXT(string) ((struct bert_text){(string), strlen(string)})
#define BERT_NO_TEXT      ((struct bert_text){NULL, 0})

/* Which text of a pair loses tokens, at its end, where both are too long together. */
typedef enum bert_truncation {
    BERT_LONGEST_FIRST =
        1, /* the longer one, until both are equal; then both. Of an odd rest the second has one more */
    BERT_ONLY_FIRST = 2,
    BERT_ONLY_SECOND = 3,
} bert_truncation;

struct bert_encode_options {
    size_t struct_size;
    size_t max_length;               /* tokens, [CLS] and [SEP] among them; 0 = no limit */
    bert_truncation truncation;      /* BERT_LONGEST_FIRST */
    cairn_switch add_special_tokens; /* ON: [CLS] first [SEP], or [CLS] first [SEP] second [SEP] */
    size_t pad_to;                   /* tokens, up to 2^30: [PAD] until there are as many; 0 = none */
};
#define bert_encode_options(...) \
    (&(struct bert_encode_options){.struct_size = sizeof(struct bert_encode_options), __VA_ARGS__})

struct bert_span {
    uint32_t begin, end; /* the first that belongs to a token, and the first that does not */
};

/* The tokens of a text or a pair. Its memory is its own and is reused by the next call: so one encoding for each
 * thread, not one for each text. What is added for the model ([CLS], [SEP], [PAD]) has the spans 0 to 0. */
typedef struct bert_encoding {
    size_t n;                /* tokens, padding too */
    int32_t *ids;            /* [n] */
    int32_t *types;          /* [n] token_type_ids: 1 for the second text and the [SEP] behind it, else 0 */
    int32_t *mask;           /* [n] attention_mask: 0 for padding, else 1 */
    struct bert_span *chars; /* [n] of its text: in characters, as Hugging Face's offset_mapping */
    struct bert_span *bytes; /* [n] the same in bytes */
    size_t room;             /* the rest is the tokenizer's own */
    struct bert_scratch *scratch;
} bert_encoding;
#define BERT_ENCODING_INIT ((bert_encoding){0})

/* Encodes one text, or a pair.
 *
 *   second   BERT_NO_TEXT = there is none; an empty text is one
 *   options  NULL = all defaults
 *
 * Errors: CAIRN_EINVAL first is missing or a text is over 1 GiB; max_length is below the 2 or 3 special tokens; pad_to;
 * BERT_ONLY_SECOND without a second text; BERT_ONLY_FIRST or _SECOND where that text would have no token left, as
 * Hugging Face does (but with max_length 3, or 2, all is cut); CAIRN_ENOMEM. The encoding has no tokens then.
 * Cost: linear in the text; no allocation once a text as long has been encoded. From 19 to 101 bytes of memory a byte
 * of text, as it has few or many tokens. */
cairn_status bert_tokenizer_encode(const bert_tokenizer *tokenizer, struct bert_text first, struct bert_text second,
                                   const struct bert_encode_options *options, bert_encoding *encoding);

/* Frees what an encoding holds; it can be used again. */
void bert_encoding_finish(bert_encoding *encoding);

#endif
