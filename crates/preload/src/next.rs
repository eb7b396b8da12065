//! libc's own functions. This module looks them up by name in the libraries that the dynamic linker
//! searches after this library.

#![expect(unsafe_code, reason = "the address of a symbol has no type")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of a library that the dynamic linker searches after this library.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(null_mut()) }
    }

    /// The address of the function.
    pub(crate) fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.find() } else { address }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name is a C string.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if address.is_null() {
            // This can't happen, because libc has the function: without this library, a program
            // that calls the function must find it in libc.
            std::process::abort();
        }
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// Defines functions that replace libc's functions of the same names. In a function's body, `next`
/// calls libc's function with the same arguments.
macro_rules! hooks {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $([$next:ident])? $body:block
    )*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            static NEXT: $crate::next::Next = $crate::next::Next::new(
                // SAFETY: the bytes end with their only zero.
                unsafe {
                    std::ffi::CStr::from_bytes_with_nul_unchecked(
                        concat!(stringify!($name), "\0").as_bytes()
                    )
                }
            );
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            let next = || {
                // SAFETY: libc's function of this name has this type, and gets the same arguments.
                unsafe {
                    std::mem::transmute::<*mut std::ffi::c_void, Function>(NEXT.address())($($arg),*)
                }
            };
            // Keeps the compiler quiet about functions that never call `next`.
            let _ = &next;
            $(let $next = &next;)?
            $body
        }
    )*};
}
pub(crate) use hooks;

/// Defines functions that replace libc's functions of the same names. After the return type of each
/// function comes a list of its arguments that are descriptors. The function first gives the logs
/// of these descriptors back for good: from then on, the kernel writes these logs. The function may
/// also change files that are written in whole blocks. So it notes for each such file that there
/// may be changes that only the kernel can make durable (a debt).
macro_rules! hooks_that_give_up {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty: $($fd:ident),+;
    )*) => {
        $crate::next::hooks! {$(
            $(#[$meta])*
            fn $name($($arg: $type),*) -> $result [next] {
                $($crate::open_logs::give_up($fd);)+
                $crate::whole_files::around([$($fd),+], next)
            }
        )*}
    };
}
pub(crate) use hooks_that_give_up;

/// This thread's errno: the number of its last error.
pub(crate) fn errno() -> c_int {
    // SAFETY: libc gives every thread an errno of its own.
    unsafe { *libc::__errno_location() }
}

/// Sets this thread's errno.
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: libc gives every thread an errno of its own.
    unsafe { *libc::__errno_location() = error }
}
