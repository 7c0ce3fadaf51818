// All kernels as one translation unit, for the processor.

#include "emulation.h"

#include "../kernels/all.cu"

#include "faults.cu"

// See emulation_launch.
extern "C" void emulation_kernels() {}
