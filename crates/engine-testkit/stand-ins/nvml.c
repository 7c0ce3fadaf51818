/*
 * A stand-in for NVIDIA's library of figures, `libnvidia-ml.so.1`: two GPUs. What is in use on the one of number N is in the
 * folder `gpu-N` beside the library: a file for each process, by its id, with the bytes that it holds. A process that has ended
 * holds nothing, whatever its file says. `engines/gpt-oss/cuda/emulation/driver.cpp` writes such files.
 */

#define _GNU_SOURCE

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NVML __attribute__((visibility("default"))) int

struct place {
    char legacy[16];
    unsigned domain, bus, device, kind, subsystem;
    char id[32];
};

struct memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

enum { OK = 0, NOT_FOUND = 6, TOO_SMALL = 7, GPUS = 2, PROCESSES_MAX = 64, PATH_BYTES = 4096 };

/* The driver keeps a part for itself; the rest is 4 GiB on the first, and 8 GiB on the second. */
static const unsigned long long GIB = 1ull << 30, RESERVED = 1ull << 28;
static const unsigned BUSES[GPUS] = {0x02, 0x41};
static int numbers[GPUS] = {0, 1};

/* The processes that hold memory; how many there are. */
static unsigned holders(int gpu, struct process found[PROCESSES_MAX]) {
    Dl_info library;
    char path[PATH_BYTES];
    if (dladdr(numbers, &library) == 0 || strlen(library.dli_fname) > PATH_BYTES / 2) {
        abort();
    }
    strcpy(path, library.dli_fname);
    char *name = strrchr(path, '/');
    if (name == NULL) {
        abort();
    }
    const size_t room = PATH_BYTES - (size_t)(name - path);
    snprintf(name, room, "/gpu-%d", gpu);
    DIR *folder = opendir(path);
    unsigned count = 0;
    for (struct dirent *entry; folder != NULL && count < PROCESSES_MAX && (entry = readdir(folder)) != NULL;) {
        const unsigned pid = (unsigned)strtoul(entry->d_name, NULL, 10);
        char alive[32];
        snprintf(alive, sizeof alive, "/proc/%u", pid);
        if (pid == 0 || access(alive, F_OK) != 0) {
            continue;
        }
        snprintf(name, room, "/gpu-%d/%u", gpu, pid);
        FILE *file = fopen(path, "r");
        unsigned long long used = 0;
        /* One that is being written is empty for a moment. */
        if (file != NULL && fscanf(file, "%llu", &used) == 1 && used > 0) {
            found[count].pid = pid;
            found[count].used = used;
            found[count].gpu_instance = found[count].compute_instance = -1u;
            count++;
        }
        if (file != NULL) {
            fclose(file);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return count;
}

NVML nvmlInit_v2(void) { return OK; }
NVML nvmlShutdown(void) { return OK; }

NVML nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "999.1");
    return OK;
}

NVML nvmlDeviceGetCount_v2(unsigned *count) {
    *count = GPUS;
    return OK;
}

NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, int **gpu) {
    if (index >= GPUS) {
        return NOT_FOUND;
    }
    *gpu = &numbers[index];
    return OK;
}

NVML nvmlDeviceGetName(int *gpu, char *name, unsigned length) {
    snprintf(name, length, "Stand-in %d", *gpu);
    return OK;
}

NVML nvmlDeviceGetPciInfo_v3(int *gpu, struct place *place) {
    memset(place, 0, sizeof *place);
    place->bus = BUSES[*gpu];
    snprintf(place->id, sizeof place->id, "00000000:%02X:00.0", place->bus);
    return OK;
}

NVML nvmlDeviceGetMemoryInfo_v2(int *gpu, struct memory *memory) {
    struct process found[PROCESSES_MAX];
    const unsigned count = holders(*gpu, found);
    memory->total = (4 + 4 * (unsigned long long)*gpu) * GIB + RESERVED;
    memory->reserved = RESERVED;
    memory->used = 0;
    for (unsigned i = 0; i < count; i++) {
        memory->used += found[i].used;
    }
    memory->free = memory->total - memory->reserved - memory->used;
    return OK;
}

NVML nvmlDeviceGetComputeRunningProcesses_v3(int *gpu, unsigned *count, struct process *processes) {
    struct process found[PROCESSES_MAX];
    const unsigned room = *count;
    *count = holders(*gpu, found);
    if (room < *count) {
        return TOO_SMALL;
    }
    if (*count > 0) {
        memcpy(processes, found, *count * sizeof *found);
    }
    return OK;
}
