import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.BooleanSupplier;

import redis.clients.jedis.AbstractPipeline;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.resps.ScanResult;

/**
 * Does what programs that use Jedis usually do. The argument is the port of the server.
 *
 * <p>This program prints "restart" when the server is to be killed and started again. It goes on
 * when it reads a line. After that, the same connection pool must find what was written before.
 */
public final class Scenario {
    private static final Duration PATIENCE = Duration.ofSeconds(20);

    private final JedisPooled jedis;

    private Scenario(int port) {
        var pool = new ConnectionPoolConfig();
        pool.setTestOnBorrow(true);
        var config = DefaultJedisClientConfig.builder().protocol(RedisProtocol.RESP3).build();
        jedis = new JedisPooled(pool, new HostAndPort("127.0.0.1", port), config);
    }

    private static void same(Object expected, Object found) {
        if (!Objects.equals(expected, found)) {
            throw new AssertionError("found " + found + " instead of " + expected);
        }
    }

    private static void until(String what, BooleanSupplier isSo) throws InterruptedException {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (!isSo.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError(what + " did not come in time");
            }
            Thread.sleep(10);
        }
    }

    private String text(Protocol.Command command, String... args) {
        Object reply = jedis.sendCommand(command, args);
        return new String((byte[]) reply, java.nio.charset.StandardCharsets.UTF_8);
    }

    private String info(String name) {
        for (String line : text(Protocol.Command.INFO, "persistence").split("\r\n")) {
            if (line.startsWith(name + ":")) {
                return line.substring(name.length() + 1);
            }
        }
        throw new AssertionError("INFO has no field " + name);
    }

    private void values() {
        same("OK", jedis.set("text", "hello"));
        same("hello", jedis.get("text"));
        same(null, jedis.get("none"));
        same(0L, jedis.setnx("text", "other"));
        same(11L, jedis.append("text", " world"));
        same("world", jedis.getrange("text", -5, -1));
        same(42L, jedis.incrBy("number", 42));
        same(42.5, jedis.incrByFloat("number", 0.5));
        List<String> found = jedis.mget("text", "none", "number");
        same("hello world", found.get(0));
        same(null, found.get(1));
        same("42.5", found.get(2));
        same("hello world", jedis.setGet("text", "hello world", SetParams.setParams().keepTtl()));
        try {
            jedis.hget("text", "field");
            throw new AssertionError("a wrong type is no error");
        } catch (JedisDataException error) {
            same(true, error.getMessage().startsWith("WRONGTYPE"));
        }
    }

    private void pipelines() {
        try (AbstractPipeline pipe = jedis.pipelined()) {
            for (int number = 0; number < 1000; number++) {
                pipe.set("piped:" + number, Integer.toString(number));
            }
            Response<String> last = pipe.get("piped:999");
            pipe.sync();
            same("999", last.get());
        }
        Set<String> keys = new TreeSet<>();
        String cursor = ScanParams.SCAN_POINTER_START;
        do {
            ScanResult<String> some = jedis.scan(cursor, new ScanParams().match("piped:*").count(70));
            keys.addAll(some.getResult());
            cursor = some.getCursor();
        } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
        same(1000, keys.size());
    }

    private void transactions() {
        try (AbstractTransaction transaction = jedis.multi()) {
            transaction.set("account", "100");
            Response<Long> total = transaction.decrBy("account", 30);
            same(2, transaction.exec().size());
            same(70L, total.get());
        }
        for (boolean isDisturbed : new boolean[] {true, false}) {
            try (AbstractTransaction transaction = jedis.transaction(false)) {
                transaction.watch("account");
                if (isDisturbed) {
                    jedis.set("account", "1000");
                }
                transaction.multi();
                transaction.decr("account");
                same(isDisturbed, transaction.exec() == null);
            }
        }
        same("999", jedis.get("account"));
    }

    private void hashes() {
        same(2L, jedis.hset("user", Map.of("name", "Ada", "age", "36")));
        same(37L, jedis.hincrBy("user", "age", 1));
        same(Map.of("name", "Ada", "age", "37"), jedis.hgetAll("user"));
        for (int number = 0; number < 300; number++) {
            same(1L, jedis.hset("many", "f" + number, Integer.toString(number)));
        }
        Set<String> fields = new TreeSet<>();
        String cursor = ScanParams.SCAN_POINTER_START;
        do {
            var some = jedis.hscan("many", cursor, new ScanParams().match("f*").count(20));
            some.getResult().forEach(entry -> fields.add(entry.getKey() + "=" + entry.getValue()));
            cursor = some.getCursor();
        } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
        same(300, fields.size());
        same(2L, jedis.hdel("many", "f0", "f1", "none"));
        var random = jedis.hrandfieldWithValues("many", 3);
        same(3, random.size());
        same("f" + random.get(0).getValue(), random.get(0).getKey());
    }

    private void expiry() throws InterruptedException {
        jedis.psetex("short", 50, "v");
        until("the end of a key", () -> jedis.get("short") == null);
        jedis.setex("long", 3600, "v");
        long left = jedis.ttl("long");
        same(true, left > 3540 && left <= 3600);
        same(1L, jedis.persist("long"));
        same(-1L, jedis.ttl("long"));
        same(1L, jedis.expireAt("long", 4102444800L));
    }

    private void snapshots() throws InterruptedException {
        int round = 0;
        for (var command : List.of(Protocol.Command.BGSAVE, Protocol.Command.BGREWRITEAOF)) {
            same(true, text(command).startsWith("Background"));
            round++;
            for (int number = 0; number < 1000; number++) {
                jedis.set("piped:" + number, Integer.toString(number + round));
            }
            until("the snapshot", () -> {
                String running = info("rdb_bgsave_in_progress") + info("aof_rewrite_in_progress");
                return (running + info("aof_rewrite_scheduled")).equals("000");
            });
        }
        same("ok", info("rdb_last_bgsave_status"));
        same("ok", info("aof_last_bgrewrite_status"));
    }

    private void check() {
        same("hello world", jedis.get("text"));
        same("999", jedis.get("account"));
        same("37", jedis.hget("user", "age"));
        same(298L, jedis.hlen("many"));
        same(4102444800L, jedis.expireTime("long"));
        for (int number = 0; number < 1000; number++) {
            same(Integer.toString(number + 2), jedis.get("piped:" + number));
        }
    }

    public static void main(String[] args) throws Exception {
        var scenario = new Scenario(Integer.parseInt(args[0]));
        same(true, scenario.text(Protocol.Command.CLIENT, "INFO").contains(" resp=3"));
        scenario.values();
        scenario.pipelines();
        scenario.transactions();
        scenario.hashes();
        scenario.expiry();
        scenario.snapshots();
        scenario.check();
        System.out.println("restart");
        System.in.read();
        scenario.check();
        scenario.jedis.set("text", "again");
        scenario.jedis.close();
        System.out.println("done");
    }
}
