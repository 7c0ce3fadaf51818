//! Carries out the instructions of AMX for processors that have none, for tests.
//!
//! Without AMX each of them raises SIGILL. A handler decodes the encodings that [`super::tiles`] is made of, memory operands
//! included, does what the operation section of Intel's manual says, and goes on behind the instruction. Whatever else
//! is illegal ends the process, as it does without this.
//!
//! What this does not show: how fast it is, and anything that Intel's processors do otherwise than their manual.

use std::cell::UnsafeCell;

mod decode;
mod machine;

use machine::Machine;

thread_local! {
    /// Has nothing to be dropped and is there from the start, so that a signal handler may use it.
    static MACHINE: UnsafeCell<Machine> = const { UnsafeCell::new(Machine::RELEASED) };
}

/// Whether instructions of AMX are carried out from now on. All that surrounds them takes AVX-512 with bf16, as every
/// processor with AMX has it.
pub(super) fn install() -> bool {
    if !crate::Isa::Avx512Bf16.is_available() || !is_x86_feature_detected!("fma") {
        println!("skipped: AMX is carried out only where there is {}", crate::Isa::Avx512Bf16.as_str());
        return false;
    }
    handler::install()
}

/// Whether the calling thread has tiles, of those that are made here.
pub(super) fn is_configured() -> bool {
    // SAFETY: nothing else in this thread uses the machine: it is not inside an instruction of AMX.
    MACHINE.with(|machine| unsafe { (*machine.get()).is_configured })
}

mod handler {
    use super::{MACHINE, decode};

    /// Registers in the order of their numbers.
    const REGISTERS: [libc::c_int; 16] = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];

    pub(super) fn install() -> bool {
        // SAFETY: an all-zero `sigaction` is a value of it; the handler lives as long as the process.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = trapped as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()) == 0
        }
    }

    extern "C" fn trapped(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the system gives the context of the thread that was interrupted, which is this one, at an instruction that
        // it could not carry out; at its address is code, whose longest instruction is read as far as it is one of ours.
        unsafe {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            let code = registers[libc::REG_RIP as usize] as *const u8;
            let numbers = REGISTERS.map(|register| registers[register as usize] as u64);
            let Some((instruction, length)) = decode::decode(|at| code.add(at).read(), &numbers) else {
                // Not one of ours: it is met again, and then it is fatal.
                libc::signal(signal, libc::SIG_DFL);
                return;
            };
            // Nothing else in this thread uses the machine: it is inside that instruction.
            MACHINE.with(|machine| (*machine.get()).run(instruction));
            registers[libc::REG_RIP as usize] += length as i64;
        }
    }
}

mod tests;
