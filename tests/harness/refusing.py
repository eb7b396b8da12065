"""Runs a program under a seccomp filter that refuses system calls, as containers do.

    refusing.py [--errno NAME] CALL[,CALL]… program [argument]…

A CALL is the number of a system call. With `number:index=value`, only calls whose argument `index`
is `value` are refused. The filter compares only the lower 32 bits of the argument. The filter
answers refused calls with EPERM (or another errno), and lets everything else through. The program
inherits the filter, and cannot take it off.
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

BPF_LOAD_WORD_ABSOLUTE = 0x20
BPF_JUMP_EQUAL = 0x15
BPF_RETURN = 0x06

# The offset of the first argument in `struct seccomp_data`. Each argument takes eight bytes, of
# which the lower half comes first.
ARGUMENTS = 16


def parse(text):
    """Turns `number` into (number, None). Turns `number:index=value` into (number, (index, value)).
    """
    number, _, condition = text.partition(":")
    if not condition:
        return int(number), None
    index, _, value = condition.partition("=")
    return int(number), (int(index), int(value, 0) & 0xFFFFFFFF)


def show(call):
    """The inverse of `parse`."""
    number, condition = call
    return str(number) if condition is None else f"{number}:{condition[0]}={condition[1]}"


def filter_program(calls, refusal):
    """A program in classic BPF that does this for each entry of `calls`: `if number matches (and
    argument matches) { refusal }`."""
    instructions = []
    refuse = (BPF_RETURN, 0, 0, SECCOMP_RET_ERRNO | refusal)
    for number, condition in calls:
        instructions.append((BPF_LOAD_WORD_ABSOLUTE, 0, 0, 0))
        if condition is None:
            instructions += [(BPF_JUMP_EQUAL, 0, 1, number), refuse]
        else:
            index, value = condition
            instructions += [
                (BPF_JUMP_EQUAL, 0, 3, number),
                (BPF_LOAD_WORD_ABSOLUTE, 0, 0, ARGUMENTS + 8 * index),
                (BPF_JUMP_EQUAL, 0, 1, value),
                refuse,
            ]
    instructions.append((BPF_RETURN, 0, 0, SECCOMP_RET_ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def install(calls, refusal):
    """Puts the filter on this process. Once the filter is installed, this function makes no more
    system calls, because the filter might refuse them."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = filter_program(calls, refusal)
    program = Program(len(code) // 8, code)
    pointer = ctypes.cast(ctypes.pointer(program), ctypes.c_void_p)
    steps = [
        (PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), ctypes.c_ulong(0)),
        (PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), pointer),
    ]
    for option, second, third in steps:
        if libc.prctl(option, second, third, ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
            number = ctypes.get_errno()
            raise SystemExit(f"the filter cannot be installed: {os.strerror(number)}")


def main(args):
    refusal = errno.EPERM
    if args[:1] == ["--errno"]:
        refusal = getattr(errno, args[1])
        args = args[2:]
    if len(args) < 2:
        raise SystemExit(__doc__)
    install([parse(call) for call in args[0].split(",")], refusal)
    os.execvp(args[1], args[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
