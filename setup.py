"""Builds the kernels, an optional compiled part of ringfence; everything else is in pyproject.toml.

One library for each instruction set, from the same source: a program chooses among them when it runs, so a wheel also
works on other processors than its builder's. They are plain shared libraries that XLA calls (`ringfence.kernels.library`
loads them), not Python modules. Where they cannot be built the installation succeeds without them, and
`kernels/build.json` keeps the reason, which `ringfence doctor` shows. It also has the digest of each library and of each
source file: a library that was damaged later, or whose source has changed since, is not loaded.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

KERNELS = Path("src/ringfence/kernels")
HEADERS = sorted(str(path) for path in KERNELS.glob("*.h"))
COMMON = ["-O3", "-g0", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-w"]
FLAGS = {
    "processor": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"],
}
LONGEST_REASON = 2000  # characters


def extension(name: str) -> Extension:
    source = str(KERNELS / f"{name}.cc")
    options = {"extra_compile_args": COMMON + FLAGS[name], "language": "c++", "optional": True}
    return Extension(f"ringfence.kernels._{name}", [source], depends=HEADERS, **options)


class BuildKernels(build_ext):
    """Builds what it can, and writes down what could not be built and why."""

    def run(self) -> None:
        self.failed: dict[str, str] = {}
        source_tree = self.inplace or getattr(self, "editable_mode", False)
        folder = KERNELS if source_tree else Path(self.build_lib, "ringfence", "kernels")
        sources = digests([*KERNELS.glob("*.cc"), *KERNELS.glob("*.h")])
        # Without this a changed file with an old date would be recorded and not compiled.
        self.force = self.force or sources != sources_of_last_build(folder)
        super().run()
        if source_tree:
            for ext in self.extensions:  # a library of an earlier build is not what this source says
                if ext.name in self.failed:
                    (KERNELS / Path(self.get_ext_filename(ext.name)).name).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / Path(self.get_ext_filename(ext.name)).name for ext in self.extensions]
        libraries = digests([file for file in files if file.is_file()])
        record = {"jaxlib": jaxlib_version(), "sha256": libraries, "sources": sources, "failed": self.failed}
        (folder / "build.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    def build_extension(self, ext: Extension) -> None:
        try:
            ext.include_dirs = [*ext.include_dirs, str(headers_of_xla())]
            self.compiler.spawn = self.compiler.call = run_command  # which of them is called depends on the version
            super().build_extension(ext)
        except Exception as error:
            self.failed[ext.name] = str(error)[:LONGEST_REASON]
            raise CompileError(str(error)) from error  # setuptools warns and goes on: the extension is optional


def digests(files: list[Path]) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}


def sources_of_last_build(folder: Path) -> object:
    try:
        return json.loads((folder / "build.json").read_bytes())["sources"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run_command(command: list[str], **_: object) -> None:
    """Run the compiler, and raise what it says if it fails: the usual error only has its exit code."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileError(f"{command[0]}: {error}") from error
    if ran.returncode:
        raise CompileError(f"{command[0]} failed with exit code {ran.returncode}\n{ran.stderr}{ran.stdout}".strip())


def headers_of_xla() -> Path:
    """`jax.ffi.include_dir()`, without JAX: only jaxlib is needed to build."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        raise CompileError(f"the kernels are for x86-64 processors, not {platform.machine()}")
    spec = importlib.util.find_spec("jaxlib")
    if spec is None or spec.origin is None:
        raise CompileError("jaxlib, which has the headers to build with, is not installed where ringfence was built")
    return Path(spec.origin).parent / "include"


def jaxlib_version() -> str | None:
    try:
        return importlib.metadata.version("jaxlib")
    except importlib.metadata.PackageNotFoundError:
        return None


setup(ext_modules=[extension(name) for name in FLAGS], cmdclass={"build_ext": BuildKernels})
