"""Random commands, some right, some nearly right, some wrong, so that they reach every branch.

A command is a list of strings or bytes. Two servers never run a command in the same millisecond. If
a key expired during a run, their replies could differ, so all expiries are before or after the run.
Two expiries are never so close that their order could differ between the servers. This matters for
`EXPIRE … GT`, which compares two expiries.
"""

import time

from differential import list_commands, payloads, set_commands
from differential.list_commands import DrawLists
from differential.set_commands import DrawSets

BLOCKING = ("blpop", "brpop", "blmove", "blmpop", "brpoplpush")
KEYS = ["a", "b", "c", "d", "e", "{tag}1", "key with space", "k\x00\r\n"]
INTEGERS = [0, 1, -1, 2, 7, 10, 100, 2**31, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1]
NOT_INTEGERS = ["", " 1", "1 ", "+1", "01", "1.0", "1e3", "abc", "0x10", "--1", "9" * 25]
FLOATS = ["0.1", "3.0e3", "-2.5", "1e-7", "5e-324", "1e308", "-1e308", "inf", "-inf", "nan", "10.5"]
STRINGS = ["", "x", "hello world", b"\x01\xff\xfe", "ü", "a" * 43, "b" * 44, "c" * 45, "d" * 300]
WRONG_TIMES = [0, -1, -(2**63), 2**63 - 1, 2**63, "abc", "", "1.5", 9223372036854775, 2**53]
PATTERNS = ["*", "?", "a*", "[ab]", "[^a]", "[a-c]", "{tag}*", "*[", "\\*", "", "k*\n", "a", "*e*e*"]
DBS = [0, 0, 0, 1, 2, 15]
WRONG_DBS = [16, -1, "abc", "", 99999999999999999999]


class Draw(DrawSets, DrawLists):
    """Draws commands from a random source; the same seed gives the same commands."""

    def __init__(self, random):
        self.random = random
        self.now = int(time.time())

    def names(self):
        return NAMES

    def command(self):
        name = self.random.choice(self.names())
        command = [self.cased(name), *getattr(self, name.lower())()]
        return self.spoilt(command)

    def spoilt(self, command):
        """Now and then drops or adds an argument. A command that may block stays as it is: its last
        argument is its timeout, and after a change, another argument would be taken for the
        timeout."""
        if str(command[0]).lower() in BLOCKING:
            return command
        chance = self.random.random()
        if chance < 0.03 and len(command) > 1:
            command.pop(self.random.randrange(1, len(command)))
        elif chance < 0.06:
            command.insert(self.random.randrange(1, len(command) + 1), self.value())
        return command

    def cased(self, word):
        return self.random.choice([word, word, word.lower(), word.title()])

    def one_of(self, *choices):
        return self.random.choice(choices)

    def some(self, draw, most=4):
        return [draw() for _ in range(self.random.randint(1, most))]

    # Single arguments.

    def key(self):
        return self.random.choice(KEYS)

    def integer(self):
        if self.random.random() < 0.15:
            return self.random.choice(NOT_INTEGERS)
        return self.random.choice(INTEGERS)

    def small(self):
        if self.random.random() < 0.1:
            return self.integer()
        return self.random.choice([0, 1, 2, 3, 5, 10, -1, -2, -5, 40, 1000])

    def value(self):
        return self.random.choice([self.random.choice(STRINGS), self.integer(), self.float()])

    def content(self):
        """A value to set a key to. Unlike a result of `value`, it may have a zero byte. `spoilt`
        puts a result of `value` anywhere in a command, even where Redis's C code takes a zero byte
        for the end of the string."""
        return self.random.choice([self.value(), self.value(), self.value(), b"\x00\x01\r\n\x00"])

    def float(self):
        if self.random.random() < 0.1:
            return self.random.choice(NOT_INTEGERS)
        if self.random.random() < 0.3:
            return repr(self.random.uniform(-1e6, 1e6))
        return self.random.choice(FLOATS)

    def seconds(self):
        if self.random.random() < 0.25:
            return self.random.choice(WRONG_TIMES)
        return self.random.randrange(1, 10_000) * 100

    def milliseconds(self):
        seconds = self.seconds()
        return seconds * 1000 if isinstance(seconds, int) and abs(seconds) < 10**9 else seconds

    def date(self):
        seconds = self.seconds()
        return seconds + self.now + 50 if isinstance(seconds, int) and seconds > 0 else seconds

    def date_milliseconds(self):
        date = self.date()
        return date * 1000 if isinstance(date, int) and abs(date) < 10**11 else date

    def db(self):
        return self.random.choice(DBS if self.random.random() < 0.9 else WRONG_DBS)

    def expiry_option(self):
        return self.one_of(
            ["EX", self.seconds()],
            ["PX", self.milliseconds()],
            ["EXAT", self.date()],
            ["PXAT", self.date_milliseconds()],
        )

    # The arguments of whole commands. Each method has the name of its command.

    def set(self):
        options = []
        for _ in range(self.one_of(0, 0, 0, 1, 1, 2, 3)):
            option = self.one_of(["NX"], ["XX"], ["GET"], ["KEEPTTL"], ["nosuch"], self.expiry_option())
            options += [self.cased(str(option[0])), *option[1:]]
        return [self.key(), self.content(), *options]

    def get(self):
        return [self.key()]

    getdel = strlen = dump = type = ttl = pttl = expiretime = pexpiretime = persist = get
    incr = decr = get

    def getset(self):
        return [self.key(), self.content()]

    setnx = append = getset

    def getex(self):
        option = self.one_of([], ["PERSIST"], ["nosuch"], self.expiry_option(), self.expiry_option())
        return [self.key(), *option]

    def setex(self):
        return [self.key(), self.seconds(), self.value()]

    def psetex(self):
        return [self.key(), self.milliseconds(), self.value()]

    def mget(self):
        return self.some(self.key)

    def mset(self):
        return [arg for _ in range(self.one_of(1, 2, 3)) for arg in (self.key(), self.value())]

    msetnx = mset

    def incrby(self):
        return [self.key(), self.integer()]

    decrby = incrby

    def incrbyfloat(self):
        return [self.key(), self.float()]

    def getrange(self):
        return [self.key(), self.small(), self.small()]

    substr = getrange

    def setrange(self):
        offset = self.one_of(0, 1, 5, 100, -1, 536870912, 2**63 - 1, "abc")
        return [self.key(), offset, self.one_of("", "x", "patch")]

    def del_(self):
        return self.some(self.key)

    unlink = exists = touch = del_

    def keys(self):
        return [self.random.choice(PATTERNS)]

    def scan(self):
        # The whole scan must be one step, because cursors differ between the servers.
        options = [["COUNT", 100000]]
        if self.random.random() < 0.5:
            options.append(["MATCH", self.random.choice(PATTERNS)])
        if self.random.random() < 0.3:
            options.append(["TYPE", self.one_of("string", "hash", "set", "list", "nosuch", "STRING")])
        if self.random.random() < 0.1:
            options.append(self.one_of(["COUNT", 0], ["COUNT", "abc"], ["nosuch"], ["MATCH"]))
        self.random.shuffle(options)
        cursor = self.one_of(0, 0, 0, 0, "abc", "")
        return [cursor, *(arg for option in options for arg in option)]

    def field(self):
        if self.random.random() < 0.1:
            return self.value()
        return f"field{self.random.randrange(self.random.choice([4, 300]))}"

    def hset(self):
        return [self.key(), *(arg for _ in range(self.one_of(1, 1, 2, 5)) for arg in (self.field(), self.value()))]

    hmset = hset

    def hsetnx(self):
        return [self.key(), self.field(), self.value()]

    def hget(self):
        return [self.key(), self.field()]

    hexists = hstrlen = hget

    def hmget(self):
        return [self.key(), *self.some(self.field)]

    hdel = hmget

    def hgetall(self):
        return [self.key()]

    hkeys = hvals = hlen = hgetall

    def hincrby(self):
        return [self.key(), self.field(), self.integer()]

    def hincrbyfloat(self):
        return [self.key(), self.field(), self.float()]

    def hrandfield(self):
        # With a negative count such as -5, fields may repeat, and the reply has exactly 5 of them.
        count = self.one_of(0, 1, 3, -1, -5, 1000, -1000, "abc", "", -(2**63), 2**63)
        options = self.one_of([], [], ["WITHVALUES"], ["withvalues"], ["nosuch"], ["WITHVALUES", "more"])
        return [self.key(), *self.one_of([], [count, *options], [count, *options])]

    def hscan(self):
        # The whole scan must be one step, because cursors differ between the servers.
        options = [["COUNT", 100000]]
        if self.random.random() < 0.5:
            options.append(["MATCH", self.random.choice([*PATTERNS, "field1*"])])
        if self.random.random() < 0.15:
            options.append(self.one_of(["COUNT", 0], ["COUNT", "abc"], ["nosuch"], ["MATCH"], ["TYPE", "hash"]))
        self.random.shuffle(options)
        cursor = self.one_of(0, 0, 0, 0, "abc", "")
        return [self.key(), cursor, *(arg for option in options for arg in option)]

    def none(self):
        return []

    dbsize = randomkey = none
    multi = exec = discard = unwatch = none

    def rename(self):
        return [self.key(), self.key()]

    renamenx = rename

    def move(self):
        return [self.key(), self.db()]

    def swapdb(self):
        return [self.db(), self.db()]

    def copy(self):
        options = self.one_of([], [], ["REPLACE"], ["DB", self.db()], ["DB", self.db(), "REPLACE"])
        return [self.key(), self.key(), *options]

    def restore(self):
        options = []
        for _ in range(self.one_of(0, 0, 1, 1, 2)):
            option = self.one_of(["REPLACE"], ["REPLACE"], ["ABSTTL"], ["IDLETIME", self.small()], ["FREQ", self.small()], ["no"])
            options += [self.cased(option[0]), *option[1:]]
        time = self.date_milliseconds() if any(str(option).lower() == "absttl" for option in options) else self.milliseconds()
        if time == 2**63 - 1:
            # In Redis, the sum of the largest number and the time of day overflows, and the key
            # expires at once. In SlimIO the key stays. So 0 is used instead.
            time = 0
        return [self.key(), self.one_of(0, 0, time), payloads.draw(self.random), *options]

    def expire(self):
        options = self.one_of([], [], ["NX"], ["XX"], ["GT"], ["LT"], ["NX", "XX"], ["GT", "LT"], ["no"])
        return [self.key(), self.seconds(), *options]

    def pexpire(self):
        return [self.key(), self.milliseconds(), *self.expire()[2:]]

    def expireat(self):
        return [self.key(), self.date(), *self.expire()[2:]]

    def pexpireat(self):
        return [self.key(), self.date_milliseconds(), *self.expire()[2:]]

    def select(self):
        return [self.db()]

    def watch(self):
        return self.some(self.key, 2)

    def ping(self):
        return self.one_of([], [self.value()])

    def echo(self):
        return [self.value()]

    def flushdb(self):
        return self.one_of([], ["ASYNC"], ["SYNC"], ["nosuch"])

    flushall = flushdb

    def hello(self):
        # Switches between RESP2 and RESP3, and tries wrong versions and options.
        return self.one_of(["2"], ["3"], ["4"], ["abc"], ["3", "SETNAME", "me"], ["2", "SETNAME"])

    def client(self):
        return self.one_of(
            ["GETNAME"], ["SETNAME", self.one_of("", "me", "two words", "new\nline")], ["nosuch"], []
        )

    def reset(self):
        return []

    def nosuchcommand(self):
        return self.some(self.value)


# `Draw.command` looks up a method by the command's name. No method can be defined as `del`, because
# that is a keyword of Python.
setattr(Draw, "del", Draw.del_)

# Commands by weight. A command of weight 20 is drawn 20 times as often as one of weight 1.
WEIGHTS = {
    20: "SET",
    6: "GET EXISTS DEL MULTI EXEC INCRBYFLOAT",
    12: "HSET",
    3: "HGET HMGET HDEL HGETALL HSETNX HINCRBY HINCRBYFLOAT HLEN HSCAN",
    2: "DUMP HMSET HKEYS HVALS HSTRLEN HEXISTS HRANDFIELD",
    4: """GETSET GETDEL GETEX SETNX SETEX PSETEX MGET MSET MSETNX APPEND STRLEN INCR DECR INCRBY DECRBY
        GETRANGE SETRANGE UNLINK TYPE RENAME RENAMENX COPY EXPIRE PEXPIRE EXPIREAT PEXPIREAT TTL PTTL
        EXPIRETIME PEXPIRETIME PERSIST WATCH SELECT SCAN KEYS RESTORE""",
    1: "SUBSTR MOVE SWAPDB TOUCH DBSIZE RANDOMKEY DISCARD UNWATCH PING ECHO FLUSHDB FLUSHALL HELLO CLIENT RESET NOSUCHCOMMAND",
}
NAMES = [name for weight, names in WEIGHTS.items() for name in names.split() for _ in range(weight)]
NAMES += set_commands.NAMES + list_commands.NAMES

# At each of these sizes, a server changes how it receives, keeps or cuts a large string.
LARGE_SIZES = [32 << 10, 256 << 10, 512 << 10]
LARGE_NAMES = "SET SET GET GETSET GETDEL GETEX APPEND APPEND SETRANGE SETRANGE GETRANGE STRLEN COPY RENAME".split()


class DrawOfSets(Draw):
    """Commands on sets, and some on keys of any type. All commands use the same few keys, so the
    sets have many members in common, and often change their encoding."""

    def names(self):
        return set_commands.NAMES * 3 + "DEL COPY RENAME MULTI EXEC EXEC HELLO TYPE EXPIRE SELECT SET".split()

    def key(self):
        return self.random.choice(KEYS[:5])


class DrawOfLists(DrawOfSets):
    """Like `DrawOfSets`, but for lists."""

    def names(self):
        return list_commands.NAMES * 3 + "DEL COPY RENAME MULTI EXEC EXEC HELLO TYPE EXPIRE SELECT SET".split()


class DrawLarge(Draw):
    """Commands on values of some hundred kilobytes. Many of the sizes, and of the places where
    values are cut or joined, are near one of the `LARGE_SIZES`."""

    def names(self):
        return LARGE_NAMES

    def key(self):
        return self.random.choice(KEYS[:3])

    def size(self):
        size = self.random.choice(LARGE_SIZES)
        return size + self.random.choice([-1, 0, 1, -14, 5, self.random.randrange(-size, 9999)])

    def value(self):
        if self.random.random() < 0.3:
            return super().value()
        # Every place in the value looks different, so that a piece in the wrong place is noticed.
        first = self.random.randrange(10**6)
        size = self.size()
        return "".join(f"{number:8}" for number in range(first, first + size // 8 + 1))[:size]

    def setrange(self):
        return [self.key(), self.size(), self.random.choice(["", "x", "patch", self.value()])]

    def small(self):
        return self.random.choice([0, -1, self.size(), -self.size()])
