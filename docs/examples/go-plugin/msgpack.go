package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sort"
)

// The part of MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md) that the host protocol uses: nil,
// booleans, numbers, text, bytes, arrays and maps. A larger plugin may rather take a module for this.

// pack encodes nil, bool, int, float64, string, []byte, []any, []string, map[string]any and map[string]string. Keys are
// sorted, so that equal values have equal bytes. It panics for another type: that is an error of this program.
func pack(value any) []byte { return appendValue(nil, value) }

func appendValue(out []byte, value any) []byte {
	switch value := value.(type) {
	case nil:
		return append(out, 0xc0)
	case bool:
		if value {
			return append(out, 0xc3)
		}
		return append(out, 0xc2)
	case int:
		return binary.BigEndian.AppendUint64(append(out, 0xd3), uint64(value))
	case float64:
		return binary.BigEndian.AppendUint64(append(out, 0xcb), math.Float64bits(value))
	case string:
		return append(appendLength(out, 0xdb, len(value)), value...)
	case []byte:
		return append(appendLength(out, 0xc6, len(value)), value...)
	case []any:
		out = appendLength(out, 0xdd, len(value))
		for _, item := range value {
			out = appendValue(out, item)
		}
		return out
	case []string:
		out = appendLength(out, 0xdd, len(value))
		for _, item := range value {
			out = appendValue(out, item)
		}
		return out
	case map[string]any:
		out = appendLength(out, 0xdf, len(value))
		for _, key := range sortedKeys(value) {
			out = appendValue(appendValue(out, key), value[key])
		}
		return out
	case map[string]string:
		out = appendLength(out, 0xdf, len(value))
		for _, key := range sortedKeys(value) {
			out = appendValue(appendValue(out, key), value[key])
		}
		return out
	}
	panic(fmt.Sprintf("no MessagePack for %T", value))
}

// appendLength writes the form of 32 bits, which is valid for every length.
func appendLength(out []byte, kind byte, length int) []byte {
	return binary.BigEndian.AppendUint32(append(out, kind), uint32(length))
}

func sortedKeys[V any](values map[string]V) []string {
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

var errMalformed = errors.New("malformed MessagePack")

const maxDepth = 64

// unpack decodes one value: nil, bool, int, float64, string, []byte, []any or map[string]any. Keys that are numbers
// become text.
func unpack(data []byte) (any, error) {
	decoder := unpacker{data: data}
	value, err := decoder.value(0)
	if err == nil && len(decoder.data) > 0 {
		err = errMalformed
	}
	return value, err
}

type unpacker struct{ data []byte }

func (d *unpacker) take(count int) ([]byte, error) {
	if count < 0 || count > len(d.data) {
		return nil, errMalformed
	}
	taken := d.data[:count]
	d.data = d.data[count:]
	return taken, nil
}

// number reads a big-endian number of 1, 2, 4 or 8 bytes.
func (d *unpacker) number(size int) (uint64, error) {
	taken, err := d.take(size)
	var number uint64
	for _, one := range taken {
		number = number<<8 | uint64(one)
	}
	return number, err
}

func (d *unpacker) value(depth int) (any, error) {
	head, err := d.take(1)
	if err != nil || depth > maxDepth {
		return nil, errMalformed
	}
	kind := head[0]
	switch {
	case kind < 0x80:
		return int(kind), nil
	case kind < 0x90:
		return d.mapping(int(kind&0x0f), depth)
	case kind < 0xa0:
		return d.array(int(kind&0x0f), depth)
	case kind < 0xc0:
		text, err := d.take(int(kind & 0x1f))
		return string(text), err
	case kind >= 0xe0:
		return int(int8(kind)), nil
	}
	switch kind {
	case 0xc0:
		return nil, nil
	case 0xc2, 0xc3:
		return kind == 0xc3, nil
	case 0xc4, 0xc5, 0xc6:
		length, err := d.number(1 << (kind - 0xc4))
		if err != nil {
			return nil, err
		}
		return d.take(int(length))
	case 0xca:
		bits, err := d.number(4)
		return float64(math.Float32frombits(uint32(bits))), err
	case 0xcb:
		bits, err := d.number(8)
		return math.Float64frombits(bits), err
	case 0xcc, 0xcd, 0xce, 0xcf:
		number, err := d.number(1 << (kind - 0xcc))
		return int(number), err
	case 0xd0:
		number, err := d.number(1)
		return int(int8(number)), err
	case 0xd1:
		number, err := d.number(2)
		return int(int16(number)), err
	case 0xd2:
		number, err := d.number(4)
		return int(int32(number)), err
	case 0xd3:
		number, err := d.number(8)
		return int(number), err
	case 0xd9, 0xda, 0xdb:
		length, err := d.number(1 << (kind - 0xd9))
		if err != nil {
			return nil, err
		}
		text, err := d.take(int(length))
		return string(text), err
	case 0xdc, 0xdd:
		length, err := d.number(2 << (kind - 0xdc))
		if err != nil {
			return nil, err
		}
		return d.array(int(length), depth)
	case 0xde, 0xdf:
		length, err := d.number(2 << (kind - 0xde))
		if err != nil {
			return nil, err
		}
		return d.mapping(int(length), depth)
	}
	return nil, errMalformed
}

func (d *unpacker) array(length int, depth int) (any, error) {
	if length > len(d.data) {
		return nil, errMalformed
	}
	items := make([]any, 0, length)
	for len(items) < length {
		item, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

func (d *unpacker) mapping(length int, depth int) (any, error) {
	if length > len(d.data) {
		return nil, errMalformed
	}
	items := make(map[string]any, length)
	for count := 0; count < length; count++ {
		key, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		value, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		items[fmt.Sprint(key)] = value
	}
	return items, nil
}
