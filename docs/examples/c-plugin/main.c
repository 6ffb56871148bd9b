/* An accelerator plugin of Backend.AI without Python: it speaks the host protocol (docs/reference/accelerators) on
 * descriptor 3. Its devices are pretended; what a vendor replaces is marked with VENDOR.
 *
 * Calls are answered one after the other, each at once. A call that takes long, as a reset, needs a thread: the agent sends
 * others meanwhile, and a Cancel when it does not wait any longer. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "msgpack.h"

enum { CALLS = 3, PROTOCOL = 1, MAX_FRAME = 16 << 20, MAX_DEVICES = 64 };
#define KEY "acme"
#define SLOT "acme.device"
#define MEMORY (8LL << 30)

static int device_count = 2;
static bool is_broken[MAX_DEVICES];
static bool is_made;

/* A call in work: its arguments, and what is answered. `code` is that of an error, NULL for none. */
typedef struct {
    Value arguments;
    Buffer result;
    const char *code;
    char message[300];
    char state[4096]; /* of a hook, as JSON; empty where the call has none */
    int64_t state_version;
} Call;

static void fail(Call *call, const char *code, const char *message) {
    call->code = code;
    snprintf(call->message, sizeof call->message, "%s", message);
}

/* VENDOR: a serial number or a PCI address; an id stays the same over restarts. */
static void id_of(int number, char id[24]) { snprintf(id, 24, "acme-%d", number); }

static int number_of(const Value *id) {
    char own[24];
    for (int number = 0; number < device_count; number++) {
        id_of(number, own);
        if (is_text(id, own))
            return number;
    }
    return -1;
}

static void put_pair(Buffer *out, const char *key, const char *text) {
    put_text(out, key);
    put_text(out, text);
}

static void load(Call *call) {
    Value request, versions, version;
    bool is_spoken = false;
    item_at(&call->arguments, 0, &request);
    value_of(&request, "protocols", &versions);
    for (size_t i = 0; item_at(&versions, i, &version); i++)
        is_spoken |= version.kind == INT && version.integer == PROTOCOL;
    if (!is_spoken) {
        fail(call, "not-supported", "this plugin speaks version 1 of the host protocol, and the agent does not");
        return;
    }
    Buffer *out = &call->result;
    put_map(out, 8);
    put_text(out, "protocol"), put_int(out, PROTOCOL);
    put_pair(out, "key", KEY);
    put_pair(out, "version", "1.0");
    put_text(out, "verified_on"), put_nil(out);
    put_text(out, "key_is_slot_prefix"), put_bool(out, true);
    put_text(out, "capabilities"), put_map(out, 0);
    put_text(out, "powers"), put_array(out, 0);
    /* What a session may say to the plugin: {"mode": "fast"} or {"mode": "exact"}. */
    put_text(out, "options_schema"), put_map(out, 3);
    put_pair(out, "type", "object");
    put_text(out, "additionalProperties"), put_bool(out, false);
    put_text(out, "properties"), put_map(out, 1);
    put_text(out, "mode"), put_map(out, 2);
    put_pair(out, "description", "How the device computes.");
    put_text(out, "enum"), put_array(out, 2);
    put_text(out, "fast"), put_text(out, "exact");
}

/* Takes the settings of [plugins.acme]: `devices`, a number, and `broken`, the ids of devices that fail. */
static void make(Call *call) {
    Value settings, value, id;
    if (!item_at(&call->arguments, 0, &settings) || settings.kind != MAP) {
        fail(call, "invalid-api-params", "plugins." KEY " is no table");
        return;
    }
    size_t taken = 0;
    if (value_of(&settings, "devices", &value)) {
        if (value.kind != INT || value.integer < 0 || value.integer > MAX_DEVICES) {
            fail(call, "invalid-api-params", "plugins." KEY ".devices: expected a number from 0 to 64");
            return;
        }
        device_count = (int)value.integer;
        taken++;
    }
    if (value_of(&settings, "broken", &value)) {
        taken++;
        for (size_t i = 0; item_at(&value, i, &id); i++) {
            int number = number_of(&id);
            if (number < 0) {
                fail(call, "invalid-api-params", "plugins." KEY ".broken: expected ids of devices");
                return;
            }
            is_broken[number] = true;
        }
    }
    if (taken < settings.length) {
        fail(call, "invalid-api-params", "plugins." KEY ": no setting of this plugin; the keys are broken, devices");
        return;
    }
    is_made = true;
    put_nil(&call->result);
}

static void list_devices(Buffer *out) {
    char id[24], place[24];
    put_array(out, (size_t)device_count);
    for (int number = 0; number < device_count; number++) {
        id_of(number, id);
        snprintf(place, sizeof place, "mock:%d", number);
        put_map(out, is_broken[number] ? 9 : 7);
        put_pair(out, "device_name", KEY);
        put_pair(out, "device_id", id);
        put_pair(out, "hw_location", place);
        put_pair(out, "model_name", "ACME One");
        put_text(out, "memory_size"), put_int(out, MEMORY);
        put_text(out, "processing_units"), put_int(out, 4);
        put_text(out, "slots"), put_array(out, 1), put_map(out, 3);
        put_pair(out, "slot_name", SLOT);
        put_pair(out, "slot_type", "count");
        put_pair(out, "amount", "1"); /* quantities are text: they are exact */
        if (is_broken[number]) {
            put_pair(out, "health", "unhealthy");
            put_pair(out, "health_reason", "the settings say that it is broken");
        }
    }
}

static void configurable_slots(Buffer *out) {
    put_array(out, 1), put_map(out, 6);
    put_pair(out, "slot_name", SLOT);
    put_pair(out, "slot_type", "count");
    put_pair(out, "description", "ACME devices");
    put_pair(out, "human_readable_name", "ACME device");
    put_pair(out, "display_unit", "device");
    put_pair(out, "display_icon", "npu1");
}

static void available_slots(Buffer *out) {
    int healthy = 0;
    char text[24];
    for (int number = 0; number < device_count; number++)
        healthy += !is_broken[number];
    snprintf(text, sizeof text, "%d", healthy);
    put_map(out, 1);
    put_pair(out, SLOT, text);
}

/* Marks the devices of an allocation, {"slots": {slot: {device: quantity}}}, and returns how many there are. */
static int allocated(const Value *allocation, bool is_held[MAX_DEVICES]) {
    Value slots, devices, found;
    char id[24];
    int count = 0;
    value_of(allocation, "slots", &slots);
    value_of(&slots, SLOT, &devices);
    for (int number = 0; number < device_count; number++) {
        id_of(number, id);
        is_held[number] = value_of(&devices, id, &found);
        count += is_held[number];
    }
    return count;
}

static void put_metrics(Buffer *out, const bool is_shown[MAX_DEVICES], int count) {
    static const char *const keys[2] = {"acme_mem", "acme_util"}, *const units[2] = {"bytes", "percent"};
    static const double capacities[2] = {(double)MEMORY, 100.0};
    char id[24];
    put_array(out, 2 * (size_t)count);
    for (int number = 0; number < device_count; number++)
        for (int kind = 0; is_shown[number] && kind < 2; kind++) {
            id_of(number, id);
            put_map(out, 5);
            put_pair(out, "key", keys[kind]);
            put_text(out, "value"), put_double(out, 0.0); /* VENDOR: what the device says */
            put_text(out, "capacity"), put_double(out, capacities[kind]);
            put_pair(out, "unit_hint", units[kind]);
            put_pair(out, "device_id", id);
        }
}

static void node_metrics(Buffer *out) {
    bool is_shown[MAX_DEVICES];
    for (int number = 0; number < device_count; number++)
        is_shown[number] = true;
    put_metrics(out, is_shown, device_count);
}

static void workload_metrics(Call *call) {
    Value context, allocations, kernels, kernel, allocation;
    bool is_held[MAX_DEVICES];
    char id[64];
    item_at(&call->arguments, 0, &context);
    value_of(&context, "allocations", &allocations);
    item_at(&call->arguments, 1, &kernels);
    put_map(&call->result, kernels.kind == ARRAY ? kernels.length : 0);
    for (size_t i = 0; item_at(&kernels, i, &kernel); i++) {
        snprintf(id, sizeof id, "%.*s", (int)(kernel.length < 63 ? kernel.length : 63), (const char *)kernel.data);
        value_of(&allocations, id, &allocation);
        put_text(&call->result, id);
        int count = allocated(&allocation, is_held);
        put_metrics(&call->result, is_held, count);
    }
}

static void attached_devices(Call *call) {
    Value allocation;
    bool is_held[MAX_DEVICES];
    char id[24];
    item_at(&call->arguments, 0, &allocation);
    put_array(&call->result, (size_t)allocated(&allocation, is_held));
    for (int number = 0; number < device_count; number++)
        if (is_held[number]) {
            id_of(number, id);
            put_map(&call->result, 3);
            put_pair(&call->result, "device_id", id);
            put_pair(&call->result, "model_name", "ACME One");
            put_text(&call->result, "data"), put_map(&call->result, 1);
            put_text(&call->result, "memory"), put_int(&call->result, MEMORY);
        }
}

/* Joins the ids of held devices, each between `quote`s. */
static void join(char *text, size_t room, const bool is_held[MAX_DEVICES], const char *quote) {
    char id[24];
    size_t length = 0;
    text[0] = '\0';
    for (int number = 0; number < device_count; number++)
        if (is_held[number] && length < room) {
            id_of(number, id);
            length += (size_t)snprintf(text + length, room - length, "%s%s%s%s", length ? "," : "", quote, id, quote);
        }
}

/* Prepares a workload, and undoes what it prepared. Each method may be repeated, also by another process of this plugin:
 * what must be known then is in the managed state. */
static void hook(Call *call) {
    Value request, method, allocation, kept, state, version, options, mode;
    bool is_held[MAX_DEVICES];
    char ids[1024];
    item_at(&call->arguments, 0, &request);
    value_of(&request, "method", &method);
    value_of(&request, "device_alloc", &allocation);
    value_of(&request, "state", &kept);
    if (!item_at(&kept, 0, &state) || state.kind != BYTES || !item_at(&kept, 1, &version) || version.kind != INT) {
        fail(call, "invalid-api-params", "a hook without its state");
        return;
    }
    call->state_version = version.integer;
    snprintf(call->state, sizeof call->state, "%.*s", (int)state.length, (const char *)state.data);
    int count = allocated(&allocation, is_held);
    if (is_text(&method, "pre_create")) { /* VENDOR: reset the devices, and name their nodes in "devices" */
        value_of(&request, "options", &options);
        bool has_mode = value_of(&options, "mode", &mode);
        put_map(&call->result, count ? 1 : 0);
        if (count == 0)
            return;
        put_text(&call->result, "env_vars"), put_map(&call->result, has_mode ? 2 : 1);
        join(ids, sizeof ids, is_held, "");
        put_pair(&call->result, "ACME_VISIBLE_DEVICES", ids);
        if (has_mode)
            put_pair(&call->result, "ACME_MODE", is_text(&mode, "fast") ? "fast" : "exact");
        join(ids, sizeof ids, is_held, "\"");
        snprintf(call->state, sizeof call->state, "{\"devices\": [%s]}", ids);
        return;
    }
    if (is_text(&method, "post_terminate")) /* VENDOR: give back what pre_create took */
        snprintf(call->state, sizeof call->state, "{}");
    put_nil(&call->result);
}

static void answer(Call *call, const Value *method) {
    Buffer *out = &call->result;
    if (is_text(method, "load")) {
        load(call);
    } else if (is_text(method, "make")) {
        make(call);
    } else if (!is_made) {
        fail(call, "plugin-error", "the plugin has no settings yet");
    } else if (is_text(method, "init")) { /* VENDOR: open the library; after an error the agent tries again */
        put_map(out, 1), put_text(out, "spec"), put_map(out, 1), put_pair(out, "kind", "discrete");
    } else if (is_text(method, "cleanup")) {
        put_nil(out);
    } else if (is_text(method, "list_devices")) {
        list_devices(out);
    } else if (is_text(method, "configurable_slots")) {
        configurable_slots(out);
    } else if (is_text(method, "available_slots")) {
        available_slots(out);
    } else if (is_text(method, "variant_namespaces")) {
        put_array(out, 0);
    } else if (is_text(method, "alloc_to_devices")) {
        attached_devices(call);
    } else if (is_text(method, "gather_node_metrics")) {
        node_metrics(out);
    } else if (is_text(method, "gather_workload_metrics")) {
        workload_metrics(call);
    } else if (is_text(method, "gather_process_metrics")) {
        put_map(out, 0);
    } else if (is_text(method, "get_node_info")) {
        put_map(out, 2), put_pair(out, "driver_version", "1.0"), put_pair(out, "runtime_version", "1.0");
    } else if (is_text(method, "hook")) {
        hook(call);
    } else {
        fail(call, "not-supported", "this plugin has no such method");
    }
}

static bool transfer(bool is_reading, void *data, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t part = is_reading ? read(CALLS, (char *)data + done, length - done)
                                  : write(CALLS, (const char *)data + done, length - done);
        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)
            return false; /* the agent is gone */
        done += (size_t)part;
    }
    return true;
}

static bool send_frame(const Buffer *body) {
    uint32_t head = htonl((uint32_t)body->length);
    return transfer(false, &head, sizeof head) && transfer(false, body->data, body->length);
}

static void put_state(Buffer *out, const Call *call) {
    if (call->state[0] == '\0') {
        put_nil(out);
        return;
    }
    put_array(out, 2), put_bytes(out, call->state, strlen(call->state)), put_int(out, call->state_version);
}

/* Answers one frame of the agent. Frames of a kind that this program does not know are left out. */
static bool serve(const unsigned char *data, size_t length) {
    Value frame, kind, id, method, packed;
    if (!read_value(data, data + length, &frame) || !item_at(&frame, 1, &id) || id.kind != INT)
        return false;
    item_at(&frame, 0, &kind);
    if (!is_text(&kind, "Call"))
        return true;
    item_at(&frame, 2, &method);
    Call call = {0};
    if (!item_at(&frame, 3, &packed) || packed.kind != BYTES ||
        !read_value(packed.data, packed.data + packed.length, &call.arguments))
        return false;
    answer(&call, &method);
    Buffer out = {0};
    if (call.code == NULL) {
        put_array(&out, 4), put_text(&out, "Answer"), put_int(&out, id.integer);
        put_bytes(&out, call.result.data, call.result.length);
    } else {
        put_array(&out, 8), put_text(&out, "Failure"), put_int(&out, id.integer);
        put_text(&out, "backend"), put_text(&out, call.code), put_text(&out, call.message);
        put_bytes(&out, "\x80", 1), put_text(&out, "");
    }
    put_state(&out, &call);
    bool is_sent = send_frame(&out);
    free(out.data);
    free(call.result.data);
    return is_sent;
}

int main(void) {
    if (getenv("BACKENDAI_PLUGIN_PROTOCOL") == NULL) {
        fputs("this is an accelerator plugin of Backend.AI: an agent starts it, or `backend.ai accelerator check --program`\n",
              stderr);
        return 2;
    }
    uint32_t head;
    while (transfer(true, &head, sizeof head)) {
        size_t length = ntohl(head);
        unsigned char *data = length <= MAX_FRAME ? malloc(length + 1) : NULL;
        if (data == NULL || !transfer(true, data, length) || !serve(data, length)) {
            fputs("the agent sent what is no frame, or is gone\n", stderr);
            return 2;
        }
        free(data);
    }
    return 0;
}
