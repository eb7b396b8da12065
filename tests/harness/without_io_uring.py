"""Runs a program under a seccomp filter that refuses io_uring, as Docker's default profile does.

    without_io_uring.py [--errno NAME] program [argument]…

The filter answers the three io_uring system calls with EPERM (or another errno), and clone3 with
ENOSYS, as Docker's profile does. It lets everything else through. The program inherits the filter,
and cannot take it off.
"""

import ctypes
import errno
import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from harness import refusing  # noqa: E402

# io_uring_setup, io_uring_enter and io_uring_register have these numbers on every architecture.
REFUSED = (425, 426, 427)
CLONE3 = 435


def is_refused():
    """Whether io_uring is refused to this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    entries_too_many = 1 << 30
    libc.syscall(REFUSED[0], ctypes.c_uint(entries_too_many), None)
    return ctypes.get_errno() in (errno.EPERM, errno.ENOSYS)


def main(args):
    refusal = errno.EPERM
    if args[:1] == ["--errno"]:
        refusal = getattr(errno, args[1])
        args = args[2:]
    if not args:
        raise SystemExit(__doc__)
    refusing.install([(number, None) for number in REFUSED], refusal)
    refusing.install([(CLONE3, None)], errno.ENOSYS)
    if not is_refused():
        raise SystemExit("the filter is in place, but io_uring is not refused")
    os.execvp(args[0], args)


if __name__ == "__main__":
    main(sys.argv[1:])
