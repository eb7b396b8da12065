"""Tests the unchanged client library redis-py."""

import redis

from harness.server import Server
from harness.target import TestCase
from harness.wait import until


class RedisPy(TestCase):
    seconds = 3

    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.close)
        self.redis = redis.Redis(port=self.server.port, socket_timeout=20)
        self.addCleanup(self.redis.close)

    def test_strings(self):
        r = self.redis
        self.assertTrue(r.set("k", "v", ex=100))
        self.assertEqual(r.get("k"), b"v")
        self.assertTrue(0 < r.ttl("k") <= 100)
        self.assertIsNone(r.set("k", "w", nx=True))
        self.assertEqual(r.set("k", "w", get=True, keepttl=True), b"v")
        self.assertEqual(r.incrby("n", 41), 41)
        self.assertEqual(r.incr("n"), 42)
        self.assertEqual(r.incrbyfloat("f", 0.1), 0.1)
        self.assertEqual(r.append("k", "xyz"), 4)
        self.assertEqual(r.getrange("k", 1, -2), b"xy")
        self.assertEqual(r.mset({"a": 1, "b": 2}), True)
        self.assertEqual(r.mget("a", "b", "c"), [b"1", b"2", None])
        self.assertEqual(r.getdel("a"), b"1")
        self.assertEqual(r.delete("b", "c"), 1)

    def test_keys(self):
        r = self.redis
        for number in range(200):
            r.set(f"key:{number}", number)
        self.assertEqual(len(set(r.scan_iter(match="key:*", count=7))), 200)
        self.assertEqual(r.dbsize(), 200)
        self.assertEqual(len(r.keys("key:1?")), 10)
        self.assertIn(r.randomkey().split(b":")[0], b"key")
        self.assertTrue(r.rename("key:1", "moved"))
        self.assertTrue(r.copy("moved", "again"))
        self.assertEqual(r.type("again"), b"string")
        self.assertTrue(r.pexpire("again", 100_000))
        self.assertTrue(r.persist("again"))
        self.assertTrue(r.flushdb())
        self.assertEqual(r.dbsize(), 0)

    def test_pipeline_and_transaction(self):
        with self.redis.pipeline(transaction=True) as pipe:
            self.assertEqual(pipe.set("n", 1).incr("n").get("n").execute(), [True, 2, b"2"])

    def test_optimistic_locking(self):
        self.redis.set("n", 1)
        with self.redis.pipeline() as pipe:
            pipe.watch("n")
            seen = int(pipe.get("n"))
            self.redis.set("n", 10)
            pipe.multi()
            pipe.set("n", seen + 1)
            with self.assertRaises(redis.WatchError):
                pipe.execute()

        def double(pipe):
            seen = int(pipe.get("n"))
            pipe.multi()
            pipe.incrby("n", seen)

        self.assertEqual(self.redis.transaction(double, "n"), [20])

    def test_errors(self):
        self.redis.set("k", "v")
        with self.assertRaisesRegex(redis.ResponseError, "value is not an integer or out of range"):
            self.redis.incr("k")
        with self.assertRaisesRegex(redis.ResponseError, "wrong number of arguments"):
            self.redis.execute_command("GET")

    def test_server_commands(self):
        r = self.redis
        info = r.info()
        self.assertIn("redis_version", info)
        # The server may not have seen yet that the harness's own client has gone.
        until(lambda: r.info()["connected_clients"] == 1, what="redis-py being the only client")
        self.assertTrue(r.client_setname("me"))
        self.assertEqual(r.client_getname(), "me")
        self.assertEqual([c["name"] for c in r.client_list()], ["me"])
        self.assertGreater(r.client_id(), 0)
        self.assertEqual(r.config_get("appendfsync"), {"appendfsync": "everysec"})
        self.assertTrue(r.config_set("appendfsync", "always"))
        self.assertEqual(r.config_get("appendfsync"), {"appendfsync": "always"})
        self.assertTrue(r.config_resetstat())
        self.assertGreater(len(r.command()), 50)
        self.assertEqual(len(r.time()), 2)
        self.assertEqual(r.echo("hello"), b"hello")

    def test_password(self):
        self.redis.config_set("requirepass", "secret")
        with redis.Redis(port=self.server.port, password="secret") as inside:
            self.assertTrue(inside.ping())
        with redis.Redis(port=self.server.port, password="wrong") as outside:
            with self.assertRaisesRegex(redis.RedisError, "invalid username-password"):
                outside.ping()

    def test_large_values(self):
        value = bytes(range(256)) * (64 * 1024)
        self.redis.set("big", value)
        self.assertEqual(self.redis.get("big"), value)
        self.assertEqual(self.redis.strlen("big"), len(value))
        self.assertEqual(self.redis.setrange("big", 5, b"xyz"), len(value))
        self.assertEqual(self.redis.getrange("big", 3, 9), b"\x03\x04xyz\x08\x09")
