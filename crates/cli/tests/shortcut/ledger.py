"""Writes numbered records to a database, each in a durable transaction. After each record is
acknowledged, prints the number of records.

    python3 ledger.py sqlite|rocksdb FOLDER [check]

Begins by reading the records that are already there. Fails if one of them is wrong, or if one
before the last is missing. With `check`, it then prints how many records there are, and ends
without writing any.
"""

import ctypes
import os
import sqlite3
import sys


def value(number):
    return b"%d," % number * (1 + number * 7919 % 300)


class Sqlite:
    def __init__(self, folder):
        self.file = sqlite3.connect(os.path.join(folder, "ledger.db"), isolation_level=None)
        self.file.execute("PRAGMA journal_mode=WAL")
        self.file.execute("PRAGMA synchronous=FULL")
        # A small limit, so that SQLite overwrites the log after about 30 records.
        self.file.execute("PRAGMA wal_autocheckpoint=40")
        self.file.execute("CREATE TABLE IF NOT EXISTS ledger(number INTEGER PRIMARY KEY, value BLOB)")

    def put(self, number):
        self.file.execute("INSERT INTO ledger VALUES(?, ?)", (number, value(number)))

    def records(self):
        assert self.file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return self.file.execute("SELECT number, value FROM ledger ORDER BY number")


class Rocksdb:
    """RocksDB, through the C functions of its library."""

    def __init__(self, folder):
        # In Debian, the library's file name ends with its version.
        names = [name for name in os.listdir("/usr/lib/x86_64-linux-gnu") if name.startswith("librocksdb.so.")]
        self.call = ctypes.CDLL(sorted(names, key=len)[0])
        options = self.function("rocksdb_options_create")()
        self.function("rocksdb_options_set_create_if_missing")(ctypes.c_void_p(options), ctypes.c_ubyte(1))
        # A small buffer, so that a new log begins after a little more than 1000 records.
        self.function("rocksdb_options_set_write_buffer_size")(ctypes.c_void_p(options), ctypes.c_size_t(1 << 20))
        path = os.path.join(folder, "ledger").encode()
        self.file = self.checked("rocksdb_open", ctypes.c_void_p(options), path)
        self.how = self.function("rocksdb_writeoptions_create")()
        self.function("rocksdb_writeoptions_set_sync")(ctypes.c_void_p(self.how), ctypes.c_ubyte(1))

    def function(self, name):
        function = getattr(self.call, name)
        function.restype = ctypes.c_size_t
        return function

    def checked(self, name, *arguments):
        error = ctypes.c_char_p()
        result = self.function(name)(*arguments, ctypes.byref(error))
        if error.value:
            sys.exit(error.value.decode())
        return result

    def put(self, number):
        key, bytes = number.to_bytes(8, "big"), value(number)
        sizes = ctypes.c_size_t(len(key)), ctypes.c_size_t(len(bytes))
        self.checked(
            "rocksdb_put", ctypes.c_void_p(self.file), ctypes.c_void_p(self.how), key, sizes[0], bytes, sizes[1]
        )

    def records(self):
        options = self.function("rocksdb_readoptions_create")()
        at = ctypes.c_void_p(
            self.function("rocksdb_create_iterator")(ctypes.c_void_p(self.file), ctypes.c_void_p(options))
        )
        size = ctypes.c_size_t()
        self.function("rocksdb_iter_seek_to_first")(at)
        while self.function("rocksdb_iter_valid")(at) & 0xFF:
            key, bytes = (
                ctypes.string_at(self.function(f"rocksdb_iter_{part}")(at, ctypes.byref(size)), size.value)
                for part in ("key", "value")
            )
            yield int.from_bytes(key, "big"), bytes
            self.function("rocksdb_iter_next")(at)


def check(database):
    count = 0
    for number, found in database.records():
        if number != count or found != value(number):
            sys.exit(f"record {count} is missing or wrong; the record in its place has the number {number}")
        count += 1
    return count


database = {"sqlite": Sqlite, "rocksdb": Rocksdb}[sys.argv[1]](sys.argv[2])
count = check(database)
if sys.argv[3:] == ["check"]:
    print(count)
    sys.exit()
while True:
    database.put(count)
    count += 1
    print(count, flush=True)
