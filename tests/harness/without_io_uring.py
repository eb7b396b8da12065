"""Runs a program under a seccomp filter that refuses io_uring, as Docker's default profile does.

    without_io_uring.py [--errno NAME] program [argument]…

The filter answers the three io_uring system calls with EPERM (or another errno) and lets
everything else through; it is inherited by the program and cannot be taken off.
"""

import ctypes
import errno
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
SECCOMP_RET_ALLOW = 0x7FFF0000
SECCOMP_RET_ERRNO = 0x00050000

# io_uring_setup, io_uring_enter, io_uring_register: the same numbers on every architecture.
REFUSED_FIRST, REFUSED_LAST = 425, 427

BPF_LOAD_WORD_ABSOLUTE = 0x20
BPF_JUMP_GE = 0x35
BPF_JUMP_GT = 0x25
BPF_RETURN = 0x06


def filter_program(refusal):
    """`if FIRST <= number <= LAST { refusal } else { allow }`, as classic BPF."""
    instructions = [
        (BPF_LOAD_WORD_ABSOLUTE, 0, 0, 0),
        (BPF_JUMP_GE, 0, 2, REFUSED_FIRST),
        (BPF_JUMP_GT, 1, 0, REFUSED_LAST),
        (BPF_RETURN, 0, 0, SECCOMP_RET_ERRNO | refusal),
        (BPF_RETURN, 0, 0, SECCOMP_RET_ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def install(refusal):
    libc = ctypes.CDLL(None, use_errno=True)
    code = filter_program(refusal)
    program = Program(len(code) // 8, code)
    pointer = ctypes.cast(ctypes.pointer(program), ctypes.c_void_p)
    calls = [
        (PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), ctypes.c_ulong(0)),
        (PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), pointer),
    ]
    for option, second, third in calls:
        if libc.prctl(option, second, third, ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
            number = ctypes.get_errno()
            raise SystemExit(f"the filter cannot be installed: {os.strerror(number)}")


def is_refused():
    """Whether this very process gets io_uring refused now."""
    libc = ctypes.CDLL(None, use_errno=True)
    entries_too_many = 1 << 30
    libc.syscall(REFUSED_FIRST, ctypes.c_uint(entries_too_many), None)
    return ctypes.get_errno() in (errno.EPERM, errno.ENOSYS)


def main(args):
    refusal = errno.EPERM
    if args[:1] == ["--errno"]:
        refusal = getattr(errno, args[1])
        args = args[2:]
    if not args:
        raise SystemExit(__doc__)
    install(refusal)
    if not is_refused():
        raise SystemExit("the filter is in place and io_uring is not refused")
    os.execvp(args[0], args)


if __name__ == "__main__":
    main(sys.argv[1:])
