"""Apache Thrift's compact protocol, read into plain Python: the language of Parquet footers.

A struct becomes {field number: value}. Only what is needed to look at a footer before a library is trusted with it.
"""

import struct
from typing import Any

STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)
MOST_LEVELS = 32


class Malformed(ValueError):
    """The bytes are no compact Thrift."""


def read_struct(content: bytes) -> tuple[dict[int, Any], int]:
    """The struct at the beginning of `content`, and how many bytes it takes.

    >>> read_struct(bytes([0x15, 0x04, 0x18, 0x02]) + b"hi" + bytes([0]))
    ({1: 2, 2: b'hi'}, 7)
    """
    reader = _Reader(content)
    try:
        return reader.struct(0), reader.place
    except (IndexError, struct.error):
        raise Malformed("it ends in the middle of a value") from None


class _Reader:
    def __init__(self, content: bytes):
        self.content, self.place = content, 0

    def byte(self) -> int:
        value = self.content[self.place]
        self.place += 1
        return value

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise Malformed("a number has too many digits")

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        size = self.varint()
        if self.place + size > len(self.content):
            raise Malformed("a text reaches beyond the end")
        self.place += size
        return self.content[self.place - size : self.place]

    def struct(self, level: int) -> dict[int, Any]:
        if level > MOST_LEVELS:
            raise Malformed("it is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while (head := self.byte()) != STOP:
            kind, step = head & 0x0F, head >> 4
            number = number + step if step else self.zigzag()
            if number in fields:
                raise Malformed(f"field {number} appears twice")
            fields[number] = kind == TRUE if kind in (TRUE, FALSE) else self.value(kind, level)
        return fields

    def value(self, kind: int, level: int) -> Any:
        if kind in (TRUE, FALSE):  # in a list: one byte each
            return self.byte() == TRUE
        if kind == BYTE:
            return self.byte()
        if kind in (I16, I32, I64):
            return self.zigzag()
        if kind == DOUBLE:
            self.place += 8
            return struct.unpack("<d", self.content[self.place - 8 : self.place])[0]
        if kind == BINARY:
            return self.binary()
        if kind in (LIST, SET):
            head = self.byte()
            size = head >> 4 if head >> 4 != 15 else self.varint()
            if size > len(self.content):
                raise Malformed("a list is longer than the file")
            return [self.value(head & 0x0F, level + 1) for _ in range(size)]
        if kind == MAP:
            size = self.varint()
            kinds = self.byte() if size else 0
            if size > len(self.content):
                raise Malformed("a map is longer than the file")
            return [(self.value(kinds >> 4, level + 1), self.value(kinds & 0x0F, level + 1)) for _ in range(size)]
        if kind == STRUCT:
            return self.struct(level + 1)
        raise Malformed(f"there is no type {kind}")
