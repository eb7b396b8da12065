"""Random commands on sets, right and wrong ones. `Draw` inherits these methods."""

# Sizes near those at which a set changes its encoding in Redis 7.0 and later.
LARGE_COUNTS = [127, 128, 129, 130, 511, 512, 513, 514]
MEMBERS = ["", "01", "-0", "+1", "1.0", "9223372036854775807", "-9223372036854775808", "9223372036854775808",
           "32768", "-32769", "2147483648", "a" * 64, "b" * 65, "c" * 20, "d" * 21, "e" * 300, b"\x00\xff\r\n"]


class DrawSets:
    """A method with the name of a command draws arguments for this command."""

    def member(self):
        chance = self.random.random()
        if chance < 0.5:
            return self.random.randrange(12)
        if chance < 0.65:
            return self.random.randrange(-50, 700)
        if chance < 0.8:
            return f"m{self.random.randrange(self.random.choice([4, 200]))}"
        return self.random.choice([*MEMBERS, self.value()])

    def many_members(self):
        """Successive integers, or successive words. Sometimes, one of them is replaced by a
        random member."""
        start = self.random.randrange(200)
        kind = self.one_of("", "", "m")
        members = [f"{kind}{start + n}" for n in range(self.random.choice(LARGE_COUNTS))]
        if self.random.random() < 0.4:
            members[self.one_of(0, -1, self.random.randrange(len(members)))] = self.member()
        return members

    def sadd(self):
        if self.random.random() < 0.1:
            return [self.key(), *self.many_members()]
        return [self.key(), *self.some(self.member, 5)]

    def srem(self):
        if self.random.random() < 0.05:
            return [self.key(), *self.many_members()]
        return [self.key(), *self.some(self.member, 5)]

    def smismember(self):
        return [self.key(), *self.some(self.member, 5)]

    def sismember(self):
        return [self.key(), self.member()]

    def scard(self):
        return [self.key()]

    smembers = scard

    def smove(self):
        return [self.key(), self.key(), self.member()]

    def sinter(self):
        return self.some(self.key, 4)

    sunion = sdiff = sinter

    def sinterstore(self):
        return [self.key(), *self.some(self.key, 4)]

    sunionstore = sdiffstore = sinterstore

    def sintercard(self):
        keys = self.some(self.key, 4)
        if self.random.random() < 0.15:
            count = self.one_of(0, -1, 2**31, 2**63 - 1, 2**63, "abc", "", len(keys) + 1, len(keys) - 1)
        else:
            count = len(keys)
        limit = self.one_of(0, 1, 3, 200, 2**63 - 1, 2**63, -1, "abc", "")
        options = self.one_of([], [], ["LIMIT", limit], ["LIMIT", limit], ["LIMIT"], ["nosuch"],
                              ["LIMIT", limit, "LIMIT", 2], ["nosuch", 1])
        return [count, *keys, *(self.cased(str(option)) for option in options)]

    def spop(self):
        # Most of these counts are refused or leave members in the set, so later commands still find the set.
        count = self.one_of(0, 1, 2, 5, 100, 127, 1000, -1, "abc", "", -(2**63), 2**63 - 1, 2**63, "+1", "01")
        return [self.key(), *self.one_of([], [], [count], [count], [count, 1])]

    def srandmember(self):
        # With a count of -5, the reply has exactly 5 members.
        count = self.one_of(0, 1, 3, -1, -5, 100, 1000, -1000, "abc", "", -(2**63), 2**63 - 1, 2**63)
        return [self.key(), *self.one_of([], [count], [count], [count, 1])]

    def sscan(self):
        # The whole scan must be one step, because cursors differ between the servers.
        options = [["COUNT", 100000]]
        if self.random.random() < 0.5:
            options.append(["MATCH", self.one_of("*", "?", "1*", "m*", "[^1]*", "nosuch", "")])
        if self.random.random() < 0.15:
            options.append(self.one_of(["COUNT", 0], ["COUNT", "abc"], ["nosuch"], ["MATCH"], ["TYPE", "set"]))
        self.random.shuffle(options)
        cursor = self.one_of(0, 0, 0, 0, "abc", "")
        return [self.key(), cursor, *(arg for option in options for arg in option)]


# Commands by weight, as in `commands.WEIGHTS`.
WEIGHTS = {
    12: "SADD",
    4: "SREM SMOVE SPOP SINTERSTORE SUNIONSTORE SDIFFSTORE",
    3: "SINTER SUNION SDIFF SINTERCARD SRANDMEMBER SSCAN SMEMBERS",
    2: "SISMEMBER SMISMEMBER SCARD",
}
NAMES = [name for weight, names in WEIGHTS.items() for name in names.split() for _ in range(weight)]
