// Large allocations in huge pages, on Linux.
//
// GGML gets all of its memory from posix_memalign, and the linker puts the function below in the place of the C library's
// (`--wrap` in build.rs). Linux gives small pages where nobody asks for more, and weights are read faster from huge ones (one
// thread 27 GB/s instead of 23; bench/README.md). glibc has a switch for this in the environment, glibc.malloc.hugetlb; that of
// 2.36 compares a text without its end and so forgets about it in some processes.

#include <cstddef>
#include <cstdint>
#include <sys/mman.h>

extern "C" {

int __real_posix_memalign(void ** place, size_t alignment, size_t bytes);

int __wrap_posix_memalign(void ** place, size_t alignment, size_t bytes) {
    // Weights and a KV that count. A buffer of which a part is never used takes whole huge pages all the same, which is beyond the
    // estimate where it is small.
    constexpr size_t LEAST = size_t(64) << 20;
    // No page of Linux is larger, and so none is asked for that is not all ours.
    constexpr uintptr_t PAGE = 65536;
    const int code = __real_posix_memalign(place, alignment, bytes);
    if (code == 0 && bytes >= LEAST) {
        const uintptr_t from = (reinterpret_cast<uintptr_t>(*place) + PAGE - 1) / PAGE * PAGE;
        const uintptr_t to = (reinterpret_cast<uintptr_t>(*place) + bytes) / PAGE * PAGE;
        // A wish: a system without huge pages says no, and nothing is lost.
        (void) madvise(reinterpret_cast<void *>(from), to - from, MADV_HUGEPAGE);
    }
    return code;
}

}
