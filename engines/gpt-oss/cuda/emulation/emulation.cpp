// The emulator's machinery. The kernels are in kernels.cpp, so that they can be watched by sanitizers and this is not.

#include "emulation.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <sys/mman.h>

#ifdef WATCH_RACES
#include <sanitizer/tsan_interface.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace emulation {

namespace {

const size_t STACK_BYTES = 128 << 10;
const unsigned THREADS_MAX = 1024;
// What a block can have at most without asking for more.
const size_t SHARED_BYTES_MAX = 48 << 10;
const unsigned SHARED_NAMES_MAX = 128;

struct Kernel {
    size_t argument_bytes;
    unsigned threads;
    Body body;
};

std::map<std::string, Kernel> &kernels() {
    static std::map<std::string, Kernel> all;
    return all;
}

enum class State { Ready, AtBarrier, WithWarp, Ended };

// What a lane brings to, and takes from, something its warp does together.
struct Gift {
    int line, kind;
    unsigned value;
    int other;
    float *d;
    const unsigned *a, *b;
};

struct Fibre : Thread {
    State state;
    // The thread sanitizer's name of it.
    void *watched;
    void *stack_pointer;
    char *stack;
    int barrier_line;
    // Barriers and gatherings of its warp that it has come to.
    unsigned barriers, gatherings;
    Gift gift;
};

struct Machine {
    std::vector<Fibre> fibres;
    std::vector<unsigned> ready;
    void *scheduler;
    void *watched;
    Body body;
    const void *arguments;
    // Of the block at work: the only one, or where races are watched one of ROOMS, each of which one block of a launch has.
    char *rooms, *shared;
    size_t shared_used;
    std::vector<char *> shared_names;
    uint64_t random;
    std::string error;
    unsigned at_barrier, ended;
    std::vector<unsigned> warp_waiting;
};

thread_local Machine *machine = nullptr;

// What one thread has done before another goes on, for the thread sanitizer: as if every thread of a launch ran at once, ordered by
// nothing but barriers, __syncwarp, and the launch's beginning and end. Blocks are not ordered at all.
#ifdef WATCH_RACES
const size_t ROOMS = 4096;
char launch_begun, launch_ended;
void races_done_before(void *what) { __tsan_release(what); }
void races_wait_for(void *what) { __tsan_acquire(what); }
void races_go_on_as(void *watched) { __tsan_switch_to_fiber(watched, __tsan_switch_to_fiber_no_sync); }
void *races_self() { return __tsan_get_current_fiber(); }
void *races_create() { return __tsan_create_fiber(0); }
void races_destroy(void *watched) { __tsan_destroy_fiber(watched); }
#else
const size_t ROOMS = 1;
char launch_begun, launch_ended;
void races_done_before(void *) {}
void races_wait_for(void *) {}
void races_go_on_as(void *) {}
void *races_self() { return nullptr; }
void *races_create() { return nullptr; }
void races_destroy(void *) {}
#endif
// In front of a room's shared memory, addresses that name its barriers and warps.
const size_t ROOM_NAMES = 256, ROOM_BYTES = ROOM_NAMES + SHARED_BYTES_MAX;

extern "C" void emulation_switch(void **save, void *load);
// The registers that a called function has to keep, and the stack.
asm(R"(
.text
.globl emulation_switch
.type emulation_switch, @function
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulation_switch, .-emulation_switch
)");

Fibre &self() { return *static_cast<Fibre *>(current); }

// Back to the scheduler; returns when this thread is chosen again.
void yield() {
    races_go_on_as(machine->watched);
    emulation_switch(&self().stack_pointer, machine->scheduler);
}

// Of this block: for even and odd barriers, and for the even and odd gatherings of each warp.
void *name_of(unsigned which, unsigned count) { return machine->shared - ROOM_NAMES + 2 * which + count % 2; }

[[noreturn]] void fail(const std::string &what) {
    if (machine->error.empty()) {
        const Index t = current->thread, b = current->block;
        char where[128];
        snprintf(where, sizeof where, " (thread %u of block %u,%u,%u)", t.x, b.x, b.y, b.z);
        machine->error = what + where;
    }
    for (;;) {
        // The scheduler sees the error and never comes back.
        yield();
    }
}

void fibre_main() {
    races_wait_for(&launch_begun);
    machine->body(machine->arguments);
    races_done_before(&launch_ended);
    self().state = State::Ended;
    machine->ended++;
    if (machine->ended + machine->at_barrier == machine->fibres.size() && machine->at_barrier > 0) {
        fail("a thread has ended and others wait for it at a barrier");
    }
    for (;;) {
        yield();
    }
}

uint64_t next_random() {
    // SplitMix64.
    uint64_t z = machine->random += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

void make_ready(unsigned number) {
    machine->fibres[number].state = State::Ready;
    machine->ready.push_back(number);
}

float bf16_half(unsigned pair, int which) { return as_float(which ? pair & 0xffff0000u : pair << 16); }

// d (16x8) += a (16x16) b (16x8): gathers the fragments of 32 lanes, multiplies, scatters.
void mma_of_warp(Fibre *lanes) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        const Gift &gift = lanes[lane].gift;
        for (int half = 0; half < 2; half++) {
            a[g][2 * t + half] = bf16_half(gift.a[0], half);
            a[g + 8][2 * t + half] = bf16_half(gift.a[1], half);
            a[g][2 * t + 8 + half] = bf16_half(gift.a[2], half);
            a[g + 8][2 * t + 8 + half] = bf16_half(gift.a[3], half);
            b[2 * t + half][g] = bf16_half(gift.b[0], half);
            b[2 * t + 8 + half][g] = bf16_half(gift.b[1], half);
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        float *d = lanes[lane].gift.d;
        for (int i = 0; i < 4; i++) {
            const int row = g + 8 * (i / 2), column = 2 * t + i % 2;
            float sum = 0.0f;
            for (int k = 0; k < 16; k++) {
                sum += a[row][k] * b[k][column];
            }
            d[i] += sum;
        }
    }
}

const int KIND_XOR = 0, KIND_FROM = 1, KIND_BALLOT = 2, KIND_TOGETHER = 3, KIND_MMA = 4;

void complete_warp(Fibre *lanes) {
    const Gift first = lanes[0].gift;
    for (int lane = 1; lane < 32; lane++) {
        const Gift &gift = lanes[lane].gift;
        if (gift.line != first.line || gift.kind != first.kind) {
            fail("lanes of a warp meet in different operations, lines " + std::to_string(first.line) + " and " +
                 std::to_string(gift.line));
        }
    }
    if (first.kind == KIND_MMA) {
        return mma_of_warp(lanes);
    }
    unsigned values[32], ballot = 0;
    for (int lane = 0; lane < 32; lane++) {
        values[lane] = lanes[lane].gift.value;
        ballot |= (values[lane] != 0) << lane;
    }
    for (int lane = 0; lane < 32; lane++) {
        Gift &gift = lanes[lane].gift;
        switch (first.kind) {
            case KIND_XOR: gift.value = values[lane ^ (gift.other & 31)]; break;
            case KIND_FROM: gift.value = values[gift.other & 31]; break;
            case KIND_BALLOT: gift.value = ballot; break;
            default: break;
        }
    }
}

// Waits for the other lanes; the last one does the work for all.
void together() {
    Fibre &me = self();
    const unsigned warp = me.thread.x / 32;
    Fibre *lanes = &machine->fibres[warp * 32];
    if (++machine->warp_waiting[warp] < 32) {
        me.state = State::WithWarp;
        return yield();
    }
    machine->warp_waiting[warp] = 0;
    complete_warp(lanes);
    for (int lane = 0; lane < 32; lane++) {
        if (&lanes[lane] != &me) {
            make_ready(warp * 32 + lane);
        }
    }
}

void *new_memory(size_t bytes) {
    void *memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "emulation: no memory for %zu bytes\n", bytes);
        abort();
    }
    return memory;
}

void start(Fibre &fibre) {
#ifdef __SANITIZE_ADDRESS__
    // The frames of the thread before, which never returned, are still marked.
    __asan_unpoison_memory_region(fibre.stack, STACK_BYTES);
#endif
    // As if fibre_main had been called: the address to return to, then six registers. At a function's beginning the
    // stack is 8 off a multiple of 16.
    uintptr_t top = (reinterpret_cast<uintptr_t>(fibre.stack) + STACK_BYTES) & ~uintptr_t(15);
    void **slot = reinterpret_cast<void **>(top);
    *--slot = nullptr;
    *--slot = reinterpret_cast<void *>(&fibre_main);
    for (int i = 0; i < 6; i++) {
        *--slot = nullptr;
    }
    fibre.stack_pointer = slot;
}

// Runs one block to its end; false when something was wrong.
bool run_block(Index block, unsigned threads) {
    Machine &m = *machine;
    // What the block before left is no longer there.
    memset(m.shared, 0xff, m.shared_used);
    races_done_before(&launch_begun);
    m.shared_used = 0;
    m.shared_names.assign(SHARED_NAMES_MAX, nullptr);
    m.at_barrier = m.ended = 0;
    m.warp_waiting.assign(threads / 32, 0);
    m.ready.clear();
    for (unsigned i = 0; i < threads; i++) {
        Fibre &fibre = m.fibres[i];
        fibre.thread = Index{i, 0, 0};
        fibre.block = block;
        fibre.barriers = fibre.gatherings = 0;
        start(fibre);
    }
    // The last of `ready` runs first.
    for (unsigned i = threads; i-- > 0;) {
        make_ready(i);
    }
    while (!m.ready.empty()) {
        if (m.random != 0) {
            std::swap(m.ready[next_random() % m.ready.size()], m.ready.back());
        }
        Fibre &fibre = m.fibres[m.ready.back()];
        m.ready.pop_back();
        current = &fibre;
        races_go_on_as(fibre.watched);
        emulation_switch(&m.scheduler, fibre.stack_pointer);
        if (!m.error.empty()) {
            return false;
        }
    }
    if (m.ended != threads) {
        m.error = std::to_string(threads - m.ended) + " threads wait for others that have ended or wait elsewhere";
        return false;
    }
    return true;
}

}  // namespace

thread_local Thread *current = nullptr;
thread_local Index grid_size, block_size;

Registered::Registered(const char *name, size_t argument_bytes, unsigned threads, Body body) {
    kernels()[name] = Kernel{argument_bytes, threads, body};
}

void wait_at_barrier(Fibre &me, int line) {
    Machine &m = *machine;
    me.barrier_line = line;
    me.state = State::AtBarrier;
    if (++m.at_barrier < m.fibres.size()) {
        if (m.at_barrier + m.ended == m.fibres.size()) {
            fail("a barrier in line " + std::to_string(line) + " that other threads have passed by to their end");
        }
        return yield();
    }
    for (const Fibre &other : m.fibres) {
        if (other.barrier_line != line) {
            fail("threads of a block meet at different barriers, lines " + std::to_string(line) + " and " +
                 std::to_string(other.barrier_line));
        }
    }
    m.at_barrier = 0;
    for (unsigned i = m.fibres.size(); i-- > 0;) {
        if (&m.fibres[i] != &me) {
            make_ready(i);
        }
    }
    me.state = State::Ready;
}

void barrier(int line) {
    Fibre &me = self();
    // A thread that is at the next barrier already is no reason why this one may go on: hence two names.
    void *name = name_of(0, me.barriers++);
    races_done_before(name);
    wait_at_barrier(me, line);
    races_wait_for(name);
}

void *shared(int which, size_t bytes) {
    Machine &m = *machine;
    if (which < 0 || which >= static_cast<int>(SHARED_NAMES_MAX)) {
        fail("too many names of shared memory");
    }
    char *&place = m.shared_names[which];
    if (place == nullptr) {
        const size_t start = (m.shared_used + 15) / 16 * 16;
        if (start + bytes > SHARED_BYTES_MAX) {
            fail("more shared memory than there is: " + std::to_string(start + bytes) + " bytes");
        }
        place = m.shared + start;
        m.shared_used = start + bytes;
    }
    return place;
}

void check_aligned(const void *address, size_t multiple) {
    if (reinterpret_cast<uintptr_t>(address) % multiple != 0) {
        fail("an address is no multiple of " + std::to_string(multiple));
    }
}

void mma_16x8x16(float *d, const unsigned *a, const unsigned *b) {
    self().gift = Gift{0, KIND_MMA, 0, 0, d, a, b};
    together();
}

unsigned exchange(int line, int kind, unsigned value, int other) {
    Fibre &me = self();
    me.gift = Gift{line, kind, value, other, nullptr, nullptr, nullptr};
    // Only __syncwarp shows memory to the other lanes: a shuffle or a ballot does not.
    if (kind != KIND_TOGETHER) {
        together();
        return me.gift.value;
    }
    void *name = name_of(1 + me.thread.x / 32, me.gatherings++);
    races_done_before(name);
    together();
    races_wait_for(name);
    return 0;
}

extern "C" void emulation_kernels();

// Size of a kernel's argument struct; 0: there is no such kernel.
extern "C" size_t emulation_argument_bytes(const char *kernel) {
    const auto found = kernels().find(kernel);
    return found == kernels().end() ? 0 : found->second.argument_bytes;
}

// Runs a kernel to its end. `schedule` 0: threads in their order; else a seed. False: what was wrong is in `error`.
extern "C" bool emulation_launch(const char *kernel, const unsigned *grid, unsigned threads,
                                 const void *arguments, uint64_t schedule, char *error, size_t error_bytes) {
    if (machine == nullptr) {
        machine = new Machine();
        machine->rooms = static_cast<char *>(new_memory(ROOMS * ROOM_BYTES));
        machine->shared = machine->rooms + ROOM_NAMES;
    }
    // The kernels' file is part of the program only if something of it is named.
    emulation_kernels();
    Machine &m = *machine;
    m.error.clear();
    const auto found = kernels().find(kernel);
    if (found == kernels().end()) {
        m.error = "there is no kernel of this name";
    } else if (threads == 0 || threads % 32 != 0 || threads > found->second.threads) {
        m.error = "launched with " + std::to_string(threads) + " threads, made for " +
                  std::to_string(found->second.threads);
    } else if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535) {
        m.error = "a grid that cannot be";
    } else {
        if (m.fibres.size() != threads) {
            for (Fibre &fibre : m.fibres) {
                munmap(fibre.stack, STACK_BYTES);
                races_destroy(fibre.watched);
            }
            m.fibres.assign(threads, Fibre{});
            m.ready.reserve(threads);
            for (Fibre &fibre : m.fibres) {
                fibre.stack = static_cast<char *>(new_memory(STACK_BYTES));
                fibre.watched = races_create();
            }
        }
        m.body = found->second.body;
        m.arguments = arguments;
        m.shared_used = SHARED_BYTES_MAX;
        m.watched = races_self();
        m.random = schedule;
        grid_size = Index{grid[0], grid[1], grid[2]};
        block_size = Index{threads, 1, 1};
        // Blocks in their order, or backwards: nothing may depend on it.
        const uint64_t blocks = uint64_t(grid[0]) * grid[1] * grid[2];
        for (uint64_t i = 0; i < blocks; i++) {
            const uint64_t n = schedule % 2 == 0 ? i : blocks - 1 - i;
            const Index block = {unsigned(n % grid[0]), unsigned(n / grid[0] % grid[1]),
                                 unsigned(n / grid[0] / grid[1])};
            m.shared = m.rooms + i % ROOMS * ROOM_BYTES + ROOM_NAMES;
            if (!run_block(block, threads)) {
                break;
            }
        }
        races_wait_for(&launch_ended);
    }
    if (m.error.empty()) {
        return true;
    }
    snprintf(error, error_bytes, "%s", m.error.c_str());
    return false;
}

}  // namespace emulation
