/* Fields of a JSON file. Errors name the file, the path of the field, and the expected value. */
#ifndef COMMON_FIELDS_H
#define COMMON_FIELDS_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

/* An object or array within a file. */
struct node {
    const char *file, *path; /* path "" = the whole file; else "parameters[3]" */
    json_t *value;
};

/* How much an absent field matters. */
enum { OPTIONAL = 0, REQUIRED = 1 };

/* The file's object; the caller's to json_decref. Refuses what is not a file, JSON, or an object. */
bool fields_open(const char *file, json_t **root);

/* A number in [least, 2^53], so that whole ones are exact; *out is unchanged if an optional field is absent or null. */
bool fields_number(struct node at, const char *key, double least, int required, double *out);

/* The same, and whole. */
bool fields_whole(struct node at, const char *key, double least, int required, double *out);

/* A text; owned by the file's tree. */
bool fields_text(struct node at, const char *key, int required, const char **out);

/* An array of at least one element; NULL if an optional one is absent. */
bool fields_array(struct node at, const char *key, int required, json_t **out);

/* "FILE: PATH.KEY is ...; it must be ...". False. */
bool fields_refuse(struct node at, const char *key, const char *must_be);

#endif
