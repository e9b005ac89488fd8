/* Character classes and mappings of BERT's normalizer and pre-tokenizer in Hugging Face's `tokenizers`. Callable from
 * any thread. */
#ifndef EXAMPLES_BERT_UNICODE_H
#define EXAMPLES_BERT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BERT_NO_CHARACTER = 0xfffd, BERT_MOST_DECOMPOSED = 4, BERT_MOST_LOWER = 2 };

/* Decodes the character at the start of s, which has `left` >= 1 bytes, and sets *length to its number of bytes.
 * Invalid UTF-8 yields BERT_NO_CHARACTER once per maximal subpart, as Rust's from_utf8_lossy, Python's
 * errors="replace", and Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts". */
uint32_t bert_utf8_decode(const unsigned char *s, size_t left, size_t *length);

/* Unicode's White_Space. */
bool bert_is_space(uint32_t c);

/* Removed by cleaning: U+0000, U+FFFD, control characters except tab and line ends, format characters, private use. */
bool bert_is_removed(uint32_t c);

/* Each of these is a word: Unicode's category P, and in ASCII everything except letters, digits, spaces and
 * controls. */
bool bert_is_punctuation(uint32_t c);

/* In a block of Chinese characters; each is a word. */
bool bert_is_chinese(uint32_t c);

/* Category Mn: the marks that NFD separates from their letters. */
bool bert_is_accent(uint32_t c);

/* Canonical_Combining_Class. */
uint8_t bert_combining_class(uint32_t c);

/* Full canonical decomposition, which is c itself for most characters. Returns the length. */
size_t bert_decompose(uint32_t c, uint32_t out[BERT_MOST_DECOMPOSED]);

/* Full lower-case mapping without context, as Rust's char::to_lowercase: no final sigma. Returns the length. */
size_t bert_lower(uint32_t c, uint32_t out[BERT_MOST_LOWER]);

#endif
