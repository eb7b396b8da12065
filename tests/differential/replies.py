"""Decides whether two replies count as the same: they must be equal on the wire. Times may differ a
little, and some commands may list their elements in any order."""

# Two replies that depend on the time may differ by at most this much. They differ because the two
# servers are asked one after the other. The tests' random commands have times that are at least 50
# seconds apart, so a wrong time differs by more than the slack.
SLACK_MS = 20_000
CLOCK_SLACK = {"ttl": 20, "expiretime": 20, "pttl": SLACK_MS, "pexpiretime": SLACK_MS}


def near(ours, theirs, slack):
    if ours is None or theirs is None or ours < 0 or theirs < 0:
        return ours == theirs
    return abs(ours - theirs) <= slack


def same(name, ours, theirs, queued=()):
    """Whether two replies to `name` agree. `queued` has the names of the commands that an EXEC
    runs."""
    if name == "exec" and ours[0] == theirs[0] == b"*" and ours[1] and theirs[1]:
        return len(ours[1]) == len(theirs[1]) and all(
            same(inner, *pair) for inner, *pair in zip(queued, ours[1], theirs[1])
        )
    if ours[0] != theirs[0]:
        return False
    if name in CLOCK_SLACK and ours[0] == b":":
        return near(ours[1], theirs[1], CLOCK_SLACK[name])
    if name == "randomkey":
        return (ours[1] is None) == (theirs[1] is None)
    if ours[0] in b"-+" or ours[1] is None or theirs[1] is None:
        return ours == theirs
    if name in ("keys", "hkeys", "hvals", "smembers", "sinter", "sunion", "sdiff"):
        return sorted(ours[1]) == sorted(theirs[1])
    if name == "hgetall":
        return sorted(pairs(ours)) == sorted(pairs(theirs))
    if name == "hrandfield":
        # The choice is random. The keyspace's own tests check that the fields are in the hash.
        return ours[0] == b"$" or len(ours[1]) == len(theirs[1])
    if name in ("spop", "srandmember"):
        # The choice is random. `Pair` in `test_random.py` checks the members, and keeps the sets
        # equal.
        return ours[0] == b"$" or len(ours[1]) == len(theirs[1])
    if name == "hscan":
        found = [sorted(pairs(reply[1][1])) for reply in (ours, theirs)]
        return ours[1][0] == theirs[1][0] and found[0] == found[1]
    if name in ("scan", "sscan"):
        return ours[1][0] == theirs[1][0] and sorted(ours[1][1][1]) == sorted(theirs[1][1][1])
    if name == "dump":
        # The same value may be compressed differently. `test_dump` restores what each server has
        # dumped.
        return True
    if name == "hello":
        return comparable_hello(ours) == comparable_hello(theirs)
    return ours == theirs


def comparable_hello(reply):
    """The reply to HELLO without the server's name and version, and without the connection id. The
    reply is a map in RESP3, and a flat array in RESP2."""
    hidden = (b"version", b"id", b"server")
    return reply[0], [(key, value) for key, value in pairs(reply) if key[1] not in hidden]


def pairs(reply):
    """The pairs of a map, which in RESP2 is a flat array."""
    kind, items = reply
    return list(zip(items[::2], items[1::2])) if kind == b"*" else items
