// A stand-in for the driver's library, `libcuda.so.1`: the functions that src/cuda.rs calls, on the processor. Two GPUs, in another
// order than on the bus, and those that CUDA_VISIBLE_DEVICES names. Work is done as late as can be: when somebody waits for it, and
// no more than that. So pinned memory that is written again too early, or read too early, gives wrong numbers here, as it may there.
// Where the folders `gpu-0` and `gpu-1` are beside the library, what this process holds is written there, and what others hold is
// read: for the stand-in of NVML (crates/engine-testkit/stand-ins/nvml.c). While such a folder has a file `broken`, launches fail.

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#define DRIVER extern "C" __attribute__((visibility("default"))) int

extern "C" size_t emulation_argument_bytes(const char *kernel);
extern "C" bool emulation_launch(const char *kernel, const unsigned *grid, unsigned threads, const void *arguments,
                                 uint64_t schedule, char *error, size_t error_bytes);

namespace {

enum Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALID = 901,
};

const int GPUS = 2;
// Of each GPU, in the driver's order: its number by its place on the bus, that place, what it has for programs.
const int NUMBERS[GPUS] = {1, 0};
const int BUSES[GPUS] = {0x41, 0x02};
const size_t MEMORY_BYTES[GPUS] = {size_t(8) << 30, size_t(4) << 30};
// What a context takes, and an allocation is a multiple of.
const size_t CONTEXT_BYTES = size_t(300) << 20;
const size_t PAGE_BYTES = size_t(2) << 20;
const uint64_t SCHEDULE = 7;

struct Launch {
    std::string kernel;
    unsigned grid[3], threads;
    std::vector<uint64_t> arguments;
};

struct Graph {
    std::vector<Launch> launches;
};

struct Gpu {
    int users = 0;
    size_t used = 0;
    std::map<uint64_t, size_t> allocations;
};

struct Stream {
    int gpu;
    std::deque<std::function<Result()>> work;
    // What went wrong stays wrong.
    Result failed = SUCCESS;
    Graph *captured = nullptr;

    // Works until this holds, or nothing is left.
    Result work_until(const std::function<bool()> &is_enough) {
        while (failed == SUCCESS && !is_enough() && !work.empty()) {
            const auto next = work.front();
            work.pop_front();
            failed = next();
        }
        return failed;
    }

    Result work_all() {
        return work_until([] { return false; });
    }
};

struct Event {
    Stream *stream = nullptr;
    // Records that were asked for, and those that were come to.
    unsigned asked = 0, done = 0;
};

std::mutex lock;
bool is_initialized = false;
Gpu gpus[GPUS];
// By the numbers that programs see.
std::vector<int> visible;
thread_local int current = -1;

typedef std::lock_guard<std::mutex> Guard;

// All of them, or those whose numbers are named, up to the first that is none.
std::vector<int> visible_gpus() {
    const char *named = getenv("CUDA_VISIBLE_DEVICES");
    if (named == nullptr) {
        return {0, 1};
    }
    std::vector<int> found;
    for (const char *at = named; *at >= '0' && *at < '0' + GPUS; at++) {
        found.push_back(*at++ - '0');
        if (*at != ',') {
            break;
        }
    }
    return found;
}

size_t pages(size_t bytes) {
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

// Of a GPU's figures. Nothing where nobody wants them.
std::string folder_of(int gpu) {
    Dl_info library;
    if (dladdr(gpus, &library) == 0) {
        return {};
    }
    const std::string path = library.dli_fname;
    return path.substr(0, path.rfind('/')) + "/gpu-" + std::to_string(NUMBERS[gpu]);
}

// To be called when it has changed.
void tell(int gpu) {
    const std::string file = folder_of(gpu) + "/" + std::to_string(getpid()), beside = file + ".new";
    {
        std::ofstream out(beside);
        out << gpus[gpu].used;
        if (!out) {
            return;
        }
    }
    rename(beside.c_str(), file.c_str());
}

size_t used_by_others(int gpu) {
    const std::string folder = folder_of(gpu);
    DIR *files = opendir(folder.c_str());
    size_t used = 0;
    for (dirent *entry; files && (entry = readdir(files));) {
        const std::string name = entry->d_name;
        const bool is_process = name.find_first_not_of("0123456789") == std::string::npos;
        if (!is_process || name == std::to_string(getpid()) || access(("/proc/" + name).c_str(), F_OK) != 0) {
            continue;
        }
        size_t bytes = 0;
        std::ifstream(folder + "/" + name) >> bytes;
        used += bytes;
    }
    if (files) {
        closedir(files);
    }
    return used;
}

size_t free_bytes(int gpu) {
    const size_t used = gpus[gpu].used + used_by_others(gpu);
    return used < MEMORY_BYTES[gpu] ? MEMORY_BYTES[gpu] - used : 0;
}

bool holds(int gpu, uint64_t address, size_t bytes) {
    auto found = gpus[gpu].allocations.upper_bound(address);
    if (found == gpus[gpu].allocations.begin()) {
        return false;
    }
    --found;
    return address + bytes <= found->first + found->second;
}

Result run(int gpu, const Launch &launch) {
    if (access((folder_of(gpu) + "/broken").c_str(), F_OK) == 0) {
        return ILLEGAL_ADDRESS;
    }
    char error[512];
    if (emulation_launch(launch.kernel.c_str(), launch.grid, launch.threads, launch.arguments.data(), SCHEDULE, error,
                         sizeof error)) {
        return SUCCESS;
    }
    fprintf(stderr, "%s: %s\n", launch.kernel.c_str(), error);
    return ILLEGAL_ADDRESS;
}

}  // namespace

DRIVER cuInit(unsigned) {
    const Guard guard(lock);
    if (!is_initialized) {
        visible = visible_gpus();
    }
    is_initialized = !visible.empty();
    return is_initialized ? SUCCESS : NO_DEVICE;
}

DRIVER cuDeviceGetCount(int *count) {
    *count = static_cast<int>(visible.size());
    return is_initialized ? SUCCESS : NOT_INITIALIZED;
}

DRIVER cuDeviceGet(int *device, int ordinal) {
    if (ordinal < 0 || ordinal >= static_cast<int>(visible.size())) {
        return INVALID_DEVICE;
    }
    *device = visible[ordinal];
    return SUCCESS;
}

DRIVER cuDeviceGetName(char *name, int length, int device) {
    snprintf(name, length, "Stand-in %d", NUMBERS[device]);
    return SUCCESS;
}

DRIVER cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = MEMORY_BYTES[device];
    return SUCCESS;
}

DRIVER cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
        case 16: *value = 4 + device; return SUCCESS;                // processors
        case 33: *value = BUSES[device]; return SUCCESS;              // bus
        case 34: *value = 0; return SUCCESS;                          // device on it
        case 50: *value = 0; return SUCCESS;                          // domain
        case 75: *value = 9; return SUCCESS;                          // capability
        case 76: *value = 0; return SUCCESS;
        default: return INVALID_VALUE;
    }
}

DRIVER cuDevicePrimaryCtxRetain(void **context, int device) {
    const Guard guard(lock);
    if (gpus[device].users == 0) {
        if (CONTEXT_BYTES > free_bytes(device)) {
            return OUT_OF_MEMORY;
        }
        gpus[device].used += CONTEXT_BYTES;
        tell(device);
    }
    gpus[device].users++;
    *context = &gpus[device];
    return SUCCESS;
}

DRIVER cuDevicePrimaryCtxRelease_v2(int device) {
    const Guard guard(lock);
    if (gpus[device].users == 0) {
        return INVALID_CONTEXT;
    }
    if (--gpus[device].users == 0) {
        gpus[device].used -= CONTEXT_BYTES;
        tell(device);
    }
    return SUCCESS;
}

DRIVER cuCtxSetCurrent(void *context) {
    current = static_cast<int>(static_cast<Gpu *>(context) - gpus);
    return current >= 0 && current < GPUS && gpus[current].users > 0 ? SUCCESS : INVALID_CONTEXT;
}

DRIVER cuMemGetInfo_v2(size_t *free, size_t *total) {
    if (current < 0) {
        return INVALID_CONTEXT;
    }
    const Guard guard(lock);
    *total = MEMORY_BYTES[current];
    *free = free_bytes(current);
    return SUCCESS;
}

DRIVER cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    if (current < 0) {
        return INVALID_CONTEXT;
    }
    const Guard guard(lock);
    Gpu &gpu = gpus[current];
    if (bytes == 0 || pages(bytes) > free_bytes(current)) {
        return bytes == 0 ? INVALID_VALUE : OUT_OF_MEMORY;
    }
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(memory, 0xff, bytes);
    *address = reinterpret_cast<uint64_t>(memory);
    gpu.allocations[*address] = bytes;
    gpu.used += pages(bytes);
    tell(current);
    return SUCCESS;
}

DRIVER cuMemFree_v2(uint64_t address) {
    const Guard guard(lock);
    for (Gpu &gpu : gpus) {
        const auto found = gpu.allocations.find(address);
        if (found != gpu.allocations.end()) {
            gpu.used -= pages(found->second);
            gpu.allocations.erase(found);
            tell(static_cast<int>(&gpu - gpus));
            free(reinterpret_cast<void *>(address));
            return SUCCESS;
        }
    }
    return INVALID_VALUE;
}

DRIVER cuMemHostAlloc(void **memory, size_t bytes, unsigned) {
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return current < 0 ? INVALID_CONTEXT : SUCCESS;
}

DRIVER cuMemFreeHost(void *memory) {
    free(memory);
    return SUCCESS;
}

DRIVER cuStreamCreate(Stream **stream, unsigned) {
    *stream = new Stream{current, {}};
    return current < 0 ? INVALID_CONTEXT : SUCCESS;
}

DRIVER cuStreamDestroy_v2(Stream *stream) {
    delete stream;
    return SUCCESS;
}

DRIVER cuStreamSynchronize(Stream *stream) {
    return stream->captured ? CAPTURE_UNSUPPORTED : stream->work_all();
}

DRIVER cuEventCreate(Event **event, unsigned) {
    *event = new Event();
    return SUCCESS;
}

DRIVER cuEventDestroy_v2(Event *event) {
    delete event;
    return SUCCESS;
}

DRIVER cuEventRecord(Event *event, Stream *stream) {
    if (stream->captured) {
        return CAPTURE_UNSUPPORTED;
    }
    event->stream = stream;
    const unsigned number = ++event->asked;
    stream->work.push_back([=] {
        event->done = number;
        return SUCCESS;
    });
    return stream->failed;
}

DRIVER cuEventSynchronize(Event *event) {
    if (event->stream == nullptr) {
        return SUCCESS;
    }
    return event->stream->work_until([=] { return event->done == event->asked; });
}

DRIVER cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, Stream *stream) {
    if (stream->captured || !holds(stream->gpu, to, bytes)) {
        return stream->captured ? CAPTURE_UNSUPPORTED : INVALID_VALUE;
    }
    stream->work.push_back([=] {
        memcpy(reinterpret_cast<void *>(to), from, bytes);
        return SUCCESS;
    });
    return stream->failed;
}

DRIVER cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, Stream *stream) {
    if (stream->captured || !holds(stream->gpu, from, bytes)) {
        return stream->captured ? CAPTURE_UNSUPPORTED : INVALID_VALUE;
    }
    stream->work.push_back([=] {
        memcpy(to, reinterpret_cast<const void *>(from), bytes);
        return SUCCESS;
    });
    return stream->failed;
}

// Does not wait for streams that do not block.
DRIVER cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    if (current < 0 || !holds(current, from, bytes)) {
        return current < 0 ? INVALID_CONTEXT : INVALID_VALUE;
    }
    memcpy(to, reinterpret_cast<const void *>(from), bytes);
    return SUCCESS;
}

DRIVER cuModuleLoadData(void **module, const void *image) {
    *module = const_cast<void *>(image);
    return current < 0 ? INVALID_CONTEXT : SUCCESS;
}

DRIVER cuModuleUnload(void *) { return SUCCESS; }

// Names are kept for as long as the process.
DRIVER cuModuleGetFunction(const std::string **function, void *, const char *name) {
    if (emulation_argument_bytes(name) == 0) {
        return NOT_FOUND;
    }
    *function = new std::string(name);
    return SUCCESS;
}

DRIVER cuLaunchKernel(const std::string *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                      unsigned threads_z, unsigned shared, Stream *stream, void **parameters, void **extra) {
    if (threads_y != 1 || threads_z != 1 || shared != 0 || extra != nullptr || stream->gpu != current) {
        return INVALID_VALUE;
    }
    Launch launch{*function, {x, y, z}, threads_x, {}};
    launch.arguments.resize((emulation_argument_bytes(function->c_str()) + 7) / 8);
    memcpy(launch.arguments.data(), parameters[0], emulation_argument_bytes(function->c_str()));
    if (stream->captured) {
        stream->captured->launches.push_back(launch);
    } else {
        stream->work.push_back([=] { return run(stream->gpu, launch); });
    }
    return stream->failed;
}

DRIVER cuStreamBeginCapture_v2(Stream *stream, int) {
    if (stream->captured) {
        return CAPTURE_INVALID;
    }
    stream->captured = new Graph();
    return SUCCESS;
}

DRIVER cuStreamEndCapture(Stream *stream, Graph **graph) {
    *graph = stream->captured;
    stream->captured = nullptr;
    return *graph ? SUCCESS : CAPTURE_INVALID;
}

DRIVER cuGraphInstantiateWithFlags(Graph **instance, const Graph *graph, unsigned long long) {
    *instance = new Graph(*graph);
    return SUCCESS;
}

DRIVER cuGraphDestroy(Graph *graph) {
    delete graph;
    return SUCCESS;
}

DRIVER cuGraphExecDestroy(Graph *instance) {
    delete instance;
    return SUCCESS;
}

DRIVER cuGraphLaunch(const Graph *instance, Stream *stream) {
    for (const Launch &launch : instance->launches) {
        stream->work.push_back([=] { return run(stream->gpu, launch); });
    }
    return stream->failed;
}

DRIVER cuGetErrorName(int, const char **name) {
    *name = "STAND_IN";
    return SUCCESS;
}

DRIVER cuGetErrorString(int, const char **text) {
    *text = "as the stand-in has it";
    return SUCCESS;
}
