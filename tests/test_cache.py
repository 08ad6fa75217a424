"""Where ringfence keeps what it can make again, for users without a home directory too."""

import os
import pwd
import stat
import tempfile

import jax
import pytest

from ringfence.cli import main
from ringfence.errors import NoCacheDirectory
from ringfence.files import cache_directory
from ringfence.training.compilation import use_compilation_cache


def no_entry(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")


@pytest.fixture
def homeless(monkeypatch, tmp_path):
    """Neither HOME nor an entry in the list of users; the directory that stands in for it."""
    for name in ("HOME", "RINGFENCE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"ringfence-{os.getuid()}"


@pytest.fixture
def no_compilation_cache():
    """JAX without a cache, and afterwards as it was."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def test_without_a_home_directory_the_cache_is_a_private_temporary_directory(homeless):
    assert cache_directory() == cache_directory() == homeless
    assert stat.S_IMODE(homeless.stat().st_mode) == 0o700


def test_a_temporary_directory_that_is_a_link_is_refused(homeless, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    homeless.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoCacheDirectory, match="RINGFENCE_CACHE"):
        cache_directory()


def test_a_temporary_directory_that_others_can_write_is_refused(homeless):
    homeless.mkdir()
    homeless.chmod(0o777)
    with pytest.raises(NoCacheDirectory, match="RINGFENCE_CACHE"):
        cache_directory()


def test_a_temporary_directory_of_somebody_else_is_refused(homeless, tmp_path, monkeypatch):
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    (tmp_path / f"ringfence-{me + 1}").mkdir(mode=0o700)
    with pytest.raises(NoCacheDirectory, match="RINGFENCE_CACHE"):
        cache_directory()


def test_a_file_in_the_way_of_the_temporary_directory_is_an_error_that_names_the_variable(homeless):
    homeless.write_text("")
    with pytest.raises(NoCacheDirectory, match="RINGFENCE_CACHE"):
        cache_directory()


def test_a_cache_that_was_asked_for_in_an_unknown_home_is_an_error(homeless, monkeypatch):
    monkeypatch.setenv("RINGFENCE_CACHE", "~/cache")
    with pytest.raises(NoCacheDirectory, match="RINGFENCE_CACHE=~/cache"):
        cache_directory()


@pytest.mark.usefixtures("no_compilation_cache")
def test_compiled_programs_are_kept_in_the_temporary_directory(homeless):
    use_compilation_cache()
    assert jax.config.jax_compilation_cache_dir.startswith(str(homeless / "xla"))


@pytest.mark.usefixtures("no_compilation_cache")
def test_without_a_place_for_compiled_programs_training_goes_on_without_them(homeless):
    homeless.write_text("")
    use_compilation_cache()
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.usefixtures("no_compilation_cache")
def test_a_cache_directory_that_cannot_be_made_is_not_used(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RINGFENCE_CACHE", str(tmp_path / "file" / "cache"))
    use_compilation_cache()
    assert jax.config.jax_compilation_cache_dir is None


def test_doctor_says_where_the_cache_is_and_why_there_is_none(homeless, capsys):
    assert main(["doctor"]) == 0
    assert f"cache:       {homeless}" in capsys.readouterr().out
    homeless.rmdir()
    homeless.write_text("")
    assert main(["doctor"]) == 0
    assert "cache:       none, because there is no home directory" in capsys.readouterr().out
