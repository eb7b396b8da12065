"""The tools in the server's own binary."""

import subprocess

from harness.target import TARGET

SECONDS_MAX = 60


def tool(*args):
    """Runs a tool. Returns its exit status, and all that it has printed."""
    line = [TARGET.command[0], *(str(arg) for arg in args)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    return done.returncode, done.stdout + done.stderr
