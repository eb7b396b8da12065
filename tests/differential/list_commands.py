"""Random commands on lists, right and wrong ones. `Draw` inherits these methods."""

# Sizes near those at which a list changes its form in Redis 7.0 and later.
LARGE_COUNTS = [40, 127, 128, 129, 400, 800, 2100]
ELEMENTS = ["", "01", "-0", "+1", "1.0", "9223372036854775807", "-9223372036854775808", "9223372036854775808",
            "32768", "-32769", "2147483648", "a" * 63, "b" * 64, "e" * 300, "f" * 2000, "g" * 8180, "h" * 9000,
            b"\x00\xff\r\n"]


class DrawLists:
    """Methods that draw the arguments of list commands. Each has the name of its command."""

    def element(self):
        chance = self.random.random()
        if chance < 0.5:
            return self.random.randrange(6)
        if chance < 0.6:
            return self.random.randrange(-50, 700)
        if chance < 0.9:
            return f"e{self.random.randrange(self.random.choice([4, 200]))}"
        return self.random.choice([*ELEMENTS, self.value()])

    def index(self):
        if self.random.random() < 0.1:
            return self.integer()
        return self.one_of(0, 0, 1, 2, 3, 5, 10, 100, 500, -1, -1, -2, -3, -5, -10, -100, -500)

    def side(self):
        return self.cased(self.one_of("LEFT", "RIGHT")) if self.random.random() < 0.95 else self.value()

    def lpush(self):
        if self.random.random() < 0.1:
            start, kind = self.random.randrange(200), self.one_of("", "element:", "e")
            return [self.key(), *(f"{kind}{start + n}" for n in range(self.random.choice(LARGE_COUNTS)))]
        return [self.key(), *self.some(self.element, 5)]

    rpush = lpush

    def lpushx(self):
        return [self.key(), *self.some(self.element, 5)]

    rpushx = lpushx

    def lpop(self):
        # Most of these counts are refused or leave elements in the list, so later commands still find the list.
        count = self.one_of(0, 1, 2, 5, 30, 40, 127, 1000, -1, "abc", "", -(2**63), 2**63 - 1, 2**63, "+1", "01")
        return [self.key(), *self.one_of([], [], [], [count], [count, 1])]

    rpop = lpop

    def llen(self):
        return [self.key()]

    def lindex(self):
        return [self.key(), self.index()]

    def lset(self):
        return [self.key(), self.index(), self.element()]

    def lrange(self):
        return [self.key(), self.index(), self.index()]

    def ltrim(self):
        # Most trims leave most elements.
        return [self.key(), *self.one_of((0, -1), (1, -1), (0, -2), (2, -3), (0, 99), (-100, -1), (40, -1), (0, -40),
                                         (self.index(), self.index()))]

    def linsert(self):
        where = self.cased(self.one_of("BEFORE", "AFTER")) if self.random.random() < 0.95 else self.value()
        return [self.key(), where, self.element(), self.element()]

    def lrem(self):
        return [self.key(), self.one_of(0, 1, 1, 2, 5, -1, -1, -2, -5, 1000, self.integer()), self.element()]

    def lpos(self):
        options = []
        for _ in range(self.one_of(0, 0, 1, 1, 2, 3)):
            option = self.one_of(
                ["RANK", self.one_of(1, 2, 3, -1, -2, -3, 0, 100, 2**63 - 1, self.integer())],
                ["COUNT", self.one_of(0, 0, 1, 2, 10, -1, "abc", "")],
                ["MAXLEN", self.one_of(0, 1, 3, 10, 100, -1, "abc", "")],
                ["nosuch"], ["RANK"],
            )
            options += [self.cased(str(option[0])), *option[1:]]
        # Stock 7.0 negates the rank. So the smallest number, which has no negative in 64 bits, is
        # replaced.
        options = [1 if option == -(2**63) else option for option in options]
        return [self.key(), self.element(), *options]

    def lmove(self):
        return [self.key(), self.key(), self.side(), self.side()]

    def rpoplpush(self):
        return [self.key(), self.key()]

    def timeout(self):
        # The timeouts are short, so that the test need not wait long.
        return self.one_of("0.001", "1e-3", "0.0001", "0.001", "-1", "abc", "")

    def blpop(self):
        return [*self.some(self.key, 3), self.timeout()]

    def brpop(self):
        return self.blpop()

    def blmove(self):
        return [*self.lmove(), self.timeout()]

    def brpoplpush(self):
        return [*self.rpoplpush(), self.timeout()]

    def blmpop(self):
        return [self.timeout(), *self.lmpop()]

    def lmpop(self):
        keys = self.some(self.key, 4)
        if self.random.random() < 0.15:
            numkeys = self.one_of(0, -1, 2**31, 2**63 - 1, 2**63, "abc", "", len(keys) + 1, len(keys) - 1)
        else:
            numkeys = len(keys)
        count = self.one_of(1, 2, 10, 40, 200, 0, -1, 2**63, "abc", "")
        options = self.one_of([], [], ["COUNT", count], ["COUNT", count], ["COUNT"], ["nosuch"],
                              ["COUNT", count, "COUNT", 2], ["nosuch", 1])
        return [numkeys, *keys, self.side(), *(self.cased(str(option)) for option in options)]


# Commands by weight, as in `commands.WEIGHTS`.
WEIGHTS = {
    10: "RPUSH LPUSH",
    4: "LPOP RPOP LINSERT LREM LMOVE LPOS LRANGE",
    3: "LPUSHX RPUSHX LTRIM LSET LINDEX RPOPLPUSH LMPOP",
    2: "LLEN BLPOP BRPOP BLMOVE BRPOPLPUSH BLMPOP",
}
NAMES = [name for weight, names in WEIGHTS.items() for name in names.split() for _ in range(weight)]
