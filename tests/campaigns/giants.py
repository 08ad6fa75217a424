"""Small files that declare gigabytes: refused at once and without the memory."""

import io
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq

from ringfence.data import load_file
from tests.data.example_logs import DSRL_KEYS, columns, write_foreign

GIANT_ROWS = (10**8, 10**9, 2**40)
SECONDS, KILOBYTES = 2.0, 200_000  # of processor time and of memory


def cases() -> dict[str, Callable[[], tuple[str, str]]]:
    found: dict[str, Callable[[], tuple[str, str]]] = {}
    layouts = ("contiguous", "chunked", "large chunks", "compact text", "gzip")
    for layout, rows, which in product(layouts, GIANT_ROWS, ("all", "observations", "costs", "source")):
        found[f"hdf5 {layout} {rows} {which}"] = partial(judge, partial(hdf5, layout, rows, which), ".h5")
    for rows, which, honest in product(GIANT_ROWS, ("all", "observations", "costs"), (True, False)):
        found[f"npz {rows} {which} {honest}"] = partial(judge, partial(npz, rows, which, honest), ".npz")
    found["npz bomb"] = partial(judge, npz_bomb, ".npz")
    for field in range(12):
        found[f"parquet footer varint {field}"] = partial(judge, partial(parquet, field), ".parquet")
    return found


def judge(write: Callable[[Path], object], suffix: str) -> tuple[str, str]:
    from resource import RUSAGE_SELF, getrusage

    from ringfence.errors import RingfenceError

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"log{suffix}"
        write(path)
        before, start = getrusage(RUSAGE_SELF).ru_maxrss, time.process_time()
        try:
            load_file(path)
        except RingfenceError as error:
            seconds, grown = time.process_time() - start, getrusage(RUSAGE_SELF).ru_maxrss - before
            if seconds > SECONDS or grown > KILOBYTES:
                return "COSTLY", f"{seconds:.1f} s, {grown / 1000:.0f} MB: {error}"
            raise
    return "ACCEPTED", f"{path.name}"


def hdf5(layout: str, rows: int, which: str, path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, values in (columns(40) | {"source": np.zeros(40, np.int64)}).items():
            key = DSRL_KEYS.get(name, name)
            if which not in (name, "all"):
                file.create_dataset(key, data=values)
                continue
            shape = (rows, *np.shape(values)[1:])
            if layout == "contiguous":
                file.create_dataset(key, shape, np.asarray(values).dtype)
            elif layout == "chunked":
                file.create_dataset(key, shape, np.asarray(values).dtype, chunks=(1000, *shape[1:]))
            elif layout == "large chunks":
                room = min(rows, (1 << 30) // 4 // int(np.prod(shape[1:], dtype=int)))
                made = file.create_dataset(
                    key, np.shape(values), "f4", chunks=(room, *shape[1:]), maxshape=(None, *shape[1:]), compression=1
                )
                made.id.write_direct_chunk((0,) * len(shape), zlib.compress(b"0"))
            elif layout == "compact text":
                file.create_dataset(key, shape, "S1000000")
            else:
                made = file.create_dataset(key, shape, "f4", chunks=(1 << 20, *shape[1:]), compression=9)
                made[:10] = 0


def npz(rows: int, which: str, honest: bool, path: Path) -> None:
    """Members whose headers declare `rows`; unless honest, the archive's index declares the size as well."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in columns(40).items():
            array = np.asarray(values)
            shape = (rows, *array.shape[1:]) if which in (name, "all") else array.shape
            data = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                data, {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": shape}
            )
            data.write(array.tobytes())
            archive.writestr(f"{DSRL_KEYS.get(name, name)}.npy", data.getvalue())
    if not honest:
        content = bytearray(path.read_bytes())
        place = 0
        while (place := content.find(b"PK\x01\x02", place)) >= 0:
            content[place + 24 : place + 28] = struct.pack("<I", 2**32 - 2)
            place += 4
        path.write_bytes(content)


def npz_bomb(path: Path) -> None:
    """An honest archive of zeros that grows a thousandfold."""
    rows = 20_000_000
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in columns(40).items():
            array = np.asarray(values)
            with archive.open(f"{DSRL_KEYS.get(name, name)}.npy", "w", force_zip64=True) as stream:
                header = {"descr": "|u1", "fortran_order": False, "shape": (rows, *array.shape[1:])}
                np.lib.format.write_array_header_1_0(stream, header)
                for _ in range(int(np.prod(array.shape[1:], dtype=int))):
                    stream.write(bytes(rows))


def parquet(field: int, path: Path) -> None:
    """A footer in which one of the places that say 40 (rows, values) says some thousand million."""
    write_foreign(columns(40), path)
    content = path.read_bytes()
    size = int.from_bytes(content[-8:-4], "little")
    assert pq.ParquetFile(path).metadata.num_rows == 40
    footer = content[-8 - size : -8]
    places = [place for place in range(len(footer)) if footer[place : place + 2] in (b"\x16\x50", b"\x26\x50")]
    place = places[field % len(places)]
    changed = footer[: place + 1] + b"\x80\xd0\xac\xf3\x0e" + footer[place + 2 :]
    path.write_bytes(content[: -8 - size] + changed + len(changed).to_bytes(4, "little") + b"PAR1")
