"""The optional compiled part: built when ringfence is installed, chosen when it runs, and not missed where it is absent."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from ringfence.cli import doctor, main
from ringfence.errors import DEPENDENCIES, InvalidSetting
from ringfence.kernels import calls, computation, explanation, library

ROOT = Path(__file__).parents[1]
CPU = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""


def copied_source(folder: Path) -> Path:
    """A copy of the source, not built."""
    if int(version("setuptools").split(".")[0]) < 77:
        pytest.skip("pyproject.toml asks for setuptools 77")
    source = folder / "source"
    built = shutil.ignore_patterns("*.so", "build.json", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=built)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    return source


def install(folder: Path, compiler: str) -> Path:
    """A wheel built from a copy of the source with this compiler, unpacked."""
    source, wheels, target = copied_source(folder), folder / "wheels", folder / "installed"
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--wheel-dir", str(wheels)]
    environment = {**os.environ, "CC": compiler, "CXX": compiler}
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], env=environment, check=True)
    shutil.unpack_archive(next(wheels.glob("*.whl")), target, "zip")
    return target


def says(target: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "RINGFENCE_KERNELS"}
    command = [sys.executable, "-m", "ringfence", "doctor"]
    ran = subprocess.run(
        command, env={**environment, "PYTHONPATH": str(target)}, cwd=target, capture_output=True, text=True, check=True
    )
    return next(line for line in ran.stdout.splitlines() if line.startswith("computation"))


@pytest.mark.slow
def test_without_a_compiler_the_installation_succeeds_and_doctor_says_why_xla_computes(tmp_path) -> None:
    target = install(tmp_path, shutil.which("false"))
    assert not list(target.glob("ringfence/kernels/*.so"))
    line = says(target)
    assert "xla, because" in line
    assert "false failed with exit code 1" in line
    record = json.loads((target / "ringfence" / "kernels" / "build.json").read_text())
    source = ROOT / "src" / "ringfence" / "kernels"
    files = {path.name: path for path in (*source.glob("*.cc"), *source.glob("*.h"))}
    assert record["sources"] == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


@pytest.mark.slow
def test_libraries_that_cannot_be_loaded_leave_the_work_to_xla(tmp_path) -> None:
    """A compiler that says it succeeded and wrote something else."""
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho nonsense > "$2"\n')
    compiler.chmod(0o755)
    target = install(tmp_path, str(compiler))
    assert {path.name.split(".")[0] for path in target.glob("ringfence/kernels/*.so")} == {
        "_processor",
        "_avx2",
        "_avx512",
    }
    assert "xla, because avx512: built for another system" in says(target)


@pytest.mark.slow
def test_source_that_changed_is_compiled_again_whatever_its_date(tmp_path) -> None:
    """With a compiler that counts its calls."""
    source = copied_source(tmp_path)
    kernels = source / "src" / "ringfence" / "kernels"
    compiler, calls_file = tmp_path / "compiler", tmp_path / "calls"
    compiler.write_text(f'#!/bin/sh\necho >> {calls_file}\nwhile [ "$1" != -o ]; do shift; done\necho x > "$2"\n')
    compiler.chmod(0o755)

    def compilations() -> int:
        calls_file.write_text("")
        environment = {**os.environ, "CC": str(compiler), "CXX": str(compiler)}
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        subprocess.run(command, cwd=source, env=environment, check=True)
        return len(calls_file.read_text().splitlines())

    first = compilations()
    assert first > 0
    assert compilations() == 0
    header = kernels / "products.h"
    header.write_text(header.read_text() + "// another\n")
    os.utime(header, (0, 0))
    assert compilations() == first
    recorded = json.loads((kernels / "build.json").read_text())["sources"]["products.h"]
    assert recorded == hashlib.sha256(header.read_bytes()).hexdigest()


def test_where_the_build_did_not_fail_there_are_kernels() -> None:
    """Else a mistake in the source would only make the tests of the kernels vanish."""
    if not library.build_record() or os.environ.get("RINGFENCE_KERNELS") or " avx2 " not in CPU:
        pytest.skip("never built here, chosen by hand, or a processor they are not for")
    assert library.build_record()["failed"] == {}
    assert calls.available(), explanation()


def test_a_failed_build_is_told_with_its_reason(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    assert "not built" in library.choose("").reason
    (tmp_path / "build.json").write_text(json.dumps({"failed": {"ringfence.kernels._avx2": "c++: no such file"}}))
    assert "avx2: c++: no such file" in library.choose("").reason
    assert library.choose("avx2") == library.Library("xla", reason="avx2: c++: no such file")


@pytest.mark.parametrize("damaged", ["processor", "avx2"])
def test_a_truncated_library_is_not_loaded(damaged, tmp_path) -> None:
    """Loading it would end the process with SIGBUS, so it is tried in one of its own."""
    if library.choose("avx2").path is None:
        pytest.skip("not built here, or a processor it is not for")
    copy = shutil.copytree(ROOT / "src" / "ringfence", tmp_path / "ringfence")
    whole = library.built(damaged)
    (copy / "kernels" / whole.name).write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    code = "from ringfence.kernels.library import choose; print(choose('avx2').reason)"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout.strip()) == (
        0,
        f"avx2: {whole.name} is not the file that was built; install ringfence again",
    )


def built_from(folder: Path, **sources: str) -> None:
    """Libraries that were built from these files, which lie beside them."""
    for name in ("processor", "avx2"):
        (folder / f"_{name}{library.EXTENSION_SUFFIXES[0]}").touch()
    for name, text in sources.items():
        (folder / f"{name}.h").write_text(text)
    digests = {f"{name}.h": hashlib.sha256(text.encode()).hexdigest() for name, text in sources.items()}
    (folder / "build.json").write_text(json.dumps({"sources": digests}))


def change_a_file(folder: Path) -> None:
    (folder / "products.h").write_text("b = 2;")


def add_a_file(folder: Path) -> None:
    (folder / "avx2.cc").touch()


def remove_a_file(folder: Path) -> None:
    (folder / "vectors.h").unlink()


@pytest.mark.parametrize("edit", [change_a_file, add_a_file, remove_a_file])
def test_a_library_whose_source_has_changed_is_not_used(edit, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    monkeypatch.setattr(library, "intact", lambda path: True)
    monkeypatch.setattr(library, "processor_lacks", lambda name: "")
    built_from(tmp_path, products="b = 1;", vectors="v;")
    assert library.choose("avx2").name == "avx2"
    edit(tmp_path)
    changed = "avx2: its source has changed since it was built; run `pip install` again"
    assert library.choose("avx2") == library.Library("xla", reason=changed)


def test_a_library_without_its_source_or_with_a_record_that_says_nothing_of_it_is_used(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    built_from(tmp_path, products="b = 1;")
    (tmp_path / "products.h").unlink()
    assert not library.stale()
    (tmp_path / "products.h").write_text("b = 2;")
    assert library.stale()
    (tmp_path / "build.json").write_text("{}")
    assert not library.stale()


@pytest.mark.parametrize("content", ["", "[1]", '{"failed": '])
def test_a_damaged_record_of_the_build_counts_as_none(content, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    (tmp_path / "build.json").write_text(content)
    assert library.build_record() == {}
    assert "not built" in library.choose("").reason


def test_the_best_instruction_set_of_the_processor_is_taken_or_the_one_wished_for(monkeypatch, tmp_path) -> None:
    for name in ("processor", "avx2", "avx512"):
        (tmp_path / f"_{name}{library.EXTENSION_SUFFIXES[0]}").touch()
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    monkeypatch.setattr(library, "intact", lambda path: True)
    has = {"avx512", "avx2"}
    monkeypatch.setattr(library, "processor_lacks", lambda name: "" if name in has else "too old")
    assert [library.choose(wish).name for wish in ("", "1", "avx2", "avx512", "xla", "0")] == [
        "avx512",
        "avx512",
        "avx2",
        "avx512",
        "xla",
        "xla",
    ]
    has.remove("avx512")
    assert library.choose("").name == "avx2"
    assert library.choose("avx512").name == "xla"
    has.clear()
    assert library.choose("") == library.Library("xla", reason="avx512: too old; avx2: too old")


def test_an_unknown_wish_is_an_error_that_lists_the_choices() -> None:
    with pytest.raises(InvalidSetting, match="avx512, avx2, xla"):
        library.choose("sse")


def test_the_processor_is_asked_what_it_has() -> None:
    if library.built("processor") is None or not CPU:
        pytest.skip("not built here")
    flags = CPU.split()
    assert (library.processor_lacks("avx2") == "") == ("avx2" in flags and "fma" in flags)
    assert (library.processor_lacks("avx512") == "") == ("avx512f" in flags and "avx512vl" in flags)


def test_a_library_for_another_version_of_xla_leaves_the_work_to_xla() -> None:
    import _ctypes  # some shared library without our functions

    foreign = library.Library("avx2", Path(_ctypes.__file__))
    found = calls.registered(foreign)
    assert found.name == "xla"
    assert "built with jaxlib" in found.reason


def test_what_computes_has_a_name_and_a_reason(monkeypatch, capsys) -> None:
    monkeypatch.setattr(calls, "active", lambda: library.Library("avx2"))
    assert (computation(), explanation()) == ("kernels/avx2", "")
    monkeypatch.setattr(calls, "active", lambda: library.Library("xla", reason="no compiler"))
    assert (computation(), explanation()) == ("xla", "no compiler")
    assert main(["doctor"]) == 0
    assert "computation: xla, because no compiler" in capsys.readouterr().out


def test_doctor_and_the_readme_name_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: tuple(re.match(r"[\w-]+", package)[0] for package in packages)
        for name, packages in project["optional-dependencies"].items()
        if name != "dev"
    }
    assert extras == doctor.EXTRAS
    said = (ROOT / "README.md").read_text().split("with the extras")[1].split(".")[0]
    assert set(re.findall(r"`(\w+)`", said)) == set(extras)


BARE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import ringfence
assert "Policy" in dir(ringfence)
for name in ("train", "load", "evaluate", "CPQ"):
    try:
        getattr(ringfence, name)
    except ringfence.RingfenceError as error:
        assert "which is not installed: pip install ringfence" in str(error), error
    else:
        raise AssertionError(name)
from ringfence.cli import main
for words in (["doctor"], ["methods"], ["inspect", "x.csv"], ["report", "x"], ["judge", "x"]):
    print(words, main(words))
"""


def test_with_numpy_and_safetensors_alone_whatever_needs_more_says_so() -> None:
    missing = set(DEPENDENCIES) - {"numpy", "safetensors"}
    ran = subprocess.run(
        [sys.executable, "-c", BARE.format(missing=missing)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert all(line.endswith(" 2") for line in ran.stdout.splitlines()), ran.stdout
    said = ran.stderr.splitlines()
    assert len(said) == 5
    assert all("which is not installed: pip install ringfence" in line for line in said), said


def test_the_dependencies_named_in_errors_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tuple(line.partition(">")[0] for line in project["dependencies"]) == DEPENDENCIES
