"""Payloads like those of DUMP, made by hand: values in the encodings of several versions, some of
them damaged."""

import struct


def crc64(data):
    """CRC-64 with the polynomial of Jones, as in Redis's crc64.c."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    return crc


def payload(value, version=10):
    data = value + struct.pack("<H", version)
    return data + struct.pack("<Q", crc64(data))


def string(data):
    """A string of up to 63 bytes, encoded as in an RDB file."""
    return bytes([len(data)]) + data


def listpack(*strings):
    elements = b""
    for data in strings:
        element = bytes([0x80 | len(data)]) + data
        elements += element + bytes([len(element)])
    return struct.pack("<IH", len(elements) + 7, len(strings)) + elements + b"\xff"


def ziplist(*strings):
    entries, before, last = b"", 0, 10
    for data in strings:
        last = 10 + len(entries)
        entry = bytes([before, len(data)]) + data
        before = len(entry)
        entries += entry
    return struct.pack("<IIH", len(entries) + 11, last, len(strings)) + entries + b"\xff"


VALUES = [
    b"\x00" + string(b"text"),
    b"\x00" + string(b""),
    b"\x00\xc0\x7b",  # the integer 123
    b"\x00\xc1\x39\x30",  # 12345
    b"\x00\xc2\x87\xd6\x12\x00",
    b"\x00\xc3\x09\x32\x01aa\xe0\x28\x00\x01aa",  # LZF: 50 times a
    b"\x04\x02" + string(b"f") + string(b"1") + string(b"g") + string(b"v"),
    b"\x04\x01" + string(b"f") + b"\xc0\x05",
    b"\x09" + string(b"\x01\x01f\x01\x00v\xff"),  # a zipmap
    b"\x0d" + string(ziplist(b"f", b"v")),
    b"\x10" + string(listpack(b"f", b"v", b"g", b"12")),
    b"\x01\x02" + string(b"a") + b"\xc0\x05",  # a list
    b"\x0a" + string(ziplist(b"a", b"bb")),
    b"\x0e\x02" + string(ziplist(b"a", b"bb")) + string(ziplist(b"c")),
    b"\x12\x02\x02" + string(listpack(b"a", b"12")) + b"\x01" + string(b"plain"),
]

WRONG_VALUES = [
    b"\x04\x00",  # a hash without fields
    b"\x04\x02" + string(b"f") + string(b"1") + string(b"f") + string(b"2"),  # the same field twice
    b"\x10" + string(listpack(b"f", b"v", b"g")),
    b"\x10" + string(listpack(b"f", b"v", b"f", b"w")),
    b"\x10" + string(listpack()),
    b"\x0d" + string(ziplist(b"f")),
    b"\x01\x00",  # a list without elements
    b"\x12\x00",
    b"\x12\x01\x03" + string(listpack(b"a")),  # a node of an unknown form
    b"\x12\x02\x02" + string(listpack(b"a")),
    b"\x09" + string(b"\x01\x01f\x09\x00v\xff"),
    b"\x00\xc3\x09\x32\x01aa\xe0\x29\x00\x01aa",  # LZF of more bytes than its length says
    b"\x00\x3f" + b"short",
    b"\x63",  # an unknown type
    b"",
]


def draw(random):
    """A random payload. Most payloads are right. A damaged payload keeps its old checksum, so both
    servers must refuse it. With a right checksum, stock Redis 7.0 might accept a damaged payload,
    because by default it checks only parts of the value itself. Version 999 is newer than the
    servers' own version, so both must refuse it.
    """
    whole = payload(random.choice(VALUES), random.choice([6, 9, 10, 10, 10, 999]))
    chance = random.random()
    if chance < 0.05:
        whole = whole[: random.randrange(len(whole))]
    elif chance < 0.15:
        at = random.randrange(len(whole))
        whole = whole[:at] + bytes([whole[at] ^ 1 << random.randrange(8)]) + whole[at + 1 :]
    return whole
