"""The rate of a snapshot. While the server serves commands, the rate is `snapshot-rate`. Otherwise,
the snapshot is as fast as possible."""

from harness.resp import ReplyError
from harness.server import Server
from harness.target import TestCase, slimio_only
from harness.wait import Absence, until

VALUE = "x" * 2000
KEYS = 4000
# Eight megabytes would take more than two minutes at this rate.
SLOW = 64 << 10
# At this rate, eight megabytes take some seconds. At a sixteenth of this rate, they take longer
# than the time limit of a test.
RATE = 2 << 20
# The server treats a pause of 100 ms as the end of the traffic. So the pauses of a test must be
# shorter.
PAUSE_SECONDS = 0.05


@slimio_only
class SnapshotRate(TestCase):
    seconds = 30

    def begin(self, client, server):
        """Begins a snapshot while keys are set, and waits until the snapshot is throttled. Returns
        an `Absence` that begins at that moment."""
        fill(client)

        def is_held_back():
            if server.info()["rdb_bgsave_in_progress"] == "0":
                client("BGSAVE")
            for _ in range(20):
                traffic(client)
            absence, info = Absence(), server.info()
            is_limited = info["snapshot_rate_limit_bytes"] == str(SLOW)
            return is_limited and info["rdb_bgsave_in_progress"] == "1" and absence

        return until(is_held_back)

    def server(self, **flags):
        # These settings keep the server from taking snapshots by itself.
        server = Server(snapshot_rate=SLOW, save="", auto_aof_rewrite_percentage=0, **flags)
        self.addCleanup(server.close)
        return server

    def test_it_rests_while_commands_are_served_and_no_longer(self):
        server = self.server()
        with server.client() as client:
            self.begin(client, server)
            until(lambda: server.info()["rdb_bgsave_in_progress"] == "0")
            self.assertEqual(server.info()["rdb_last_bgsave_status"], "ok")

    def test_the_limit_can_be_lifted_while_it_runs(self):
        server = self.server()
        with server.client() as client:
            self.begin(client, server)
            client("CONFIG", "SET", "snapshot-rate", 0)
            until(lambda: traffic(client) and server.info()["rdb_bgsave_in_progress"] == "0")

    def test_it_hurries_when_it_holds_half_of_the_memory_that_it_may(self):
        server = self.server(snapshot_memory_limit="2mb")
        with server.client() as client:
            until(lambda: self.all_replaced_without_a_pause(client, server), self.seconds)

    def all_replaced_without_a_pause(self, client, server):
        """Replaces all keys during a throttled snapshot, whose memory limit is a quarter of the
        replaced data. Returns True if no SET had to wait, or if each batch of 50 SETs took less
        than `PAUSE_SECONDS`. If the snapshot kept its rate, each batch would wait for a second and
        a half."""
        # The snapshot of the last try must be over, so that the next snapshot begins with the
        # present data.
        until(lambda: server.info()["rdb_bgsave_in_progress"] == "0")
        waited = server.info()["snapshot_writes_waited"]
        absence = self.begin(client, server)
        for start in range(0, KEYS, 50):
            traffic(client, start)
            absence.look()
        # A busy machine may cause a pause, too. Then it is enough that no SET had to wait.
        is_unwaited = server.info()["snapshot_writes_waited"] == waited
        return is_unwaited or absence.seconds < PAUSE_SECONDS

    def is_hurried(self, request, client, server):
        """Waits for a WAL-snapshot that the server takes by itself, at a rate below
        `snapshot-rate`. Then sends the request, and returns whether the snapshot goes on at
        `snapshot-rate`. False may also mean that the snapshot ended before the test saw its new
        rate: while a busy machine keeps the test from sending, the snapshot is not throttled."""
        until(lambda: not self.is_snapshotting(server))

        def is_slow():
            if not self.is_rewriting(server):
                # These writes make the log grow, until the server takes a WAL-snapshot.
                traffic(client)
            return self.goes_at(RATE // 16, client, server)

        until(is_slow)
        try:
            client(*request)
        except ReplyError:
            pass
        ends = lambda: self.goes_at(RATE, client, server) and "seen" or not self.is_rewriting(server) and "missed"
        return until(ends) == "seen"

    def is_rewriting(self, server):
        return server.info()["aof_rewrite_in_progress"] == "1"

    def is_snapshotting(self, server):
        return self.is_rewriting(server) or server.info()["rdb_bgsave_in_progress"] == "1"

    def goes_at(self, rate, client, server):
        """Reads keys. Returns whether a WAL-snapshot is running and throttled to this rate."""
        for _ in range(20):
            client.pipeline([["GET", "k:1"]] * 50)
        info = server.info()
        is_running = info["aof_rewrite_in_progress"] == "1"
        return is_running and info["snapshot_rate_limit_bytes"] == str(rate)

    def test_one_that_nobody_asked_for_takes_its_time_until_somebody_waits(self):
        # A client whose request is refused because the snapshot runs counts as a waiting client,
        # too.
        for request in (["BGREWRITEAOF"], ["BGSAVE"], ["BGSAVE", "SCHEDULE"]):
            with self.subTest(" ".join(request)):
                flags = {"auto_aof_rewrite_percentage": 0, "auto_aof_rewrite_min_size": 0}
                server = Server(snapshot_rate=RATE, save="", **flags)
                self.addCleanup(server.close)
                with server.client() as client:
                    fill(client)
                    client("BGREWRITEAOF")
                    until(lambda: server.info()["snapshot_rewrites_complete"] != "0")
                    client("CONFIG", "SET", "auto-aof-rewrite-percentage", 1)
                    until(lambda: self.is_hurried(request, client, server), self.seconds)

    def test_the_log_keeps_its_limit_however_fast_it_grows(self):
        server = Server(
            snapshot_rate=SLOW,
            save="",
            log_size_max="32mb",
            log_segment_size="1mb",
            auto_aof_rewrite_min_size=0,
        )
        self.addCleanup(server.close)
        with server.client() as client:
            # Writes 320 MB, ten times the limit of the log.
            for _ in range(40):
                fill(client)
            info = server.info()
            self.assertGreater(int(info["snapshot_rewrites_complete"]), 5)
            self.assertEqual(info["aof_last_bgrewrite_status"], "ok")

    def test_one_that_rests_is_given_up_at_once(self):
        server = self.server()
        with server.client() as client:
            self.begin(client, server)
            complete = saves_complete(server)
            client("FLUSHALL")
            # FLUSHALL ends the snapshot during a long pause. The next snapshot has little to write,
            # and must not wait for the rest of that pause.
            until(lambda: traffic(client) and saves_complete(server) > complete)


def fill(client):
    for start in range(0, KEYS, 500):
        client.pipeline([["SET", f"k:{n}", VALUE] for n in range(start, start + 500)])


def traffic(client, start=0):
    client.pipeline([["SET", f"k:{n}", VALUE] for n in range(start, start + 50)])
    return True


def saves_complete(server):
    return int(server.info()["snapshot_saves_complete"])
