//! Functions with a variable number of arguments. Rust can't define such functions, so they are
//! written in assembly. Each one saves its arguments, calls the function that must run first,
//! restores the arguments, and jumps to libc's function. The assembly exists only for x86-64. On
//! other machines, this library does not see calls of these functions.

#![cfg(target_arch = "x86_64")]
#![expect(unsafe_code, reason = "the functions are written in assembly")]

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};

use crate::hooks::descriptors::hand_on;
use crate::next::Next;
use crate::open_logs::give_up_before_exec;

/// Defines functions. Each one passes its first argument to `$before`, and then jumps to the
/// address that `$before` returns.
macro_rules! passed_on {
    ($($(#[$meta:meta])* $name:ident: $before:ident;)*) => {$(
        $(#[$meta])*
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            // The arguments are in six integer registers, in eight floating-point registers, in
            // `al`, and on the stack.
            naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "sub rsp, 128",
                "movaps [rsp], xmm0", "movaps [rsp + 16], xmm1",
                "movaps [rsp + 32], xmm2", "movaps [rsp + 48], xmm3",
                "movaps [rsp + 64], xmm4", "movaps [rsp + 80], xmm5",
                "movaps [rsp + 96], xmm6", "movaps [rsp + 112], xmm7",
                "call {before}",
                "mov r11, rax",
                "movaps xmm0, [rsp]", "movaps xmm1, [rsp + 16]",
                "movaps xmm2, [rsp + 32]", "movaps xmm3, [rsp + 48]",
                "movaps xmm4, [rsp + 64]", "movaps xmm5, [rsp + 80]",
                "movaps xmm6, [rsp + 96]", "movaps xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                before = sym $before,
            )
        }
    )*};
}

passed_on! {
    /// dprintf(3)
    dprintf: before_dprintf;
    /// dprintf(3), as programs that were built with `_FORTIFY_SOURCE` call it.
    __dprintf_chk: before_dprintf_chk;
    /// execl(3)
    execl: before_execl;
    /// execlp(3)
    execlp: before_execlp;
    /// execle(3)
    execle: before_execle;
}

/// Defines functions. The functions that `passed_on` defines call them first. Each one returns the
/// address of libc's function.
macro_rules! before {
    ($($before:ident($fd:ident) -> $name:literal $body:block)*) => {$(
        extern "C" fn $before($fd: c_int) -> *mut c_void {
            static NEXT: Next = Next::new($name);
            $body
            NEXT.address()
        }
    )*};
}

before! {
    before_dprintf(fd) -> c"dprintf" { hand_on(fd) }
    before_dprintf_chk(fd) -> c"__dprintf_chk" { hand_on(fd) }
    before_execl(_first) -> c"execl" { give_up_before_exec(true) }
    before_execlp(_first) -> c"execlp" { give_up_before_exec(true) }
    before_execle(_first) -> c"execle" { give_up_before_exec(true) }
}
