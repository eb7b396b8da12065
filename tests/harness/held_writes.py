"""Makes the kernel hold up writes to a block device until they are released, as on a device that
hangs. The writes stay held up even if the process that made them ends."""

import os
import subprocess
import tempfile
import uuid

from harness.loop_device import run
from harness.wait import until

# The kernel can't stop writes altogether. At this rate, no test runs long enough to see a write
# complete.
BYTES_PER_SECOND = 1

QUIET_TIMES = 20


class HeldWrites:
    """A cgroup. After `hold`, writes to `device` wait if their process has entered the cgroup.

    The cgroup goes away with the test. If no such cgroup can be made, the test is skipped.
    """

    def __init__(self, test, device):
        if os.geteuid() != 0:
            test.skipTest("holding up writes needs root")
        number = os.stat(device).st_rdev
        self.number = f"{os.major(number)}:{os.minor(number)}"
        self.group, self.is_v2 = self.make_group(test)
        test.addCleanup(os.rmdir, self.group)
        try:
            self.limit(None)
        except OSError as error:
            test.skipTest(f"the kernel can't hold up writes: {error}")
        test.addCleanup(self.let_go)

    def make_group(self, test):
        name = f"slimio-test-{uuid.uuid4()}"
        tried = []
        for kind, hierarchy, options in self.hierarchies(test):
            group = os.path.join(hierarchy, name)
            try:
                if kind == "cgroup2":
                    with open(os.path.join(hierarchy, "cgroup.subtree_control"), "w") as file:
                        file.write("+io")
                os.mkdir(group)
            except OSError as error:
                tried.append(f"{hierarchy}: {error}")
                continue
            limits = "io.max" if kind == "cgroup2" else "blkio.throttle.write_bps_device"
            if os.path.exists(os.path.join(group, limits)):
                return group, kind == "cgroup2"
            tried.append(f"{hierarchy}: it has no {limits}")
            os.rmdir(group)
        why = "; ".join(tried) or "no cgroup hierarchy is mounted"
        return test.skipTest(f"no cgroup that holds up writes: {why}")

    def hierarchies(self, test):
        """The mounted hierarchies of cgroups. If none of version 1 controls block I/O, mounts such
        a hierarchy, too, until the test ends."""
        with open("/proc/self/mounts") as file:
            mounts = [line.split() for line in file]
        found = [(m[2], m[1], m[3]) for m in mounts if m[2] in ("cgroup", "cgroup2")]
        found = [one for one in found if one[0] == "cgroup2" or "blkio" in one[2].split(",")]
        yield from found
        if not any(kind == "cgroup" for kind, _, _ in found):
            place = tempfile.mkdtemp(prefix="slimio-test-cgroup-")
            test.addCleanup(os.rmdir, place)
            try:
                run("mount", "-t", "cgroup", "-o", "blkio", "slimio-test", place)
            except subprocess.CalledProcessError:
                return
            test.addCleanup(run, "umount", "-l", place)
            yield "cgroup", place, "blkio"

    def limit(self, bytes_per_second):
        if self.is_v2:
            file, line = "io.max", f"{self.number} wbps={bytes_per_second or 'max'}"
        else:
            file, line = "blkio.throttle.write_bps_device", f"{self.number} {bytes_per_second or 0}"
        with open(os.path.join(self.group, file), "w") as limits:
            limits.write(line)

    def enter(self):
        """Puts the calling process into the cgroup."""
        with open(os.path.join(self.group, "cgroup.procs"), "w") as members:
            members.write(str(os.getpid()))

    def hold(self):
        self.limit(BYTES_PER_SECOND)

    def let_go(self):
        self.limit(None)

    def wait_until_quiet(self):
        """Waits until QUIET_TIMES polls in a row see that the device has completed nothing since
        the poll before. This takes at least a fifth of a second."""
        before, times = None, 0

        def is_quiet():
            nonlocal before, times
            counts = self.counts()
            times = times + 1 if counts == before else 0
            before = counts
            return times >= QUIET_TIMES

        until(is_quiet, 20, "the device to become quiet")

    def counts(self):
        """The number of reads and the number of writes that the device has completed."""
        with open(f"/sys/dev/block/{self.number}/stat") as file:
            fields = file.read().split()
        return int(fields[0]), int(fields[4])
