/* BERT's tokenizer: text to WordPiece tokens, with the same result as Hugging Face's BertTokenizerFast.
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
 * A text is processed in this order: special tokens ("[SEP]", exact match) are split off; control and format characters
 * and U+FFFD are removed and white space becomes spaces; each Chinese character becomes a word; accents are stripped
 * (NFD, category Mn); letters are lower-cased; the text is split into words at spaces, and each punctuation character
 * is a word; and each word is split greedily from its start into the longest pieces in the vocabulary, where pieces
 * after the first have the prefix "##". A word of more than 100 characters, or one that cannot be split so, is [UNK].
 *
 * Text is UTF-8 of up to 1 GiB and may contain zero bytes. Invalid UTF-8 reads as U+FFFD, one for each maximal subpart
 * of a character; each counts as one character in offsets.
 *
 * Threads: a tokenizer is immutable. Any number of threads may encode with it at the same time, each into its own
 * encoding.
 * Errors: calls return a status; cairn_last_error() has the message.
 * Source: Devlin et al., BERT, 2018, and its tokenization.py; `tokenizers` 0.23.3, which tests/bert compares with. */
#ifndef EXAMPLES_BERT_TOKENIZER_H
#define EXAMPLES_BERT_TOKENIZER_H

#include <cairn/cairn.h>

#include <stdint.h>

typedef struct bert_tokenizer bert_tokenizer;

/* Named as in Hugging Face's tokenizer_config.json. bert-base-cased needs do_lower_case OFF. */
struct bert_tokenizer_options {
    size_t struct_size;
    cairn_switch do_lower_case;          /* ON */
    cairn_switch strip_accents;          /* as do_lower_case */
    cairn_switch tokenize_chinese_chars; /* ON */
};
#define bert_tokenizer_options(...) \
    (&(struct bert_tokenizer_options){.struct_size = sizeof(struct bert_tokenizer_options), __VA_ARGS__})

/* Creates a tokenizer from the vocabulary file path: one token per line, without trailing white space; its id is the
 * line number, from 0. Of equal tokens the last one counts.
 *
 *   options  NULL = all defaults
 *
 * Errors: CAIRN_ESYSTEM path cannot be read; CAIRN_EINVAL a line is not UTF-8 (the message has its number), one of
 * [PAD], [UNK], [CLS], [SEP] and [MASK] is missing, or the file is over 1 GiB; CAIRN_ENOMEM.
 * Cost: 30 thousand tokens, as bert-base has, take about 5 ms and 9 MB. */
cairn_status bert_tokenizer_create(const char *path, const struct bert_tokenizer_options *options,
                                   bert_tokenizer **out);

void bert_tokenizer_destroy(bert_tokenizer **tokenizer);

/* Ids are 0, ..., size - 1. bert_tokenizer_id returns the id of a vocabulary entry, or -1; bert_tokenizer_token the
 * entry of an id, or NULL. */
int32_t bert_tokenizer_size(const bert_tokenizer *tokenizer);
int32_t bert_tokenizer_id(const bert_tokenizer *tokenizer, const char *token);
const char *bert_tokenizer_token(const bert_tokenizer *tokenizer, int32_t id);

/* ---- encoding ---- */

struct bert_text {
    const char *bytes; /* NULL = no text */
    size_t nbytes;
};
#define BERT_TEXT(string) ((struct bert_text){(string), strlen(string)})
#define BERT_NO_TEXT      ((struct bert_text){NULL, 0})

/* Which text of a pair is cut, at its end, if the two together are too long. */
typedef enum bert_truncation {
    BERT_LONGEST_FIRST = 1, /* the longer one until both are equal, then both; the second keeps an odd token */
    BERT_ONLY_FIRST = 2,
    BERT_ONLY_SECOND = 3,
} bert_truncation;

struct bert_encode_options {
    size_t struct_size;
    size_t max_length;               /* tokens, including [CLS] and [SEP]; 0 = no limit */
    bert_truncation truncation;      /* BERT_LONGEST_FIRST */
    cairn_switch add_special_tokens; /* ON: [CLS] first [SEP], or [CLS] first [SEP] second [SEP] */
    size_t pad_to;                   /* tokens, up to 2^30: appends [PAD] up to this length; 0 = no padding */
};
#define bert_encode_options(...) \
    (&(struct bert_encode_options){.struct_size = sizeof(struct bert_encode_options), __VA_ARGS__})

struct bert_span {
    uint32_t begin, end; /* half-open: end is the first one that is not part of the token */
};

/* The tokens of a text or a pair. An encoding owns its memory and reuses it in the next call, so use one per thread,
 * not one per text. Added tokens ([CLS], [SEP], [PAD]) have the span 0 to 0. */
typedef struct bert_encoding {
    size_t n;                /* tokens, padding too */
    int32_t *ids;            /* [n] */
    int32_t *types;          /* [n] token_type_ids: 1 for the second text and the [SEP] after it, else 0 */
    int32_t *mask;           /* [n] attention_mask: 0 for padding, else 1 */
    struct bert_span *chars; /* [n] position in its text, in characters, as Hugging Face's offset_mapping */
    struct bert_span *bytes; /* [n] the same in bytes */
    size_t room;             /* from here on private to the tokenizer */
    struct bert_scratch *scratch;
} bert_encoding;
#define BERT_ENCODING_INIT ((bert_encoding){0})

/* Encodes one text, or a pair.
 *
 *   second   BERT_NO_TEXT = encode one text; an empty text makes a pair
 *   options  NULL = all defaults
 *
 * Errors: CAIRN_EINVAL first is missing or a text is over 1 GiB; max_length is below the 2 or 3 special tokens; pad_to
 * is over 2^30; BERT_ONLY_SECOND without a second text; BERT_ONLY_FIRST or _SECOND would leave that text without a
 * token, as in Hugging Face (but with max_length 3, or 2, everything is cut); CAIRN_ENOMEM. The encoding then has no
 * tokens.
 * Cost: linear in the text; no allocation after a text of the same length has been encoded. 19 to 101 bytes of memory
 * per byte of text, depending on the number of tokens. */
cairn_status bert_tokenizer_encode(const bert_tokenizer *tokenizer, struct bert_text first, struct bert_text second,
                                   const struct bert_encode_options *options, bert_encoding *encoding);

/* Frees the encoding's memory; the encoding can be used again. */
void bert_encoding_finish(bert_encoding *encoding);

#endif
