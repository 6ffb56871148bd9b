/* The part of MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md) that the host protocol uses: nil,
 * booleans, numbers, text, bytes, arrays and maps. A larger plugin may rather take a library for this. */
#ifndef MSGPACK_H
#define MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is written. `data` is freed by its owner. */
typedef struct {
    unsigned char *data;
    size_t length, room;
} Buffer;

void put_nil(Buffer *out);
void put_bool(Buffer *out, bool value);
void put_int(Buffer *out, int64_t value);
void put_double(Buffer *out, double value);
void put_text(Buffer *out, const char *text);
void put_bytes(Buffer *out, const void *data, size_t length);
void put_array(Buffer *out, size_t length);
void put_map(Buffer *out, size_t length);
void put_raw(Buffer *out, const void *data, size_t length);

/* One value in bytes of somebody else, which are not copied: it is valid as long as they are. */
typedef enum { NIL, BOOL, INT, DOUBLE, TEXT, BYTES, ARRAY, MAP } Kind;

typedef struct {
    Kind kind;
    int64_t integer;           /* INT, BOOL */
    double real;               /* DOUBLE */
    const unsigned char *data; /* TEXT, BYTES; ARRAY, MAP: the first item */
    size_t length;             /* bytes; ARRAY: items, MAP: pairs */
    const unsigned char *end;  /* behind the whole value */
} Value;

/* Reads the value at `data`. Returns false if it is malformed, deeper than 64, or ends behind `limit`. */
bool read_value(const unsigned char *data, const unsigned char *limit, Value *value);

/* The item of a number in an array; a key's value in a map. Returns false, and a NIL, if there is none. */
bool item_at(const Value *array, size_t number, Value *item);
bool value_of(const Value *map, const char *key, Value *value);
bool is_text(const Value *value, const char *text);

#endif
