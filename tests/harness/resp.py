"""A client that shows replies as they are on the wire.

A raw reply is a pair: the type byte and the payload, nested for aggregates. So a test can tell
`+OK` from `$2 OK`, and one kind of null from the other. Calling a `Client` sends a command, and
turns the raw reply into a plain Python value.
"""

import socket


class ReplyError(Exception):
    """An error reply. The message is the text of the reply."""


def encode(*args):
    """A request as an array of bulk strings."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        data = to_bytes(arg)
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


def to_bytes(arg):
    return arg if isinstance(arg, bytes) else str(arg).encode()


def plain(reply):
    """The Python value of a raw reply. An error reply is raised as a `ReplyError`."""
    kind, payload = reply
    if kind in b"-!":
        raise ReplyError(payload.decode(errors="replace"))
    if payload is None:
        return None
    if kind in b"*~>":
        return [plain(item) for item in payload]
    if kind == b"%":
        return {plain(key): plain(value) for key, value in payload}
    if kind == b"=":
        return payload[4:]
    if kind == b",":
        return float(payload)
    return payload


class Client:
    """One connection. A read that gets no byte for `timeout` seconds raises an error, and leaves
    the connection open."""

    def __init__(self, address, timeout=20):
        if isinstance(address, str):
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(timeout)
            self.socket.connect(address)
        else:
            self.socket = socket.create_connection(address, timeout=timeout)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb", buffering=1 << 16)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.stream.close()
        self.socket.close()

    def __call__(self, *args):
        return plain(self.raw(*args))

    def raw(self, *args):
        self.send(encode(*args))
        return self.read()

    def send(self, data):
        self.socket.sendall(data)

    def pipeline(self, commands):
        """Sends all commands, then reads all replies."""
        self.send(b"".join(encode(*command) for command in commands))
        return [self.read() for _ in commands]

    def read(self):
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError(f"the server closed the connection (after {line!r})")
        kind, rest = line[:1], line[1:-2]
        if kind in b"+-:,#(_":
            if kind == b":":
                return kind, int(rest)
            if kind == b"#":
                return kind, rest == b"t"
            return kind, None if kind == b"_" else rest
        length = int(rest)
        if length < 0:
            return kind, None
        if kind in b"$!=":
            data = self.stream.read(length + 2)
            if len(data) != length + 2:
                raise ConnectionError("the server closed the connection within a string")
            return kind, data[:-2]
        if kind in b"*~>":
            return kind, [self.read() for _ in range(length)]
        if kind == b"%":
            return kind, [(self.read(), self.read()) for _ in range(length)]
        raise ValueError(f"not a reply: {line!r}")

    def closed_by_server(self):
        """Waits for the server to end the connection, and drops unread replies. Returns whether the
        server has ended the connection."""
        try:
            while self.stream.read1(1 << 16):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True
