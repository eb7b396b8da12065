"""Gives each numeric argument numbers at and beyond the bounds of its type, and texts that are
nearly numbers. The replies are word for word those of stock redis-server."""

import unittest

from harness.server import Server
from harness.target import TestCase, stock_is_installed

NUMBERS = [
    "0", "1", "-1", "15", "16", "2147483647", "2147483648", "-2147483648", "-2147483649", "4294967295", "4294967296",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "18446744073709551615", "18446744073709551616", "1" * 30, "", " 1", "1 ", "+1", "01", "-0", "1.0", "1e3", "0x1", "x",
]
# A number takes the place of `?`.
COMMANDS = [
    "SELECT ?", "MOVE text ?", "SWAPDB ? 0", "SWAPDB 0 ?", "SWAPDB ? ?", "COPY text new DB ?", "HELLO ?",
    "CLIENT KILL ID ?", "CLIENT LIST ID ?", "CLIENT UNBLOCK ?", "SLOWLOG GET ?",
    "HSCAN hash 0 COUNT ?", "EXPIRE text ?", "PEXPIRE text ?", "EXPIREAT text ?", "PEXPIREAT text ?", "SETEX text ? v",
    "PSETEX text ? v", "SET text v EX ?", "SET text v PXAT ?", "GETEX text EX ?", "GETRANGE text ? -1",
    "GETRANGE text 0 ?", "SUBSTR text ? ?", "INCRBY number ?", "DECRBY number ?", "HINCRBY hash f ?",
    "HRANDFIELD none ?", "MEMORY USAGE none SAMPLES ?", "CONFIG SET timeout ?", "CONFIG SET slowlog-max-len ?",
    "CONFIG SET tcp-keepalive ?", "CONFIG SET lfu-decay-time ?", "CONFIG SET repl-backlog-ttl ?",
    "CONFIG SET slowlog-log-slower-than ?", "CONFIG SET list-max-ziplist-size ?", "CONFIG SET tls-session-cache-size ?",
    "CONFIG SET latency-monitor-threshold ?", "CONFIG SET replica-priority ?", "CONFIG SET repl-timeout ?",
]


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class OutOfRange(TestCase):
    seconds = 5

    def test_each_number_as_each_argument(self):
        servers = Server(), Server(stock=True)
        for server in servers:
            self.addCleanup(server.close)
        for command in COMMANDS:
            for number in NUMBERS:
                words = [number if word == "?" else word for word in command.split(" ")]
                with self.subTest(command, number=number):
                    self.assertEqual(*(self.reply(server, words) for server in servers))

    def reply(self, server, words):
        with server.client() as client:
            client("CONFIG", "SET", "slowlog-log-slower-than", "-1")
            client("SLOWLOG", "RESET")
            client("FLUSHALL")
            client("SET", "text", "some text")
            client("SET", "number", "7")
            client("HSET", "hash", "f", "7")
            kind, payload = client.raw(*words)
            # HELLO's reply describes the server itself, so it differs.
            return kind, "" if words[0] == "HELLO" and kind != b"-" else payload
