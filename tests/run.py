"""Runs the black-box tests against SlimIO, or any other server that takes redis-server's flags."""

import argparse
import os
import sys
import tempfile

ROOT = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, ROOT)

from harness import runner  # noqa: E402
from harness.target import TARGET, with_io_uring, without_io_uring  # noqa: E402

# Number of bytes that must be free on a file system in memory before servers put their data there.
# The data of a run take only a fraction of this number.
MEMORY_MIN = 4 << 30


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "words", nargs="*", help="run only tests whose name contains one of these words"
    )
    parser.add_argument(
        "--server", default="slimio serve", help="command that starts the server under test"
    )
    parser.add_argument(
        "--stock", default="redis-server", help="program of the Redis server to compare with"
    )
    parser.add_argument(
        "--clients", default="", help="folder with the built clients in other languages"
    )
    parser.add_argument("--peers", default="", help="folder with the other servers that `cargo x peers` downloads")
    # By default, there are more jobs than cores, because many tests wait.
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 2))
    parser.add_argument("--folder", default="", help="folder for the data of the servers")
    parser.add_argument("--seed", type=int, default=1, help="seed of tests that draw at random")
    parser.add_argument(
        "--rounds",
        type=int,
        default=0,
        help="number of rounds of tests that draw at random; 0 means a short run"
    )
    parser.add_argument(
        "--every-call",
        action="store_true",
        help="tests that kill a program at a system call do so at each of the program's calls, "
        "not only at some of the calls that change something",
    )
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--without-io-uring",
        action="store_true",
        help="run each test under a seccomp filter that refuses io_uring"
    )
    way.add_argument(
        "--both-ways",
        action="store_true",
        help="run each test twice: as it is, and with io_uring refused and all data in memory",
    )
    args = parser.parse_args()
    TARGET.set_command(args.server)
    TARGET.stock_command = [args.stock]
    TARGET.clients = os.path.abspath(args.clients or os.path.join(ROOT, "../target/clients"))
    TARGET.peers = os.path.abspath(args.peers or os.path.join(ROOT, "../target/peers"))
    TARGET.seed, TARGET.rounds = args.seed, args.rounds
    TARGET.is_every_call = args.every_call
    folder = os.path.abspath(args.folder or os.path.join(ROOT, "../target/blackbox"))
    with tempfile.TemporaryDirectory(prefix="slimio-", dir=memory()) as in_memory:
        if args.both_ways:
            ways = [with_io_uring(folder), without_io_uring(in_memory)]
        elif args.without_io_uring:
            ways = [without_io_uring(folder)]
        else:
            ways = [with_io_uring(folder)]
        is_well = runner.run(ROOT, args.words, args.jobs, ways)
    sys.exit(0 if is_well else 1)


def memory():
    """Returns /dev/shm if it takes direct I/O (since Linux 6.6) and has room for the servers' data.
    Otherwise returns None, which makes `tempfile` use its usual folder."""
    place = "/dev/shm"
    try:
        with tempfile.NamedTemporaryFile(dir=place) as file:
            os.close(os.open(file.name, os.O_RDWR | os.O_DIRECT))
        found = os.statvfs(place)
    except OSError:
        return None
    has_room = min(found.f_bavail * found.f_bsize, available()) >= MEMORY_MIN
    return place if has_room else None


def available():
    """Bytes of available memory."""
    with open("/proc/meminfo") as file:
        found = dict(line.split(":") for line in file)
    return int(found["MemAvailable"].split()[0]) << 10


if __name__ == "__main__":
    main()
