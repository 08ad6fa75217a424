"""Damaged logs by the thousand: each must be refused in one clear line or give the very same data.

    python -m tests.campaigns.logs --cases 3000 --footers 6000 --seed 1

The one excuse: a file of another program without checksums, in which a bare value became another value.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from ringfence.data import Dataset, load_file
from tests.campaigns import extremes, giants, ids
from tests.campaigns.isolated import report, run
from tests.campaigns.originals import MINARI, Original, originals, write_minari_directory
from tests.data.example_logs import assert_same

ROW_COLUMNS = ("observations", "actions", "rewards", "costs", "next_observations", "terminations", "truncations")
Damage = Callable[[bytes, int, int, random.Random], bytes]


def bit(content: bytes, first: int, end: int, rng: random.Random) -> bytes:
    place = rng.randrange(first, end)
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def byte(content: bytes, first: int, end: int, rng: random.Random) -> bytes:
    place = rng.randrange(first, end)
    return content[:place] + bytes([content[place] ^ rng.randrange(1, 256)]) + content[place + 1 :]


def zeros(content: bytes, first: int, end: int, rng: random.Random) -> bytes:
    place, size = rng.randrange(first, end), rng.choice((1, 2, 4, 8, 64, 512, 4096))
    return content[:place] + bytes(len(content[place : place + size])) + content[place + size :]


def noise(content: bytes, first: int, end: int, rng: random.Random) -> bytes:
    place, size = rng.randrange(first, end), rng.choice((2, 4, 8, 64, 512))
    return content[:place] + rng.randbytes(len(content[place : place + size])) + content[place + size :]


def cut(content: bytes, first: int, end: int, rng: random.Random) -> bytes:
    return content[: rng.randrange(first, end)]


def insert(content: bytes, first: int, end: int, rng: random.Random) -> bytes:
    place = rng.randrange(first, end)
    return content[:place] + rng.randbytes(rng.choice((1, 2, 8, 64))) + content[place:]


def remove(content: bytes, first: int, end: int, rng: random.Random) -> bytes:
    place = rng.randrange(first, end)
    return content[:place] + content[place + rng.choice((1, 2, 8, 64)) :]


def swap(content: bytes, first: int, end: int, rng: random.Random) -> bytes:
    size = rng.choice((4, 8, 64, 512))
    one, other = sorted(rng.randrange(first, max(end - size, first + 1)) for _ in range(2))
    if one + size > other:
        return byte(content, first, end, rng)
    middle = content[one + size : other]
    return content[:one] + content[other : other + size] + middle + content[one : one + size] + content[other + size :]


DAMAGES: tuple[Damage, ...] = (bit, bit, byte, zeros, noise, cut, insert, remove, swap)


def damaged_cases(files: list[Original], cases: int, seed: int) -> dict[str, Callable[[], tuple[str, str]]]:
    rng = random.Random(seed)
    found: dict[str, Callable[[], tuple[str, str]]] = {}
    for index in range(cases):
        original, damage = files[index % len(files)], rng.choice(DAMAGES)
        content = damage(original.content, 0, len(original.content), rng)
        found[f"{index} {original.name} {damage.__name__}"] = partial(judge, original, content)
    return found


def footer_cases(files: list[Original], cases: int, seed: int) -> dict[str, Callable[[], tuple[str, str]]]:
    """One flipped bit or byte in the footer of a Parquet file."""
    rng = random.Random(seed)
    found: dict[str, Callable[[], tuple[str, str]]] = {}
    tables = [original for original in files if original.suffix == ".parquet"]
    for index in range(cases):
        original, damage = tables[index % len(tables)], (bit, byte)[index // len(tables) % 2]
        size = int.from_bytes(original.content[-8:-4], "little")
        content = damage(original.content, len(original.content) - size - 8, len(original.content), rng)
        found[f"{index} {original.name} footer {damage.__name__}"] = partial(judge, original, content)
    return found


def judge(original: Original, content: bytes) -> tuple[str, str]:
    log = load_bytes(content, original.suffix)
    if is_same(log, original.log):
        return "same", ""
    return _kind_of_change(original, content, log), _difference(original.log, log)


def load_bytes(content: bytes, suffix: str) -> Dataset:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"log{suffix}"
        if suffix == MINARI:
            write_minari_directory(path, content)
        else:
            path.write_bytes(content)
        return load_file(path)


def is_same(one: Dataset, other: Dataset) -> bool:
    try:
        assert_same(one, other)
    except AssertionError:
        return False
    return True


def _kind_of_change(original: Original, content: bytes, log: Dataset) -> str:
    """Whether bare values alone make the difference: no reader can tell in a file without checksums."""
    if original.suffix == ".csv":
        return "text changed"
    if original.guarded or len(content) != len(original.content):
        return "OTHER NUMBERS"
    before, after = (np.frombuffer(part, np.uint8) for part in (original.content, content))
    in_payload = np.zeros(len(before), bool)
    for first, end in original.payload:
        in_payload[first:end] = True
    only_values = load_bytes(np.where(in_payload, after, before).tobytes(), original.suffix)
    return "value changed in the payload" if is_same(only_values, log) else "OTHER NUMBERS"


def _difference(before: Dataset, after: Dataset) -> str:
    shapes = {name: (getattr(before, name).shape, getattr(after, name).shape) for name in ROW_COLUMNS}
    other = [f"{name} {old} -> {new}" for name, (old, new) in shapes.items() if old != new]
    if not other:
        for name in ROW_COLUMNS:
            wrong = getattr(before, name) != getattr(after, name)
            if wrong.any():
                place = tuple(np.argwhere(wrong)[0].tolist())
                pair = getattr(before, name)[place], getattr(after, name)[place]
                other.append(f"{int(wrong.sum())} of {name}, first {place}: {pair[0]} -> {pair[1]}")
    fields = ("name", "notes", "metadata", "source_names", "observation_names", "action_names", "units")
    other += [f"{name}: {getattr(after, name)}" for name in fields if getattr(before, name) != getattr(after, name)]
    if not np.array_equal(before.action_low, after.action_low) or not np.array_equal(
        before.action_high, after.action_high
    ):
        other.append(f"bounds {after.action_low} {after.action_high}")
    if before.source is not None and (after.source is None or not np.array_equal(before.source, after.source)):
        other.append("source")
    return "; ".join(other)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=3000, help="damaged files over all formats")
    parser.add_argument("--footers", type=int, default=6000, help="Parquet files with a flip in the footer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=15, help="defects to print of each campaign")
    options = parser.parse_args()
    files = originals()
    campaigns = {
        "damaged files": damaged_cases(files, options.cases, options.seed),
        "flipped Parquet footers": footer_cases(files, options.footers, options.seed),
        "extreme numbers": extremes.cases(),
        "declared sizes": giants.cases(),
        "odd ids": ids.cases(options.seed),
    }
    defects = 0
    for title, cases in campaigns.items():
        if cases:
            defects += report(title, run(list(cases.values()), list(cases)), options.show)
    print(f"{defects} defects")
    return int(defects > 0)


if __name__ == "__main__":
    sys.exit(main())
