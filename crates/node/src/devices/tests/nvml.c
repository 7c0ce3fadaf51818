/* A stand-in for NVIDIA's library of figures: two GPUs, of which a file says what is in use. `libnvidia-ml.so.1`. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

enum { OK = 0, NOT_FOUND = 6, TOO_SMALL = 7, GPUS = 2 };

static const unsigned long long GIB = 1ull << 30;
static int places[GPUS] = {0, 1};

/* The file has of each GPU how many GiB are in use. */
static unsigned long long used(int gpu) {
    unsigned long long gib[GPUS] = {0, 0};
    FILE *file = fopen(getenv("STAND_IN_USED"), "r");
    if (file == NULL || fscanf(file, "%llu %llu", &gib[0], &gib[1]) != GPUS) {
        abort();
    }
    fclose(file);
    return gib[gpu] * GIB;
}

int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "999.1");
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = GPUS;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, int **gpu) {
    if (index >= GPUS) {
        return NOT_FOUND;
    }
    *gpu = &places[index];
    return OK;
}

int nvmlDeviceGetName(int *gpu, char *name, unsigned length) {
    snprintf(name, length, "Stand-in %d", *gpu);
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(int *gpu, struct memory *memory) {
    const unsigned long long total = (8 + 8 * *gpu) * GIB;
    memory->total = total;
    memory->reserved = 0;
    memory->used = used(*gpu);
    memory->free = total - memory->used;
    return OK;
}

/* The second GPU alone has one. */
int nvmlDeviceGetComputeRunningProcesses_v3(int *gpu, unsigned *count, struct process *processes) {
    const unsigned room = *count;
    *count = *gpu;
    if (room < *count) {
        return TOO_SMALL;
    }
    for (unsigned i = 0; i < *count; i++) {
        processes[i] = (struct process){4321, used(*gpu), -1u, -1u};
    }
    return OK;
}
