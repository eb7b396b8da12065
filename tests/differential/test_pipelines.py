"""Sends random pipelines of right and wrong requests until the connection ends. SlimIO must send
the same bytes as stock redis-server, and then have the same counters and the same data."""

import random
import re
import socket
import time
import unittest

from differential.commands import Draw
from differential.test_random import brief, different_state
from harness.resp import encode
from harness.server import Server
from harness.target import TARGET, TestCase, slimio_only, stock_is_installed

ROUNDS = 500
REQUESTS_MAX = 25
# If a request is smaller than this, its reply is sent without delay.
LARGE_SIZE_MIN = 10_000
PASSWORD = "secret"
TIMEOUT_SECONDS = 20
# Commands to which both servers reply with the same bytes: even the elements come in the same
# order.
NAMES = """SET SET SET SET GET GET GET GETDEL GETSET GETEX SETNX SETEX APPEND STRLEN INCR DECR INCRBY DECRBY
    INCRBYFLOAT MGET MSET MSETNX GETRANGE SUBSTR SETRANGE DEL UNLINK EXISTS TOUCH TYPE RENAME RENAMENX MOVE COPY SWAPDB
    EXPIRE PERSIST EXPIREAT SELECT WATCH UNWATCH MULTI MULTI EXEC EXEC EXEC DISCARD DBSIZE PING ECHO HSET HMSET HGET
    HSETNX HMGET HDEL HLEN HSTRLEN HEXISTS HINCRBY HINCRBYFLOAT FLUSHDB FLUSHALL CLIENT RESET
    NOSUCHCOMMAND NOSUCHCOMMAND""".split()
# The server replies to each of these with an error, and closes the connection.
BROKEN = [
    b"*abc\r\n", b"*-0\r\n", b"* 1\r\n$4\r\nPING\r\n", b"*+1\r\n", b"*01\r\n", b"*2147483648\r\n",
    b"*9223372036854775808\r\n",
    b"*1\r\n+PING\r\n", b"*1\r\n\r\n", b"*1\r\nPING\r\n", b"*1\r\n*1\r\n", b"*2\r\n$4\r\nECHO\r\nx\r\n",
    b"*1\r\n$abc\r\n", b"*1\r\n$-1\r\n", b"*1\r\n$\r\n", b"*1\r\n$ 4\r\nPING\r\n", b"*1\r\n$04\r\nPING\r\n",
    b"*2\r\n$3\r\nGET\r\n$536870913\r\n", b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$99999999999999999999\r\n",
    b'SET k "unbalanced\r\n', b"SET k 'a'b\r\n", b'GET "k\\"\r\n', b"'\n", b'PING "a"b\n',
]
# Like `BROKEN`, but only as long as no end of line follows. So the tests send nothing after one
# of these.
ENDLESS = [b"*" + b"1" * 70_000, b"*1\r\n$" + b"1" * 70_000, b"x" * 70_000, b"*1\r\n" + b"x" * 70_000]
# Empty or odd requests that are no protocol errors.
ODD = [
    b"\r\n", b"\n", b"   \r\n", b"*0\r\n", b"*-1\r\n", b"*-5\r\n", b"*\r\n", b"*1\r\n$0\r\n\r\n",
    b"$abc\r\n", b"$4\r\nPING\r\n",
    b"+OK\r\n", b":1\r\n", b'"" x\r\n', b"PING\n", b" PING \r\n", b"ECHO 'a b\\'c' \r\n", b'ECHO "\\x41\\n\\"\\z"\r\n',
    b"SET k v\n", b"GET k\r\n", b"get\r\n", b"nosuch a b\r\n", b"PING\r\r\n", b"\t\r\n",
    b"*1\r\n$4\r\nPINGxx", b"*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\n",
]

WAITS_FOR_EVER = "stock closes a connection only after a last reply was sent, so a connection without replies stays open"
ENDS_AT_ZERO = "for stock, a line's text ends at a zero byte, so stock waits for the end of this line"
HALF_A_REPLY = "stock announces the number of a transaction's replies, but does not send the one to CLIENT REPLY"
# Each row has the bytes to send, and says why the servers differ. Then come SlimIO's reply and how
# its connection ends, and the same for stock.
OTHERWISE = [
    (encode("CLIENT", "REPLY", "OFF") + encode("QUIT"), WAITS_FOR_EVER, (b"", "closed"), (b"", "open")),
    (encode("CLIENT", "REPLY", "SKIP") + b"*abc\r\n", WAITS_FOR_EVER, (b"", "closed"), (b"", "open")),
    (b"ECHO a\x00b\r\nQUIT\r\n", ENDS_AT_ZERO, (b"$1\r\na\r\n+OK\r\n", "closed"), (b"", "open")),
    (b"*1\r\n\x00\r\n", ENDS_AT_ZERO,
     (b"-ERR Protocol error: expected '$', got '\x00'\r\n", "closed"), (b"", "open")),
    (encode("MULTI") + encode("CLIENT", "REPLY", "SKIP") + encode("PING") + encode("EXEC") + encode("PING")
     + encode("QUIT"),
     HALF_A_REPLY, (b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+OK\r\n", "closed"),
     (b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+PONG\r\n+OK\r\n", "closed")),
]


class DrawPipeline(Draw):
    """Requests as bytes on the wire."""

    def names(self):
        return NAMES

    def hello(self):
        options = self.one_of(
            [], [], ["SETNAME", "me"], ["SETNAME", "a b"], ["AUTH", "default", "wrong"], ["nosuch"]
        )
        return ["HELLO", self.one_of("1", "4", "abc", "2", "3", "3"), *options]

    def reply_mode(self):
        return ["CLIENT", "REPLY", self.one_of("OFF", "SKIP", "SKIP", "SKIP", "ON", "ON", "nosuch")]

    def authentication(self):
        return ["AUTH", *self.one_of(
            [PASSWORD], ["default", PASSWORD], ["wrong"], ["default", "wrong"], [], ["a", "b", "c"]
        )]

    def subcommand(self):
        return self.one_of(
            ["CONFIG", "SET", "nosuch", "1"], ["CONFIG", "GET"], ["CONFIG"], ["CONFIG", "nosuch"], ["OBJECT", "ENCODING"],
            ["OBJECT", "nosuch", "a"], ["COMMAND", "nosuch"], ["SLOWLOG", "GET", "x"], ["DEBUG", "nosuch"],
            ["CONFIG", "SET", "timeout", "0", "timeout", "0"], ["CLIENT", "KILL", "1.2.3.4:5"], ["MEMORY"],
            ["LATENCY", "nosuch"], ["CLIENT", "LIST", "TYPE", "nosuch"], ["SHUTDOWN", "nosuch"], ["TIME", "x"],
        )

    def large(self):
        size = self.one_of(1 << 14, 32 << 10, 40_000, 70_000, 200_000)
        return ["SET", self.key(), "v" * (size + self.random.choice([-1, 0, 1]))]

    def request(self):
        chance = self.random.random()
        if chance < 0.12:
            return self.random.choice(ODD)
        if chance < 0.15:
            return encode(*self.large())
        if chance < 0.20:
            return encode(*self.subcommand())
        if chance < 0.23:
            return encode(*self.hello())
        if chance < 0.25:
            # CLIENT REPLY must not run in a transaction: see HALF_A_REPLY.
            return encode("DISCARD") + encode(*self.reply_mode())
        if chance < 0.28:
            return encode(*self.authentication())
        return encode(*self.command())

    def end(self):
        """The last request, whether the server closes the connection after it, and requests that
        are sent after it all the same."""
        chance = self.random.random()
        behind = [self.request() for _ in range(self.one_of(0, 0, 1, 5))]
        if chance < 0.35:
            return self.random.choice(BROKEN), True, behind
        if chance < 0.4:
            return self.random.choice(ENDLESS), True, []
        if chance < 0.65:
            return encode(self.cased("QUIT"), *self.one_of([], [], [], ["now"])), True, behind
        if chance < 0.75:
            return self.one_of(b"QUIT\r\n", b"quit now\n"), True, behind
        if chance < 0.85:
            whole = encode(*self.command())
            return whole[: self.random.randrange(len(whole))], False, []
        return b"", False, []

    def requests(self):
        return [self.request() for _ in range(self.random.randint(0, REQUESTS_MAX))]

    def cuts(self, size):
        """The places at which the sent bytes are cut."""
        count = self.one_of(0, 0, 1, 2, 5, 20)
        return sorted(self.random.randrange(size + 1) for _ in range(count))


HELLO_OF_WHOM = re.compile(
    rb"\$6\r\nserver\r\n.*?(\$5\r\nproto\r\n:\d\r\n)\$2\r\nid\r\n:\d+\r\n", re.DOTALL
)


# Fields of INFO to compare, without times and bytes.
COUNTED = re.compile("cmdstat_|errorstat_|total_error_replies|total_commands_processed|keyspace_")
TIMES = re.compile(r"usec=\d+,usec_per_call=[0-9.]+,")


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class Pipelines(TestCase):
    seconds = 20

    def serve(self, **flags):
        self.servers = [Server(stock=stock, **flags) for stock in (False, True)]
        self.observers = []
        for server in self.servers:
            self.addCleanup(server.close)
            observer = server.client()
            self.addCleanup(observer.close)
            observer.raw("AUTH", PASSWORD)
            self.observers.append(observer)

    def run_rounds(self, rounds):
        for number in range(rounds):
            seed = TARGET.seed * 100_000 + number
            draw = DrawPipeline(random.Random(seed))
            requests, (last, is_ended_by_server, behind) = draw.requests(), draw.end()
            if behind:
                # If the server closes the connection while bytes are unread, the connection is
                # reset. This drops replies that are not sent yet.
                requests = [request for request in requests if len(request) < LARGE_SIZE_MIN]
            cuts, pause = draw.cuts(len(b"".join([*requests, last, *behind]))), draw.one_of(0, 0, 0, 0.001)

            def difference(requests):
                whole = [*requests, last, *behind]
                return self.difference(whole, cuts, pause, is_ended_by_server)

            found = difference(requests)
            if found is not None:
                requests = cut_down(requests, difference)
                lines = "\n".join(f"  {brief(request)}" for request in [*requests, last, *behind])
                found = "\n".join(map(brief, difference(requests) or found))
                self.fail(f"seed {seed}, cut at {cuts}:\n{lines}\nSlimIO's result, and that of stock:\n{found}")

    def difference(self, requests, cuts, pause, is_ended_by_server):
        """Sends these requests to both servers, whose databases are empty. Returns the first
        difference, or None."""
        for observer in self.observers:
            observer.pipeline([["FLUSHALL"], ["CONFIG", "RESETSTAT"]])
        if any(b"REPLY" in request for request in requests):
            # See WAITS_FOR_EVER.
            is_ended_by_server = False
        replies = [exchange(server, requests, cuts, pause, is_ended_by_server) for server in self.servers]
        if replies[0] != replies[1]:
            return replies
        counts = [counted(observer) for observer in self.observers]
        if counts[0] != counts[1]:
            return [[line for line in counts[i] if line not in counts[1 - i]] for i in (0, 1)]
        found = different_state(self.observers)
        for observer in self.observers:
            observer("SELECT", 0)
        return found

    def test_replies_counters_and_state_are_those_of_redis(self):
        self.serve()
        self.run_rounds(TARGET.rounds or ROUNDS)

    def test_with_a_password(self):
        self.serve(requirepass=PASSWORD)
        self.run_rounds(TARGET.rounds or ROUNDS // 2)

    @slimio_only
    def test_what_is_other_than_in_redis(self):
        self.serve()
        for data, why, ours, theirs in OTHERWISE:
            with self.subTest(why):
                for server, wanted in zip(self.servers, (ours, theirs)):
                    # If the connection must stay open, half a second is a long enough test. If the
                    # server must close it, the close may take longer on a busy machine.
                    timeout = 0.5 if wanted[1] == "open" else TIMEOUT_SECONDS
                    self.assertEqual(exchange(server, [data], [], 0, True, timeout), wanted)


def exchange(server, requests, cuts, pause, is_ended_by_server, timeout=TIMEOUT_SECONDS):
    """Everything that the server replies, and how the connection ends."""
    data = b"".join(requests)
    cuts = [cut for cut in cuts if cut < len(data)]
    replies, end = b"", "closed"
    with server.client(timeout) as client:
        try:
            for start, stop in zip([0, *cuts], [*cuts, len(data)]):
                client.send(data[start:stop])
                if pause:
                    time.sleep(pause)
            if not is_ended_by_server:
                client.socket.shutdown(socket.SHUT_WR)
        except OSError:
            # The server closed the connection before everything was sent.
            pass
        try:
            while piece := client.socket.recv(1 << 16):
                replies += piece
        except ConnectionResetError:
            # The server closed the connection without reading the requests after the last one
            # that it answered. This resets the connection.
            pass
        except TimeoutError:
            end = "open"
    return HELLO_OF_WHOM.sub(rb"(who)\1", replies), end


def counted(client):
    """The lines of INFO that are compared."""
    lines = client("INFO", "everything").decode().split("\r\n")
    return sorted(TIMES.sub("", line) for line in lines if COUNTED.match(line))


def cut_down(requests, difference):
    """Reduces the requests as long as they still show a difference."""
    size = len(requests) // 2
    while size:
        at = 0
        while at < len(requests):
            shorter = requests[:at] + requests[at + size :]
            if difference(shorter) is not None:
                requests = shorter
            else:
                at += size
        size //= 2
    return requests
