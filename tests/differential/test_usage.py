"""Under LFU, each command must count as the same number of uses of a key as in stock
redis-server."""

import unittest

from harness.server import Server
from harness.target import TestCase, stock_is_installed

# No value is a number below 10000, because all keys with such a number share one object in stock,
# and so share its count of uses.
KEYS = {
    "text": ["SET", "text", "some text"],
    "number": ["SET", "number", "1234567"],
    "brief": ["SET", "brief", "7654321", "EX", "1000"],
    "hash": ["HSET", "hash", "f", "1234567", "g", "x"],
}
LOOKED_AT = [(0, key) for key in (*KEYS, "new", "newer")] + [(1, key) for key in ("text", "new")]
COMMANDS = """
GET text | GET none | GET hash | GETDEL text | GETDEL hash | GETEX text | GETEX text EX 100 | GETEX brief PERSIST
GETEX text PERSIST | GETSET text w | GETSET new w | GETSET hash w | GETRANGE text 0 1 | SUBSTR text 0 1
STRLEN text | STRLEN hash | MGET text number none | MGET text text
SET text w | SET new w | SET text w GET | SET new w GET | SET hash w GET | SET text w NX | SET text w NX GET
SET new w NX | SET text w XX | SET new w XX | SET text w XX GET | SET brief w KEEPTTL | SET text w EX 100
SET text w PX 100000 GET | SET hash w | SETNX text w | SETNX new w | SETEX text 100 w | SETEX new 100 w
PSETEX text 100000 w | MSET text w number w new w | MSET text w text x | MSETNX text w new w | MSETNX new w newer w
SETRANGE text 2 w | SETRANGE new 2 w | SETRANGE number 2 w | SETRANGE hash 2 w | APPEND text w | APPEND new w
APPEND number 1 | APPEND hash w | INCR number | INCR new | INCR text | INCR hash | DECR number | INCRBY number 5
DECRBY number 5 | INCRBYFLOAT number 0.5 | INCRBYFLOAT new 0.5 | INCRBYFLOAT text 0.5
EXISTS text | EXISTS text text none | TYPE text | TTL brief | PTTL brief | EXPIRETIME brief | PEXPIRETIME brief
EXPIRE text 100 | EXPIRE brief 5 GT | EXPIRE text 5 XX | PEXPIRE text 100000 | EXPIREAT text 4102444800
PEXPIREAT text 4102444800000 | EXPIRE text -1 | PERSIST brief | PERSIST text | TOUCH text number none
COPY text new | COPY text number | COPY text number REPLACE | COPY text new DB 1 | COPY none new
RENAME text new | RENAME text number | RENAME text text | RENAMENX text new | RENAMENX text number | MOVE text 1
DEL text | UNLINK text | SCAN 0 COUNT 100 | KEYS * | OBJECT ENCODING text | OBJECT FREQ text | OBJECT REFCOUNT text
MEMORY USAGE text | DEBUG OBJECT text | WATCH text | UNWATCH
HSET hash f w | HSET new f w | HSET hash new w | HSET text f w | HMSET hash f w | HSETNX hash f w | HSETNX hash new w
HGET hash f | HGET hash none | HGET text f | HMGET hash f g | HGETALL hash | HKEYS hash | HVALS hash | HLEN hash
HSTRLEN hash f | HEXISTS hash f | HINCRBY hash f 5 | HINCRBY new f 5 | HINCRBY hash g 5 | HINCRBYFLOAT hash f 0.5
HDEL hash f | HDEL hash none | HDEL hash f g | HSCAN hash 0 | HRANDFIELD hash | HRANDFIELD hash 2 | HRANDFIELD hash -2
"""


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class Uses(TestCase):
    seconds = 5

    def test_each_command_counts_as_often_as_in_stock(self):
        # With this factor each use counts, and without a decay no use is forgotten.
        flags = {"maxmemory_policy": "allkeys-lfu", "lfu_log_factor": 0, "lfu_decay_time": 0,
                 "enable_debug_command": "yes"}
        servers = [Server(stock=stock, save="", **flags) for stock in (False, True)]
        for server in servers:
            self.addCleanup(server.close)
        for command in [part.strip() for line in COMMANDS.splitlines() for part in line.split("|") if part.strip()]:
            with self.subTest(command):
                self.assertEqual(*(self.counts(server, command.split()) for server in servers))

    def counts(self, server, command):
        """The keys' use counts after the command has been sent three times."""
        with server.client() as client:
            client("FLUSHALL")
            for made in KEYS.values():
                client(*made)
            for _ in range(3):
                client.raw(*command)
            found = {}
            for db, key in LOOKED_AT:
                client("SELECT", db)
                found[db, key] = client.raw("OBJECT", "FREQ", key)[1]
        return found
