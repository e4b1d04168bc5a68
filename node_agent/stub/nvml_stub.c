/*
 * A stand-in for libnvidia-ml.so.1: GPUs described by a text file instead of hardware.
 *
 * The file is named by TANDEM_NVML_STUB_STATE, is replaced by rename, and is read again whenever
 * its identity, size or modification time changes. One item a line, `key=value` words after the
 * first; stub.py writes it. Loads are square waves, so a course of hours needs one line and every
 * value is a pure function of the clock (`clock us=N` freezes it, else it is the real one).
 *
 *   driver version=580.65.06
 *   clock us=1700000000000000
 *   gpu uuid=GPU-... memory=N reserved=N minor=0 mig=0 mode=0 temperature=40 power_mw=70000
 *       gpm=0.8 pending=0 failure=0 ecc=0 window_us=166667 unlisted=N numa_node=1 nvlinks=12
 *       name=NVIDIA A100
 *   nvlink gpu=0 link=3 to=gpu|switch|npu peer=1
 *   slice gpu=0 uuid=MIG-... gi=7 ci=0 memory=N reserved=N compute=1 of=1 sms=14 name=NVIDIA A100 MIG 1g.10gb
 *   process gpu=0 pid=42 kind=compute|graphics|mps memory=N|none extra=N period_us=N high_us=N
 *       phase_us=N sm=60 mem=20 sm_period_us=N sm_high_us=N sm_phase_us=N instance=1
 *   error call=nvmlDeviceGetName|* gpu=0|-1 code=15 when=any|size|fill
 *   garble call=nvmlDeviceGetName gpu=0|-1 out=name offset=0 hex=ff00 when=any|size|fill
 *   xid gpu=0 code=79 seq=1
 *
 * A word that is left out means "this board does not support it" where NVML has such a notion.
 * `when` tells the call that asks for a size from the one that fills the rows. `unlisted` is memory
 * in use that no process of the lists holds. A board has `nvlinks` links, of which those with a line
 * are active: to the GPU of index `peer`, or to a switch or NPU of that number. A `slice` is a MIG device of a board with mig=1: GPU
 * instance `gi` has `of` compute slices, and its compute instance `ci` has `compute` of them; a
 * process is on it by `instance`. `garble` writes bytes over the argument `out` of a call
 * that succeeds, at `offset`: what a driver answers that cannot be.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25
};
enum { MAX_GPUS = 64, MAX_SLICES = 64, MOST_SLICES = 7, MAX_PROCESSES = 512, MAX_ERRORS = 256, MAX_XIDS = 64, MAX_LINKS = 2304, RING = 120 };
/* What an H100 answers: types of samples, numbers of GPM's metrics, and types of events. */
enum { MOST_SAMPLE_TYPES = 9, MOST_METRICS = 477 };
#define EVENT_TYPES 65439ull
enum { MAX_GARBLES = 16, LONGEST_NAME = 4200, MOST_BYTES = 512 };
enum when { ANY, SIZE, FILL };
enum kind { COMPUTE, GRAPHICS, MPS };
enum peer { TO_GPU, TO_NPU, TO_SWITCH }; /* nvmlIntNvLinkDeviceType_t */

typedef unsigned long long u64;

struct memory { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };
struct process_info { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; };
struct process_sample { unsigned pid; u64 time_us; unsigned sm, memory, encoder, decoder; };
struct process_info_v1 {
    u64 time_us; unsigned pid, sm, memory, encoder, decoder, jpeg, ofa;
};
struct processes_info { unsigned version, count; u64 last_seen_us; struct process_info_v1 *rows; };
union value { double d; unsigned ui; u64 ull; };
struct sample { u64 time_us; union value value; };
struct pci_info {
    char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32];
};
struct accounting {
    unsigned gpu, memory; u64 max_memory, time_ms, start_us; unsigned running, reserved[5];
};
struct temperature { unsigned version, sensor; int celsius; };
struct event { void *device; u64 type, data; unsigned gpu_instance, compute_instance; };
struct gpm_support { unsigned version, supported; };
struct gpm_metric { unsigned id; int result; double value; const char *texts[3]; };
struct gpm_get { unsigned version, count; struct gpm_sample *first, *second; struct gpm_metric rows[]; };
struct gpm_sample { int gpu; unsigned instance; u64 time_us; };
struct attributes {
    unsigned sms, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices; u64 memory_mib;
};

/* What nvml.h lays down; stub tests compare the same sizes with the binding's. */
_Static_assert(sizeof(struct memory_v2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(struct process_info) == 24, "nvmlProcessInfo_t");
_Static_assert(sizeof(struct process_sample) == 32, "nvmlProcessUtilizationSample_t");
_Static_assert(sizeof(struct process_info_v1) == 40, "nvmlProcessUtilizationInfo_v1_t");
_Static_assert(sizeof(struct sample) == 16, "nvmlSample_t");
_Static_assert(sizeof(struct accounting) == 56, "nvmlAccountingStats_t");
_Static_assert(sizeof(struct pci_info) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(struct event) == 32, "nvmlEventData_t");
_Static_assert(sizeof(struct attributes) == 40, "nvmlDeviceAttributes_t");
_Static_assert(sizeof(struct gpm_metric) == 40, "nvmlGpmMetric_t");
_Static_assert(offsetof(struct gpm_get, rows) == 24, "nvmlGpmMetricsGet_t");

struct wave { u64 period, high, phase; };
struct process {
    int gpu; unsigned pid; enum kind kind; int has_memory; u64 memory, extra; struct wave peaks;
    int sm, mem; struct wave active;
    unsigned instance;
};
struct gpu {
    char uuid[LONGEST_NAME], name[LONGEST_NAME];
    u64 memory, reserved, window_us, unlisted;
    int minor, mig, mode, temperature, power_mw, pending, failure, ecc, numa_node, nvlinks, unified;
    double gpm;
};
struct slice {
    char uuid[LONGEST_NAME], name[LONGEST_NAME];
    int gpu; unsigned gi, ci, compute, of, sms; u64 memory, reserved;
};
struct error { char call[64]; int gpu, code; enum when when; };
struct garble {
    char call[64], out[32]; int gpu; size_t offset, length; enum when when; unsigned char bytes[MOST_BYTES];
};
struct nvlink { int gpu, link, peer; enum peer to; };
struct xid { int gpu; unsigned code, seq, instance; };
struct event_set { unsigned seen; u64 gpus; };

static struct {
    char driver[80];
    u64 clock_us;
    int gpus, slices, processes, errors, garbles, xids, links;
    struct gpu gpu[MAX_GPUS];
    struct slice slice[MAX_SLICES];
    struct process process[MAX_PROCESSES];
    struct error error[MAX_ERRORS];
    struct garble garble[MAX_GARBLES];
    struct xid xid[MAX_XIDS];
    struct nvlink link[MAX_LINKS];
} state;

static int initialised;
static struct timespec loaded_at;
static ino_t loaded_inode;
static off_t loaded_size = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* A handle is the address of the GPU's slot, so that it outlives a re-read of the file; those of
 * slices come after those of GPUs, and one is used again for another slice, as in the driver. */
static char slots[MAX_GPUS + MAX_SLICES];

/* --- the state file ------------------------------------------------------------------------- */

/* Value of `key=` in a line, up to the next blank; NULL where it is not given. */
static const char *word(const char *line, const char *key, char *out, size_t size) {
    size_t length = strlen(key);
    for (const char *at = line; (at = strstr(at, key)); at += length)
        if (at != line && at[-1] == ' ' && at[length] == '=') {
            at += length + 1;
            size_t n = strcspn(at, " \n");
            if (n >= size) n = size - 1;
            memcpy(out, at, n);
            out[n] = 0;
            return out;
        }
    return NULL;
}

static long long number(const char *line, const char *key, long long otherwise) {
    char text[96];
    return word(line, key, text, sizeof text) ? strtoll(text, NULL, 10) : otherwise;
}

static void read_gpu(const char *line) {
    struct gpu *gpu = &state.gpu[state.gpus++];
    char text[96];
    const char *name = strstr(line, " name=");
    snprintf(gpu->name, sizeof gpu->name, "%.*s", name ? (int)strcspn(name + 6, "\n") : 0,
             name ? name + 6 : "");
    if (!word(line, "uuid", gpu->uuid, sizeof gpu->uuid)) gpu->uuid[0] = 0;
    gpu->unified = !word(line, "memory", text, sizeof text);
    gpu->memory = word(line, "memory", text, sizeof text) ? strtoull(text, NULL, 10) : 0;
    gpu->reserved = number(line, "reserved", 0);
    gpu->window_us = number(line, "window_us", 0);
    gpu->unlisted = number(line, "unlisted", 0);
    gpu->minor = number(line, "minor", state.gpus - 1);
    gpu->mig = number(line, "mig", -1);
    gpu->mode = number(line, "mode", -1);
    gpu->temperature = number(line, "temperature", -1);
    gpu->power_mw = number(line, "power_mw", -1);
    gpu->pending = number(line, "pending", -1);
    gpu->failure = number(line, "failure", -1);
    gpu->ecc = number(line, "ecc", -1);
    gpu->numa_node = number(line, "numa_node", -1);
    gpu->nvlinks = number(line, "nvlinks", 0);
    gpu->gpm = word(line, "gpm", text, sizeof text) ? strtod(text, NULL) : -1;
}

static void read_slice(const char *line) {
    struct slice *slice = &state.slice[state.slices++];
    const char *name = strstr(line, " name=");
    snprintf(slice->name, sizeof slice->name, "%.*s", name ? (int)strcspn(name + 6, "\n") : 0,
             name ? name + 6 : "");
    if (!word(line, "uuid", slice->uuid, sizeof slice->uuid)) slice->uuid[0] = 0;
    slice->gpu = number(line, "gpu", 0);
    slice->gi = number(line, "gi", 0);
    slice->ci = number(line, "ci", 0);
    slice->compute = number(line, "compute", 1);
    slice->of = number(line, "of", slice->compute);
    slice->sms = number(line, "sms", 0);
    slice->memory = number(line, "memory", 0);
    slice->reserved = number(line, "reserved", 0);
}

static void read_link(const char *line) {
    struct nvlink *link = &state.link[state.links++];
    char text[96] = "gpu";
    word(line, "to", text, sizeof text);
    *link = (struct nvlink){number(line, "gpu", 0), number(line, "link", 0), number(line, "peer", 0),
                            !strcmp(text, "switch") ? TO_SWITCH : !strcmp(text, "npu") ? TO_NPU : TO_GPU};
}

static void read_process(const char *line) {
    struct process *p = &state.process[state.processes++];
    char text[96] = "compute";
    word(line, "kind", text, sizeof text);
    p->kind = !strcmp(text, "mps") ? MPS : !strcmp(text, "graphics") ? GRAPHICS : COMPUTE;
    p->gpu = number(line, "gpu", 0);
    p->instance = number(line, "instance", -1);
    p->pid = number(line, "pid", 0);
    p->has_memory = word(line, "memory", text, sizeof text) && strcmp(text, "none") != 0;
    p->memory = p->has_memory ? strtoull(text, NULL, 10) : 0;
    p->extra = number(line, "extra", 0);
    p->peaks = (struct wave){number(line, "period_us", 0), number(line, "high_us", 0),
                             number(line, "phase_us", 0)};
    p->sm = number(line, "sm", 0);
    p->mem = number(line, "mem", 0);
    p->active = (struct wave){number(line, "sm_period_us", 0), number(line, "sm_high_us", 0),
                              number(line, "sm_phase_us", 0)};
}

static void read_error(const char *line) {
    struct error *e = &state.error[state.errors++];
    char text[96] = "any";
    if (!word(line, "call", e->call, sizeof e->call)) e->call[0] = 0;
    e->gpu = number(line, "gpu", -1);
    e->code = number(line, "code", 999);
    word(line, "when", text, sizeof text);
    e->when = !strcmp(text, "size") ? SIZE : !strcmp(text, "fill") ? FILL : ANY;
}

static void read_garble(const char *line) {
    struct garble *g = &state.garble[state.garbles++];
    char text[2 * MOST_BYTES + 1] = "";
    if (!word(line, "call", g->call, sizeof g->call)) g->call[0] = 0;
    if (!word(line, "out", g->out, sizeof g->out)) g->out[0] = 0;
    g->gpu = number(line, "gpu", -1);
    g->offset = number(line, "offset", 0);
    word(line, "hex", text, sizeof text);
    for (g->length = 0; g->length < MOST_BYTES && text[2 * g->length]; g->length++) {
        unsigned byte;
        if (sscanf(text + 2 * g->length, "%2x", &byte) != 1) break;
        g->bytes[g->length] = byte;
    }
    strcpy(text, "any");
    word(line, "when", text, sizeof text);
    g->when = !strcmp(text, "size") ? SIZE : !strcmp(text, "fill") ? FILL : ANY;
}

static void refresh(void) {
    struct stat info;
    static char line[4 * LONGEST_NAME];
    const char *path = getenv("TANDEM_NVML_STUB_STATE");
    if (!path || stat(path, &info)) {
        memset(&state, 0, sizeof state);
        loaded_size = -1;
        return;
    }
    if (info.st_ino == loaded_inode && info.st_size == loaded_size &&
        info.st_mtim.tv_sec == loaded_at.tv_sec && info.st_mtim.tv_nsec == loaded_at.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    memset(&state, 0, sizeof state);
    while (fgets(line, sizeof line, file)) {
        if (!strncmp(line, "gpu ", 4) && state.gpus < MAX_GPUS) read_gpu(line);
        else if (!strncmp(line, "slice ", 6) && state.slices < MAX_SLICES) read_slice(line);
        else if (!strncmp(line, "process ", 8) && state.processes < MAX_PROCESSES) read_process(line);
        else if (!strncmp(line, "nvlink ", 7) && state.links < MAX_LINKS) read_link(line);
        else if (!strncmp(line, "error ", 6) && state.errors < MAX_ERRORS) read_error(line);
        else if (!strncmp(line, "garble ", 7) && state.garbles < MAX_GARBLES) read_garble(line);
        else if (!strncmp(line, "xid ", 4) && state.xids < MAX_XIDS)
            state.xid[state.xids++] = (struct xid){number(line, "gpu", 0), number(line, "code", 0),
                                                   number(line, "seq", 0), number(line, "instance", -1)};
        else if (!strncmp(line, "driver ", 7)) word(line, "version", state.driver, sizeof state.driver);
        else if (!strncmp(line, "clock ", 6)) state.clock_us = number(line, "us", 0);
    }
    fclose(file);
    loaded_inode = info.st_ino;
    loaded_size = info.st_size;
    loaded_at = info.st_mtim;
}

/* --- what a call sees ----------------------------------------------------------------------- */

static u64 set_us;

/* Sets the clock from within the process; 0 gives the state file its say again. */
void tandemStubClock(u64 us) {
    pthread_mutex_lock(&lock);
    set_us = us;
    pthread_mutex_unlock(&lock);
}

static u64 now_us(void) {
    struct timespec now;
    if (set_us) return set_us;
    if (state.clock_us) return state.clock_us;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* The injected code for this call, or -1. */
static int injected(const char *call, int gpu, enum when when) {
    for (int i = 0; i < state.errors; i++) {
        const struct error *e = &state.error[i];
        if (strcmp(e->call, "*") && strcmp(e->call, call)) continue;
        if (e->gpu >= 0 && e->gpu != gpu) continue;
        if (e->when != ANY && e->when != when) continue;
        return e->code;
    }
    return -1;
}

/* Write over an argument of a call what the state file has for it. */
static void garble(const char *call, int gpu, const char *out, enum when when, void *at, size_t size) {
    for (int i = 0; i < state.garbles; i++) {
        const struct garble *g = &state.garble[i];
        if (strcmp(g->call, call) || strcmp(g->out, out) || (g->gpu >= 0 && g->gpu != gpu)) continue;
        if ((g->when != ANY && g->when != when) || g->offset >= size) continue;
        size_t length = g->length < size - g->offset ? g->length : size - g->offset;
        memcpy((char *)at + g->offset, g->bytes, length);
    }
}
#define GARBLE(out) garble(__func__, gpu, #out, ANY, out, sizeof *(out))

/* Enter a call on no GPU in particular; the result is -1 where it may go on. */
static int enter(const char *call) {
    pthread_mutex_lock(&lock);
    refresh();
    int code = injected(call, -1, ANY);
    return code >= 0 ? code : initialised ? -1 : UNINITIALIZED;
}

static int leave(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

/* Enter a call on a GPU: `*gpu` is its index. */
static int enter_gpu(const char *call, void *device, int *gpu, enum when when) {
    pthread_mutex_lock(&lock);
    refresh();
    *gpu = (int)((char *)device - slots);
    if (*gpu < 0 || *gpu >= MAX_GPUS + MAX_SLICES) return INVALID_ARGUMENT;
    if (*gpu >= MAX_GPUS) return NOT_SUPPORTED; /* a slice has no such reading of its own */
    int code = injected(call, *gpu, when);
    if (code >= 0) return code;
    if (!initialised) return UNINITIALIZED;
    return *gpu < state.gpus ? -1 : GPU_IS_LOST;
}

/* Enter a call on a GPU or on a slice: `*slice` is NULL, or the slice of the GPU `*gpu`. */
static int enter_any(const char *call, void *device, int *gpu, const struct slice **slice, enum when when) {
    int number = (int)((char *)device - slots) - MAX_GPUS;
    *slice = NULL;
    if (number < 0 || number >= MAX_SLICES) return enter_gpu(call, device, gpu, when);
    pthread_mutex_lock(&lock);
    refresh();
    if (number >= state.slices) return INVALID_ARGUMENT; /* it was destroyed */
    *slice = &state.slice[number];
    *gpu = (*slice)->gpu;
    int code = injected(call, *gpu, when);
    if (code >= 0) return code;
    if (!initialised) return UNINITIALIZED;
    if (*gpu >= state.gpus) return GPU_IS_LOST;
    return state.gpu[*gpu].mig > 0 ? -1 : INVALID_ARGUMENT;
}

#define ENTER int code = enter(__func__); if (code >= 0) return leave(code)
#define ENTER_GPU(when) \
    int gpu, code = enter_gpu(__func__, device, &gpu, when); if (code >= 0) return leave(code)

#define ENTER_ANY(when)        \
    int gpu;                   \
    const struct slice *slice; \
    int code = enter_any(__func__, device, &gpu, &slice, when); if (code >= 0) return leave(code)

/* Share of [from, to] in which the wave is high; no period means always. */
static double high_share(struct wave wave, u64 from, u64 to) {
    if (!wave.period) return 1;
    if (to <= from) return (from + wave.period - wave.phase % wave.period) % wave.period < wave.high;
    u64 offset = wave.period - wave.phase % wave.period;
    double total = 0;
    u64 ends[2] = {from + offset, to + offset};
    for (int i = 0; i < 2; i++) {
        u64 rest = ends[i] % wave.period;
        double high = (double)(ends[i] / wave.period) * wave.high + (rest < wave.high ? rest : wave.high);
        total += i ? high : -high;
    }
    return total / (double)(to - from);
}

static u64 process_memory(const struct process *p, u64 now) {
    u64 peak = p->extra && high_share(p->peaks, now, now) > 0 ? p->extra : 0;
    return p->memory + peak;
}

static u64 used_memory(int gpu, u64 now) {
    u64 used = state.gpu[gpu].unlisted;
    for (int i = 0; i < state.processes; i++)
        if (state.process[i].gpu == gpu) used += process_memory(&state.process[i], now);
    return used;
}

static u64 slice_memory(const struct slice *slice, u64 now) {
    u64 used = 0;
    for (int i = 0; i < state.processes; i++) {
        const struct process *p = &state.process[i];
        if (p->gpu == slice->gpu && p->instance == slice->gi) used += process_memory(p, now);
    }
    return used;
}

/* Mean percent that the processes of one GPU instance use of its SMs in [from, to]. */
static double instance_load(int gpu, unsigned instance, u64 from, u64 to, int memory) {
    double load = 0;
    for (int i = 0; i < state.processes; i++) {
        const struct process *p = &state.process[i];
        if (p->gpu == gpu && p->instance == instance)
            load += (memory ? p->mem : p->sm) * high_share(p->active, from, to);
    }
    return load > 100 ? 100 : load;
}

/* Mean percent of the GPU, or of its memory, that all processes use in [from, to]. */
static double mean_load(int gpu, u64 from, u64 to, int memory) {
    double load = 0;
    for (int i = 0; i < state.processes; i++) {
        const struct process *p = &state.process[i];
        if (p->gpu == gpu) load += (memory ? p->mem : p->sm) * high_share(p->active, from, to);
    }
    return load > 100 ? 100 : load;
}

static u64 window_of(int gpu) {
    return state.gpu[gpu].window_us ? state.gpu[gpu].window_us : 166667;
}

static int copy(char *out, unsigned size, const char *text) {
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

static int present(int value, unsigned *out) {
    if (value < 0) return NOT_SUPPORTED;
    *out = value;
    return SUCCESS;
}

/* --- library -------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    refresh();
    int code = injected(__func__, -1, ANY);
    if (code < 0) code = state.driver[0] ? SUCCESS : DRIVER_NOT_LOADED;
    if (code == SUCCESS) initialised++;
    return leave(code);
}

int nvmlShutdown(void) {
    ENTER;
    initialised--;
    return leave(SUCCESS);
}

const char *nvmlErrorString(int code) {
    return code == GPU_IS_LOST ? "GPU is lost" : "Stub error";
}

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    ENTER;
    return leave(copy(version, size, state.driver));
}

/* --- identity ------------------------------------------------------------------------------- */

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER;
    *count = state.gpus;
    garble(__func__, -1, "count", ANY, count, sizeof *count);
    return leave(SUCCESS);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    pthread_mutex_lock(&lock);
    refresh();
    int code = injected(__func__, (int)index, ANY);
    if (code < 0) code = !initialised ? UNINITIALIZED : index < (unsigned)state.gpus ? SUCCESS : INVALID_ARGUMENT;
    if (code == SUCCESS) *device = &slots[index];
    return leave(code);
}

static int find(const char *call, void **device, const char *text, int by_bus) {
    int code = enter(call);
    if (code >= 0) return leave(code);
    for (int i = 0; i < state.gpus; i++) {
        char bus[32];
        snprintf(bus, sizeof bus, "00000000:%02X:00.0", i + 1);
        if (strcmp(text, by_bus ? bus : state.gpu[i].uuid)) continue;
        code = injected(call, i, ANY);
        if (code >= 0) return leave(code);
        *device = &slots[i];
        return leave(SUCCESS);
    }
    for (int i = 0; i < state.slices && !by_bus; i++)
        if (!strcmp(text, state.slice[i].uuid)) {
            *device = &slots[MAX_GPUS + i];
            return leave(SUCCESS);
        }
    unsigned domain, number, device_number, function;
    int is_bus = sscanf(text, "%x:%x:%x.%x", &domain, &number, &device_number, &function) == 4;
    return leave(by_bus && !is_bus ? INVALID_ARGUMENT : NOT_FOUND);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { return find(__func__, device, uuid, 0); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) { return find(__func__, device, bus, 1); }

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) {
    ENTER_ANY(ANY);
    code = copy(uuid, size, slice ? slice->uuid : state.gpu[gpu].uuid);
    garble(__func__, gpu, "uuid", ANY, uuid, size);
    return leave(code);
}

int nvmlDeviceGetName(void *device, char *name, unsigned size) {
    ENTER_ANY(ANY);
    code = copy(name, size, slice ? slice->name : state.gpu[gpu].name);
    garble(__func__, gpu, "name", ANY, name, size);
    return leave(code);
}

int nvmlDeviceGetIndex(void *device, unsigned *index) {
    ENTER_GPU(ANY);
    *index = gpu;
    return leave(SUCCESS);
}

int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) {
    ENTER_GPU(ANY);
    return leave(present(state.gpu[gpu].minor, minor));
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *info) {
    ENTER_GPU(ANY);
    memset(info, 0, sizeof *info);
    info->bus = gpu + 1;
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", gpu + 1);
    snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", gpu + 1);
    GARBLE(info);
    return leave(SUCCESS);
}

/* --- NVLink --------------------------------------------------------------------------------- */

/* The active link of this number; NULL with `*code` NOT_SUPPORTED of a board without NVLink and of a
 * link that is not active, INVALID_ARGUMENT of a number that the board does not have. */
static const struct nvlink *active_link(int gpu, unsigned number, int *code) {
    int has = state.gpu[gpu].nvlinks;
    *code = !has ? NOT_SUPPORTED : number >= (unsigned)has ? INVALID_ARGUMENT : SUCCESS;
    if (*code != SUCCESS) return NULL;
    for (int i = 0; i < state.links; i++)
        if (state.link[i].gpu == gpu && state.link[i].link == (int)number) return &state.link[i];
    *code = NOT_SUPPORTED;
    return NULL;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned number, unsigned *active) {
    ENTER_GPU(ANY);
    *active = active_link(gpu, number, &code) != NULL;
    if (code == NOT_SUPPORTED && state.gpu[gpu].nvlinks) code = SUCCESS; /* it is there, and off */
    GARBLE(active);
    return leave(code);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned number, unsigned *type) {
    ENTER_GPU(ANY);
    const struct nvlink *link = active_link(gpu, number, &code);
    if (link) *type = link->to;
    GARBLE(type);
    return leave(code);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned number, struct pci_info *info) {
    ENTER_GPU(ANY);
    const struct nvlink *link = active_link(gpu, number, &code);
    if (!link) return leave(code);
    /* GPUs are on buses from 1 on; switches and NPUs are on others. */
    memset(info, 0, sizeof *info);
    info->bus = link->peer + (link->to == TO_GPU ? 1 : link->to == TO_SWITCH ? 0xA0 : 0xC0);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
    snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", info->bus);
    GARBLE(info);
    return leave(code);
}

/* --- slices: MIG devices -------------------------------------------------------------------- */

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
    ENTER_GPU(ANY);
    *count = state.gpu[gpu].mig > 0 ? MOST_SLICES : 0;
    GARBLE(count);
    return leave(SUCCESS);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice) {
    ENTER_GPU(ANY);
    if (state.gpu[gpu].mig < 0) return leave(NOT_SUPPORTED);
    if (state.gpu[gpu].mig > 0 && index >= MOST_SLICES) return leave(INVALID_ARGUMENT);
    unsigned number = 0;
    for (int i = 0; i < state.slices; i++)
        if (state.slice[i].gpu == gpu && number++ == index) {
            *slice = &slots[MAX_GPUS + i];
            return leave(SUCCESS);
        }
    return leave(NOT_FOUND);
}

int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *is) {
    ENTER_ANY(ANY);
    *is = slice != NULL;
    return leave(SUCCESS);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **board) {
    ENTER_ANY(ANY);
    if (!slice) return leave(INVALID_ARGUMENT);
    *board = &slots[gpu];
    return leave(SUCCESS);
}

int nvmlDeviceGetGpuInstanceId(void *device, unsigned *id) {
    ENTER_ANY(ANY);
    if (!slice) return leave(state.gpu[gpu].mig < 0 ? NOT_SUPPORTED : INVALID_ARGUMENT);
    *id = slice->gi;
    return leave(SUCCESS);
}

int nvmlDeviceGetComputeInstanceId(void *device, unsigned *id) {
    ENTER_ANY(ANY);
    if (!slice) return leave(state.gpu[gpu].mig < 0 ? NOT_SUPPORTED : INVALID_ARGUMENT);
    *id = slice->ci;
    return leave(SUCCESS);
}

int nvmlDeviceGetAttributes_v2(void *device, struct attributes *attributes) {
    ENTER_ANY(ANY);
    if (!slice) return leave(NOT_SUPPORTED);
    *attributes = (struct attributes){.sms = slice->sms, .gpu_slices = slice->of,
                                      .compute_slices = slice->compute, .memory_mib = slice->memory >> 20};
    GARBLE(attributes);
    return leave(SUCCESS);
}

/* --- modes and sensors ---------------------------------------------------------------------- */

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    ENTER_GPU(ANY);
    *pending = state.gpu[gpu].mig > 0;
    code = present(state.gpu[gpu].mig, current);
    GARBLE(current);
    GARBLE(pending);
    return leave(code);
}

int nvmlDeviceGetComputeMode(void *device, unsigned *mode) {
    ENTER_GPU(ANY);
    code = present(state.gpu[gpu].mode, mode);
    GARBLE(mode);
    return leave(code);
}

int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius) {
    ENTER_GPU(ANY);
    code = sensor ? INVALID_ARGUMENT : present(state.gpu[gpu].temperature, celsius);
    GARBLE(celsius);
    return leave(code);
}

int nvmlDeviceGetTemperatureV(void *device, struct temperature *reading) {
    ENTER_GPU(ANY);
    if (reading->version != ((unsigned)sizeof *reading | 1u << 24)) return leave(VERSION_MISMATCH);
    unsigned celsius = 0;
    code = present(state.gpu[gpu].temperature, &celsius);
    reading->celsius = (int)celsius;
    GARBLE(reading);
    return leave(code);
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    ENTER_GPU(ANY);
    code = present(state.gpu[gpu].power_mw, milliwatts);
    GARBLE(milliwatts);
    return leave(code);
}

/* Pages are retired on boards that cannot remap rows, which came before. */
int nvmlDeviceGetRetiredPagesPendingStatus(void *device, unsigned *pending) {
    ENTER_GPU(ANY);
    if (state.gpu[gpu].failure >= 0) return leave(NOT_SUPPORTED);
    code = present(state.gpu[gpu].pending, pending);
    GARBLE(pending);
    return leave(code);
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *correctable, unsigned *uncorrectable,
                              unsigned *pending, unsigned *failure) {
    ENTER_GPU(ANY);
    *correctable = *uncorrectable = 0;
    if (present(state.gpu[gpu].pending, pending)) return leave(NOT_SUPPORTED);
    code = present(state.gpu[gpu].failure, failure);
    GARBLE(correctable);
    GARBLE(uncorrectable);
    GARBLE(pending);
    GARBLE(failure);
    return leave(code);
}

int nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter, u64 *count) {
    (void)type, (void)counter;
    ENTER_GPU(ANY);
    unsigned errors = 0;
    code = present(state.gpu[gpu].ecc, &errors);
    *count = errors;
    GARBLE(count);
    return leave(code);
}

/* --- load ----------------------------------------------------------------------------------- */

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    ENTER_ANY(ANY);
    if (slice) {
        u64 used = slice_memory(slice, now_us()) + slice->reserved;
        *memory = (struct memory){slice->memory, slice->memory - used, used};
        return leave(SUCCESS);
    }
    if (state.gpu[gpu].unified) return leave(NOT_SUPPORTED);
    /* The first version counts the reserved part as used. */
    u64 used = used_memory(gpu, now_us()) + state.gpu[gpu].reserved;
    *memory = (struct memory){state.gpu[gpu].memory, state.gpu[gpu].memory - used, used};
    GARBLE(memory);
    return leave(SUCCESS);
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    ENTER_ANY(ANY);
    if (memory->version != (sizeof *memory | 2u << 24)) return leave(VERSION_MISMATCH);
    if (slice) {
        u64 used = slice_memory(slice, now_us());
        *memory = (struct memory_v2){memory->version, slice->memory, slice->reserved,
                                     slice->memory - used - slice->reserved, used};
        return leave(SUCCESS);
    }
    if (state.gpu[gpu].unified) return leave(NOT_SUPPORTED);
    u64 used = used_memory(gpu, now_us()), reserved = state.gpu[gpu].reserved;
    *memory = (struct memory_v2){memory->version, state.gpu[gpu].memory, reserved,
                                 state.gpu[gpu].memory - used - reserved, used};
    GARBLE(memory);
    return leave(SUCCESS);
}

int nvmlDeviceGetNumaNodeId(void *device, int *node) {
    ENTER_GPU(ANY);
    *node = state.gpu[gpu].numa_node;
    GARBLE(node);
    return leave(*node < 0 ? NOT_SUPPORTED : SUCCESS);
}

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *rates) {
    ENTER_GPU(ANY);
    if (state.gpu[gpu].mig > 0) return leave(NOT_SUPPORTED);
    u64 now = now_us(), from = now - window_of(gpu);
    rates->gpu = (unsigned)(mean_load(gpu, from, now, 0) + 0.5);
    rates->memory = (unsigned)(mean_load(gpu, from, now, 1) + 0.5);
    GARBLE(rates);
    return leave(SUCCESS);
}

/* A ring of whole windows; the sizing call answers with the ring's length whatever is in it. */
int nvmlDeviceGetSamples(void *device, unsigned type, u64 last_seen, unsigned *value_type,
                         unsigned *count, struct sample *samples) {
    ENTER_GPU(samples ? FILL : SIZE);
    if (type > MOST_SAMPLE_TYPES) return leave(INVALID_ARGUMENT);
    if ((type != 1 && type != 2) || state.gpu[gpu].mig > 0) return leave(NOT_SUPPORTED);
    *value_type = 1;
    if (!samples) {
        *count = RING;
        garble(__func__, gpu, "count", SIZE, count, sizeof *count);
        return leave(SUCCESS);
    }
    u64 window = window_of(gpu), last = now_us() / window * window, first = last - (RING - 1) * window;
    unsigned rows = 0;
    for (u64 at = first; at <= last && rows < *count; at += window)
        if (at > last_seen) {
            samples[rows].time_us = at;
            samples[rows++].value.ui = (unsigned)(mean_load(gpu, at - window, at, type == 2) + 0.5);
        }
    garble(__func__, gpu, "samples", FILL, samples, *count * sizeof *samples);
    GARBLE(value_type);
    *count = rows;
    garble(__func__, gpu, "count", FILL, count, sizeof *count);
    return leave(rows ? SUCCESS : NOT_FOUND);
}

static int list(const char *call, void *device, unsigned *count, struct process_info *rows, enum kind kind) {
    int gpu;
    const struct slice *slice;
    int code = enter_any(call, device, &gpu, &slice, rows ? FILL : SIZE);
    if (code >= 0) return leave(code);
    unsigned n = 0, room = rows ? *count : 0;
    u64 now = now_us();
    for (int i = 0; i < state.processes; i++) {
        const struct process *p = &state.process[i];
        /* A client of MPS is in both lists (driver 580, H100). */
        int listed = p->kind == kind || (p->kind == MPS && kind == COMPUTE);
        if (p->gpu != gpu || !listed || (slice && p->instance != slice->gi)) continue;
        if (n < room)
            rows[n] = (struct process_info){p->pid, p->has_memory ? process_memory(p, now) : ~0ull,
                                            p->instance, ~0u};
        n++;
    }
    if (rows) garble(call, gpu, "rows", FILL, rows, room * sizeof *rows);
    *count = n;
    garble(call, gpu, "count", rows ? FILL : SIZE, count, sizeof *count);
    return leave(n > room || (!rows && *count) ? INSUFFICIENT_SIZE : SUCCESS);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process_info *rows) {
    return list(__func__, device, count, rows, COMPUTE);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, struct process_info *rows) {
    return list(__func__, device, count, rows, GRAPHICS);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, struct process_info *rows) {
    return list(__func__, device, count, rows, MPS);
}

/*
 * Percent of one process over the last whole window; as in the driver, only what is not idle, and
 * no client of MPS: its work counts for the server (driver 580, H100).
 */
static int busy(int gpu, int i, u64 last_seen, struct process_info_v1 *row) {
    const struct process *p = &state.process[i];
    u64 window = window_of(gpu), at = now_us() / window * window;
    double share = high_share(p->active, at - window, at);
    unsigned sm = (unsigned)(p->sm * share + 0.5), memory = (unsigned)(p->mem * share + 0.5);
    if (p->gpu != gpu || p->kind == MPS || at <= last_seen || (!sm && !memory)) return 0;
    *row = (struct process_info_v1){.time_us = at, .pid = p->pid, .sm = sm, .memory = memory};
    return 1;
}

int nvmlDeviceGetProcessUtilization(void *device, struct process_sample *rows, unsigned *count, u64 last_seen) {
    ENTER_GPU(rows ? FILL : SIZE);
    if (state.gpu[gpu].mig > 0) return leave(NOT_SUPPORTED);
    struct process_info_v1 row;
    unsigned n = 0, room = rows ? *count : 0;
    if (!rows) {
        /* The sizing call answers with the most rows there could be. */
        *count = MAX_PROCESSES;
        garble(__func__, gpu, "count", SIZE, count, sizeof *count);
        return leave(INSUFFICIENT_SIZE);
    }
    for (int i = 0; i < state.processes; i++)
        if (busy(gpu, i, last_seen, &row)) {
            if (n < room)
                rows[n] = (struct process_sample){row.pid, row.time_us, row.sm, row.memory, 0, 0};
            n++;
        }
    garble(__func__, gpu, "rows", FILL, rows, room * sizeof *rows);
    *count = n;
    garble(__func__, gpu, "count", FILL, count, sizeof *count);
    return leave(n > room ? INSUFFICIENT_SIZE : n ? SUCCESS : NOT_FOUND);
}

int nvmlDeviceGetProcessesUtilizationInfo(void *device, struct processes_info *info) {
    ENTER_GPU(info->rows ? FILL : SIZE);
    if (state.gpu[gpu].mig > 0) return leave(NOT_SUPPORTED);
    struct process_info_v1 row;
    unsigned n = 0, room = info->rows ? info->count : 0;
    for (int i = 0; i < state.processes; i++)
        if (busy(gpu, i, info->last_seen_us, &row)) {
            if (n < room) info->rows[n] = row;
            n++;
        }
    info->count = n;
    return leave(n > room ? INSUFFICIENT_SIZE : n ? SUCCESS : NOT_FOUND);
}

int nvmlDeviceGetAccountingMode(void *device, unsigned *mode) {
    ENTER_GPU(ANY);
    *mode = 0;
    return leave(SUCCESS);
}

int nvmlDeviceGetAccountingStats(void *device, unsigned pid, struct accounting *stats) {
    (void)pid, (void)stats;
    ENTER_GPU(ANY);
    return leave(NOT_FOUND);
}

/* --- events: Xids --------------------------------------------------------------------------- */

int nvmlDeviceGetSupportedEventTypes(void *device, u64 *types) {
    ENTER_GPU(ANY);
    *types = EVENT_TYPES;
    return leave(SUCCESS);
}

int nvmlEventSetCreate(void **set) {
    ENTER;
    *set = calloc(1, sizeof(struct event_set));
    return leave(SUCCESS);
}

int nvmlDeviceRegisterEvents(void *device, u64 types, struct event_set *set) {
    ENTER_GPU(ANY);
    if (types & ~EVENT_TYPES) return leave(NOT_SUPPORTED);
    set->gpus |= 1ull << gpu;
    return leave(SUCCESS);
}

int nvmlEventSetWait_v2(struct event_set *set, struct event *event, unsigned timeout_ms) {
    (void)timeout_ms; /* Nothing is waited for: events come from the file, and it is read now. */
    ENTER;
    for (int i = 0; i < state.xids; i++) {
        const struct xid *x = &state.xid[i];
        if (x->seq <= set->seen || !(set->gpus >> x->gpu & 1)) continue;
        set->seen = x->seq;
        *event = (struct event){&slots[x->gpu], 8, x->code, x->instance, ~0u};
        garble(__func__, x->gpu, "event", ANY, event, sizeof *event);
        return leave(SUCCESS);
    }
    return leave(TIMEOUT);
}

int nvmlEventSetFree(struct event_set *set) {
    ENTER;
    free(set);
    return leave(SUCCESS);
}

/* --- GPM ------------------------------------------------------------------------------------ */

int nvmlGpmQueryDeviceSupport(void *device, struct gpm_support *support) {
    ENTER_GPU(ANY);
    support->supported = state.gpu[gpu].gpm >= 0;
    GARBLE(support);
    return leave(SUCCESS);
}

int nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    ENTER;
    *sample = calloc(1, sizeof **sample);
    return leave(SUCCESS);
}

int nvmlGpmSampleFree(struct gpm_sample *sample) {
    ENTER;
    free(sample);
    return leave(SUCCESS);
}

int nvmlGpmSampleGet(void *device, struct gpm_sample *sample) {
    ENTER_GPU(ANY);
    if (state.gpu[gpu].gpm < 0) return leave(NOT_SUPPORTED);
    *sample = (struct gpm_sample){gpu, ~0u, now_us()};
    return leave(SUCCESS);
}

/* The device is the board, not the slice. */
int nvmlGpmMigSampleGet(void *device, unsigned instance, struct gpm_sample *sample) {
    ENTER_GPU(ANY);
    if (state.gpu[gpu].gpm < 0) return leave(NOT_SUPPORTED);
    if (state.gpu[gpu].mig <= 0) return leave(INVALID_ARGUMENT);
    *sample = (struct gpm_sample){gpu, instance, now_us()};
    return leave(SUCCESS);
}

int nvmlGpmMetricsGet(struct gpm_get *get) {
    ENTER;
    int gpu = get->second->gpu;
    unsigned instance = get->second->instance;
    u64 from = get->first->time_us, to = get->second->time_us;
    if (get->version != 1) return leave(VERSION_MISMATCH);
    if (!get->count || gpu != get->first->gpu || to == from) return leave(INVALID_ARGUMENT);
    if (instance != get->first->instance) return leave(INVALID_ARGUMENT);
    for (unsigned i = 0; i < get->count; i++) {
        struct gpm_metric *row = &get->rows[i];
        /* Samples in the wrong order are answered, as if nothing had run. */
        double sm = to < from ? 0 : instance == ~0u ? mean_load(gpu, from, to, 0) : instance_load(gpu, instance, from, to, 0);
        row->result = SUCCESS;
        if (row->id == 1) row->value = sm;
        else if (row->id == 2) row->value = sm * state.gpu[gpu].gpm;
        else if (row->id == 10) row->value = to < from ? 0 : instance == ~0u ? mean_load(gpu, from, to, 1) : instance_load(gpu, instance, from, to, 1);
        else row->result = row->id <= MOST_METRICS ? NOT_SUPPORTED : INVALID_ARGUMENT;
    }
    garble(__func__, gpu, "rows", ANY, get->rows, get->count * sizeof *get->rows);
    return leave(SUCCESS);
}
