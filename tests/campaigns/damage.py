"""Damage to the files of a run, a policy among them."""

import json
import random
from pathlib import Path


def damaged(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """The bytes with one kind of damage, and its name."""
    data, kind = (
        bytearray(content),
        rng.choice(("flip", "truncate", "zero", "extend", "insert", "header", "swap", "empty")),
    )
    place = rng.randrange(len(data)) if data else 0
    if not data:
        return b"\x00", "was empty"
    if kind == "flip":
        data[place] ^= 1 << rng.randrange(8)
    elif kind == "truncate":
        del data[place:]
    elif kind == "zero":
        data[place : place + 64] = bytes(len(data[place : place + 64]))
    elif kind == "extend":
        data += rng.randbytes(rng.randint(1, 64))
    elif kind == "insert":
        data[place:place] = rng.randbytes(rng.randint(1, 16))
    elif kind == "header":  # a digit or letter near the start, where JSON is
        place = rng.randrange(min(len(data), 1500))
        data[place] = ord(rng.choice('0129aZ"{}[],:-.eN'))
    elif kind == "swap":
        other = rng.randrange(len(data))
        size = min(32, len(data) - max(place, other))
        data[place : place + size], data[other : other + size] = data[other : other + size], data[place : place + size]
    else:
        data = bytearray()
    return bytes(data), kind


def damage_file(file: Path, rng: random.Random) -> str:
    """Damage, lose or replace one file."""
    kind = rng.choice(("content", "content", "content", "content", "lost", "directory", "garbage", "JSON"))
    if kind == "content":
        content, kind = damaged(file.read_bytes(), rng)
        file.write_bytes(content)
    elif kind == "lost":
        file.unlink()
    elif kind == "directory":
        file.unlink()
        file.mkdir()
    elif kind == "garbage":
        file.write_bytes(rng.randbytes(200))
    elif file.suffix == ".json" and isinstance(content := json.loads(file.read_bytes()), dict):
        key = rng.choice(sorted(content))
        content[key] = rng.choice((None, [], {}, -1, 1e400, "x", float("nan"), True))
        file.write_text(json.dumps(content))
    else:
        file.write_text("[]\n")
    return kind
