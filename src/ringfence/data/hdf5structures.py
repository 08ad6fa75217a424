"""Where an HDF5 file of the older layouts keeps its own structures. They carry no checksums, so that a damaged address can
make one of them pass for data."""

import struct
from collections.abc import Iterator
from pathlib import Path

from ringfence.data.sizes import FLOOR_BYTES

SUPERBLOCK_BYTES = {0: 96, 1: 100, 2: 48, 3: 48}
UNDEFINED = 2**64 - 1


def structures(path: Path) -> Iterator[tuple[int, int]]:
    """(first byte, bytes) of the superblock, and of the indexes and heaps in files of up to 64 MB: in larger ones a
    wrong address falls on other data, which is noticed anyway."""
    with path.open("rb") as opened:
        content = opened.read(FLOOR_BYTES + 1)
    yield 0, SUPERBLOCK_BYTES[content[8]]
    if len(content) > FLOOR_BYTES:
        return
    leaf_k, group_k, chunk_k = _fan_outs(content)
    node_bytes = {
        0: 24 + 8 * (2 * group_k + 1) + 8 * 2 * group_k,  # of groups
        1: 24 + 24 * (2 * chunk_k + 1) + 8 * 2 * chunk_k,  # of chunks, with one dimension: the least it can be
    }
    most_entries = {0: 2 * group_k, 1: 2 * chunk_k}
    for place in _places(content, b"TREE"):
        kind, level, entries, left, right = struct.unpack_from("<BBHQQ", content, place + 4)
        neighbours_exist = all(address == UNDEFINED or address < len(content) for address in (left, right))
        if kind in node_bytes and level < 16 and entries <= most_entries[kind] and neighbours_exist:
            yield place, node_bytes[kind]
    for place in _places(content, b"SNOD"):
        version, reserved, entries = struct.unpack_from("<BBH", content, place + 4)
        if (version, reserved) == (1, 0) and entries <= 2 * leaf_k:
            yield place, 8 + 2 * leaf_k * 40
    for place in _places(content, b"HEAP"):
        version, size, _, address = struct.unpack_from("<IQQQ", content, place + 4)
        if version == 0 and address + size <= len(content):
            yield place, 32
            yield address, size


def _fan_outs(content: bytes) -> tuple[int, int, int]:
    """Half the entries that nodes have room for: of symbols, of groups and of chunks."""
    if content[8] > 1:
        return 4, 16, 32  # unless the file says otherwise, where it has a checksum
    leaf_k, group_k = struct.unpack_from("<HH", content, 16)
    return leaf_k, group_k, struct.unpack_from("<H", content, 24)[0] if content[8] == 1 else 32


def _places(content: bytes, signature: bytes) -> Iterator[int]:
    """Where a signature stands, with room for a header behind it."""
    place = content.find(signature)
    while 0 <= place <= len(content) - 32:
        yield place
        place = content.find(signature, place + 1)
