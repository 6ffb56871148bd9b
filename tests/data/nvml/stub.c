/* A libnvidia-ml.so.1 for tests of the binding: two GPUs, the second in MIG mode and cut at will. It answers in the layouts
 * of NVML's header (API reference of release 550); what is missing here is missing as in an older driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int uint;
typedef unsigned long long ull;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10, LOST = 15, IN_USE = 19, FULL = 23 };

typedef struct { int index; } Device;                              /* 0, 1: GPUs; 10 + i: the MIG device in slot i */
typedef struct { int used, cut; } Slot;                            /* a GPU instance, and its compute instance */
typedef struct { char legacy[16]; uint domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { ull total, free, used; } Memory;
typedef struct { uint counts[6], gpu_slices, compute_slices; ull mib; } Attributes;
typedef struct { uint version, id, p2p, slices, instances, processors, engines[5]; ull mib; char name[96]; } Profile;
typedef struct { uint version, id, slices, instances, processors, engines[5]; char name[96]; } Part;
typedef struct { uint pid; ull used; uint gi, ci; } Process;
typedef struct { uint pid; ull at; uint sm, mem, enc, dec; } Sample;
typedef struct { Device *device; ull type, data; uint gi, ci; } Event;

static Device devices[] = {{0}, {1}, {10}, {11}};
static Slot slots[2] = {{1, 1}, {0, 0}};
static int events;

int nvmlInitWithFlags(uint flags) { const char *code = getenv("STUB_INIT"); return code ? atoi(code) : OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return "stub"; }
int nvmlSystemGetDriverVersion(char *to, uint size) { return snprintf(to, size, "550.54.15"), OK; }
int nvmlSystemGetCudaDriverVersion(int *to) { return *to = 12040, OK; }
int nvmlDeviceGetCount_v2(uint *to) { return *to = 2, OK; }
int nvmlDeviceGetHandleByIndex_v2(uint index, Device **to) {
    if (getenv("STUB_LOST") && index == 0) return LOST;
    return index < 2 ? (*to = &devices[index], OK) : INVALID;
}
int nvmlDeviceGetUUID(Device *d, char *to, uint size) {
    snprintf(to, size, "%s-0000%04d-0000-4000-8000-000000000000", d->index < 10 ? "GPU" : "MIG", d->index);
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device **to) {
    char own[96];
    for (int i = 0; i < 4; i++)
        if (nvmlDeviceGetUUID(&devices[i], own, sizeof own), !strcmp(own, uuid)) return *to = &devices[i], OK;
    return NOT_FOUND;
}
int nvmlDeviceGetName(Device *d, char *to, uint size) {
    return snprintf(to, size, d->index < 10 ? "NVIDIA A100-SXM4-40GB" : "NVIDIA A100-SXM4-40GB MIG 3g.20gb"), OK;
}
int nvmlDeviceGetPciInfo_v3(Device *d, Pci *to) {
    memset(to, 0, sizeof *to);
    to->bus = 7 + d->index;
    snprintf(to->bus_id, sizeof to->bus_id, "00000000:%02X:00.0", to->bus);
    return OK;
}
int nvmlDeviceGetMemoryInfo(Device *d, Memory *to) {
    ull mib = 1 << 20;
    *to = d->index < 10 ? (Memory){40960 * mib, 40000 * mib, 960 * mib} : (Memory){19968 * mib, 19960 * mib, 8 * mib};
    return OK;
}
int nvmlDeviceGetMinorNumber(Device *d, uint *to) { return *to = d->index, OK; }
int nvmlDeviceGetCudaComputeCapability(Device *d, int *major, int *minor) { return *major = 8, *minor = 0, OK; }
int nvmlDeviceGetNumGpuCores(Device *d, uint *to) { return *to = 6912, OK; }
int nvmlDeviceGetMigMode(Device *d, uint *now, uint *next) { return *now = *next = d->index == 1, OK; }
int nvmlDeviceGetMaxMigDeviceCount(Device *d, uint *to) { return *to = d->index == 1 ? 2 : 0, OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, uint place, Device **to) {
    return d->index == 1 && place < 2 && slots[place].cut ? (*to = &devices[2 + place], OK) : NOT_FOUND;
}
int nvmlDeviceGetAttributes_v2(Device *d, Attributes *to) {
    *to = (Attributes){.counts = {42}, .gpu_slices = 3, .compute_slices = 3, .mib = 19968};
    return d->index < 10 ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetGpuInstanceId(Device *d, uint *to) { return *to = d->index - 10, d->index < 10 ? NOT_SUPPORTED : OK; }
int nvmlDeviceGetComputeInstanceId(Device *d, uint *to) { return *to = 0, OK; }
int nvmlDeviceGetGpuInstanceProfileInfoV(Device *d, uint profile, Profile *to) {
    if (profile != 2) return NOT_SUPPORTED;
    *to = (Profile){.version = to->version, .id = 9, .slices = 3, .instances = 2, .processors = 42, .mib = 19968};
    return strcpy(to->name, "MIG 3g.20gb"), OK;
}
int nvmlDeviceGetGpuInstanceRemainingCapacity(Device *d, uint id, uint *to) {
    return *to = !slots[0].used + !slots[1].used, OK;
}
int nvmlDeviceCreateGpuInstance(Device *d, uint id, Slot **to) {
    for (int i = 0; i < 2; i++)
        if (!slots[i].used) return slots[i].used = 1, *to = &slots[i], OK;
    return FULL;
}
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(Slot *s, uint profile, uint engine, Part *to) {
    if (profile > 2) return NOT_SUPPORTED;
    return *to = (Part){.version = to->version, .id = profile, .slices = profile + 1, .instances = 1}, OK;
}
int nvmlGpuInstanceCreateComputeInstance(Slot *s, uint id, Slot **to) {
    if (getenv("STUB_NO_PART") || id != 2) return FULL;
    return s->cut = 1, *to = s, OK;
}
int nvmlDeviceGetGpuInstanceById(Device *d, uint id, Slot **to) {
    return id < 2 && slots[id].used ? (*to = &slots[id], OK) : NOT_FOUND;
}
int nvmlGpuInstanceGetComputeInstanceById(Slot *s, uint id, Slot **to) {
    return id == 0 && s->cut ? (*to = s, OK) : NOT_FOUND;
}
int nvmlComputeInstanceDestroy(Slot *s) { return s->cut = 0, OK; }
int nvmlGpuInstanceDestroy(Slot *s) { return s->cut || getenv("STUB_NEIGHBOUR") ? IN_USE : (s->used = 0, OK); }
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, uint *count, Process *to) {
    if (d->index != 0) return *count = 0, OK;
    if (*count < 1) return *count = 1, SMALL;
    return *count = 1, *to = (Process){4242, 512ull << 20, ~0u, ~0u}, OK;
}
int nvmlDeviceGetProcessUtilization(Device *d, Sample *to, uint *count, ull since) {
    if (d->index != 0) return NOT_FOUND;
    if (!to) return *count = 1, SMALL;
    return *to = (Sample){4242, since + 1, 25, 5, 0, 0}, OK;
}
int nvmlEventSetCreate(int **to) { return *to = &events, OK; }
int nvmlDeviceGetSupportedEventTypes(Device *d, ull *to) { return *to = 0x1b, d->index == 1 ? NOT_SUPPORTED : OK; }
int nvmlDeviceRegisterEvents(Device *d, ull types, int *set) { return types == 0xa ? (*set += 1, OK) : INVALID; }
int nvmlEventSetWait_v2(int *set, Event *to, uint timeout) {
    char path[4096];
    int xid = 0;
    snprintf(path, sizeof path, "%s/xid", getenv("LD_LIBRARY_PATH"));
    for (uint waited = 0; *set; usleep(10000), waited += 10) { /* a test writes an Xid into this file */
        FILE *file = fopen(path, "r");
        if (file) {
            xid = fscanf(file, "%d", &xid) == 1 ? xid : 0;
            fclose(file);
        }
        if (xid) return remove(path), *to = (Event){&devices[0], 0x8, xid, ~0u, ~0u}, OK;
        if (waited >= timeout) return TIMEOUT;
    }
    return TIMEOUT;
}
int nvmlEventSetFree(int *set) { return *set = 0, OK; }
