/* Characters as Hugging Face's `tokenizers` takes them in BERT's normalizer and pre-tokenizer. Any thread. */
#ifndef EXAMPLES_BERT_UNICODE_H
#define EXAMPLES_BERT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BERT_NO_CHARACTER = 0xfffd, BERT_MOST_DECOMPOSED = 4, BERT_MOST_LOWER = 2 };

/* The character at the beginning of s, which has left bytes, one or more; *length is how many are its own. What is no
 * UTF-8 is BERT_NO_CHARACTER, once for each maximal part of a character that there is: as Rust's from_utf8_lossy,
 * Python's errors="replace", and Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts". */
uint32_t bert_utf8_decode(const unsigned char *s, size_t left, size_t *length);

/* Unicode's White_Space. */
bool bert_is_space(uint32_t c);

/* What cleaning removes: U+0000, U+FFFD, controls but tab and line ends, formats, private use. */
bool bert_is_removed(uint32_t c);

/* What is a word of its own: Unicode's P, and of ASCII what is neither letter, digit, space nor control. */
bool bert_is_punctuation(uint32_t c);

/* Blocks of Chinese characters, each of which is a word of its own. */
bool bert_is_chinese(uint32_t c);

/* Category Mn: what remains of an accent when NFD has taken it off its letter. */
bool bert_is_accent(uint32_t c);

/* Canonical_Combining_Class. */
uint8_t bert_combining_class(uint32_t c);

/* The full canonical decomposition, which is c itself for most characters; returns its length. */
size_t bert_decompose(uint32_t c, uint32_t out[BERT_MOST_DECOMPOSED]);

/* The full lower-case mapping of the character alone, as Rust's char::to_lowercase: no final sigma. */
size_t bert_lower(uint32_t c, uint32_t out[BERT_MOST_LOWER]);

#endif
