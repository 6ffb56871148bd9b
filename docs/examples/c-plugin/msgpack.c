#include "msgpack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

static void put(Buffer *out, const void *data, size_t length) {
    if (out->length + length > out->room) {
        out->room = (out->length + length) * 2;
        out->data = realloc(out->data, out->room);
        if (out->data == NULL) {
            fputs("no memory\n", stderr);
            exit(3);
        }
    }
    if (length > 0)
        memcpy(out->data + out->length, data, length);
    out->length += length;
}

static void put_number(Buffer *out, unsigned char kind, uint64_t value, int size) {
    unsigned char bytes[9] = {kind};
    for (int i = 0; i < size; i++)
        bytes[1 + i] = (unsigned char)(value >> (8 * (size - 1 - i)));
    put(out, bytes, 1 + (size_t)size);
}

/* The forms of 64 and 32 bits, which are valid for every value and length. */
void put_nil(Buffer *out) { put(out, "\xc0", 1); }
void put_bool(Buffer *out, bool value) { put(out, value ? "\xc3" : "\xc2", 1); }
void put_int(Buffer *out, int64_t value) { put_number(out, 0xd3, (uint64_t)value, 8); }
void put_array(Buffer *out, size_t length) { put_number(out, 0xdd, length, 4); }
void put_map(Buffer *out, size_t length) { put_number(out, 0xdf, length, 4); }
void put_raw(Buffer *out, const void *data, size_t length) { put(out, data, length); }

void put_double(Buffer *out, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_number(out, 0xcb, bits, 8);
}

void put_text(Buffer *out, const char *text) {
    put_number(out, 0xdb, strlen(text), 4);
    put(out, text, strlen(text));
}

void put_bytes(Buffer *out, const void *data, size_t length) {
    put_number(out, 0xc6, length, 4);
    put(out, data, length);
}

typedef struct {
    const unsigned char *at, *limit;
} Reader;

/* Reads a big-endian number of 1, 2, 4 or 8 bytes. */
static bool take_number(Reader *reader, int size, uint64_t *number) {
    if (reader->limit - reader->at < size)
        return false;
    *number = 0;
    for (int i = 0; i < size; i++)
        *number = *number << 8 | *reader->at++;
    return true;
}

static bool take(Reader *reader, Value *value, int depth);

/* Skips the items of a container, so that its end is told. A length above the bytes that are left is refused at once. */
static bool take_items(Reader *reader, Value *value, Kind kind, uint64_t length, int depth) {
    Value item;
    if (length > (uint64_t)(reader->limit - reader->at))
        return false;
    value->kind = kind;
    value->length = (size_t)length;
    value->data = reader->at;
    for (uint64_t i = 0; i < (kind == MAP ? 2 : 1) * length; i++)
        if (!take(reader, &item, depth + 1))
            return false;
    return true;
}

static bool take_data(Reader *reader, Value *value, Kind kind, uint64_t length) {
    if (length > (uint64_t)(reader->limit - reader->at))
        return false;
    value->kind = kind;
    value->length = (size_t)length;
    value->data = reader->at;
    reader->at += length;
    return true;
}

static bool take_int(Reader *reader, Value *value, int size, bool is_signed) {
    uint64_t number;
    if (!take_number(reader, size, &number))
        return false;
    value->kind = INT;
    switch (is_signed ? size : 8) {
    case 1: value->integer = (int8_t)number; break;
    case 2: value->integer = (int16_t)number; break;
    case 4: value->integer = (int32_t)number; break;
    default: value->integer = (int64_t)number;
    }
    return true;
}

static bool take_double(Reader *reader, Value *value, int size) {
    uint64_t bits;
    if (!take_number(reader, size, &bits))
        return false;
    value->kind = DOUBLE;
    if (size == 8) {
        memcpy(&value->real, &bits, sizeof value->real);
    } else {
        float single;
        uint32_t low = (uint32_t)bits;
        memcpy(&single, &low, sizeof single);
        value->real = single;
    }
    return true;
}

static bool take_kind(Reader *reader, Value *value, unsigned char kind, int depth) {
    uint64_t length;
    if (kind < 0x80 || kind >= 0xe0) {
        value->kind = INT;
        value->integer = (int8_t)kind;
        return true;
    }
    if (kind < 0x90)
        return take_items(reader, value, MAP, kind & 0x0f, depth);
    if (kind < 0xa0)
        return take_items(reader, value, ARRAY, kind & 0x0f, depth);
    if (kind < 0xc0)
        return take_data(reader, value, TEXT, kind & 0x1f);
    switch (kind) {
    case 0xc0: return true;
    case 0xc2: case 0xc3:
        value->kind = BOOL;
        value->integer = kind == 0xc3;
        return true;
    case 0xc4: case 0xc5: case 0xc6:
        return take_number(reader, 1 << (kind - 0xc4), &length) && take_data(reader, value, BYTES, length);
    case 0xca: case 0xcb: return take_double(reader, value, kind == 0xca ? 4 : 8);
    case 0xcc: case 0xcd: case 0xce: case 0xcf: return take_int(reader, value, 1 << (kind - 0xcc), false);
    case 0xd0: case 0xd1: case 0xd2: case 0xd3: return take_int(reader, value, 1 << (kind - 0xd0), true);
    case 0xd9: case 0xda: case 0xdb:
        return take_number(reader, 1 << (kind - 0xd9), &length) && take_data(reader, value, TEXT, length);
    case 0xdc: case 0xdd:
        return take_number(reader, 2 << (kind - 0xdc), &length) && take_items(reader, value, ARRAY, length, depth);
    case 0xde: case 0xdf:
        return take_number(reader, 2 << (kind - 0xde), &length) && take_items(reader, value, MAP, length, depth);
    }
    return false;
}

static bool take(Reader *reader, Value *value, int depth) {
    memset(value, 0, sizeof *value);
    value->kind = NIL;
    if (depth > MAX_DEPTH || reader->at >= reader->limit)
        return false;
    unsigned char kind = *reader->at++;
    bool is_good = take_kind(reader, value, kind, depth);
    value->end = reader->at;
    return is_good;
}

bool read_value(const unsigned char *data, const unsigned char *limit, Value *value) {
    Reader reader = {data, limit};
    return take(&reader, value, 0);
}

bool item_at(const Value *array, size_t number, Value *item) {
    memset(item, 0, sizeof *item);
    if (array->kind != ARRAY || number >= array->length)
        return false;
    Reader reader = {array->data, array->end};
    for (size_t i = 0; i <= number; i++)
        take(&reader, item, 0);
    return true;
}

bool is_text(const Value *value, const char *text) {
    return value->kind == TEXT && value->length == strlen(text) && memcmp(value->data, text, value->length) == 0;
}

bool value_of(const Value *map, const char *key, Value *value) {
    Value name;
    memset(value, 0, sizeof *value);
    if (map->kind != MAP)
        return false;
    Reader reader = {map->data, map->end};
    for (size_t i = 0; i < map->length; i++) {
        take(&reader, &name, 0);
        take(&reader, value, 0);
        if (is_text(&name, key))
            return true;
    }
    memset(value, 0, sizeof *value);
    return false;
}
