"""Where ringfence keeps what it can make again, for users without a home directory too."""

import os
import pwd
import stat
import tempfile
from pathlib import Path

import jax
import pytest

from ringfence.cli import main
from ringfence.errors import NoCacheDirectory
from ringfence.files import cache_directory, is_this_users_alone
from ringfence.training.compilation import program_folders, use_compilation_cache, why_not_kept


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


@pytest.mark.usefixtures("no_compilation_cache")
def test_the_folders_of_compiled_programs_are_made_for_this_user_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("RINGFENCE_CACHE", str(tmp_path / "cache"))
    use_compilation_cache()
    folders = program_folders()
    assert jax.config.jax_compilation_cache_dir == str(folders[-1])
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700] * 3


@pytest.mark.usefixtures("no_compilation_cache")
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_no_programs_are_loaded_from_a_folder_that_others_can_write(monkeypatch, tmp_path, capsys, place, mode):
    monkeypatch.setenv("RINGFENCE_CACHE", str(tmp_path / "cache"))
    open_folder = program_folders()[place]
    open_folder.mkdir(parents=True)
    open_folder.chmod(mode)
    use_compilation_cache()
    assert jax.config.jax_compilation_cache_dir is None
    assert main(["doctor"]) == 0
    assert f"compiles anew, because {open_folder} is not a directory that this user owns" in capsys.readouterr().out


@pytest.mark.usefixtures("no_compilation_cache")
def test_no_programs_are_loaded_from_a_folder_of_somebody_else(monkeypatch, tmp_path):
    monkeypatch.setenv("RINGFENCE_CACHE", str(tmp_path))
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    use_compilation_cache()
    assert jax.config.jax_compilation_cache_dir is None
    assert str(tmp_path) in why_not_kept()


@pytest.mark.usefixtures("no_compilation_cache")
def test_a_cache_that_others_can_read_or_that_is_a_link_of_this_users_is_used(monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("RINGFENCE_CACHE", str(tmp_path / "cache"))
    use_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == str(program_folders()[-1])
    assert not why_not_kept()


@pytest.mark.usefixtures("no_compilation_cache")
def test_a_link_of_somebody_else_to_a_folder_of_this_users_is_refused(monkeypatch, tmp_path):
    """Its owner could point it to a folder of their own later. Only root can make one, so the link's owner is made up."""
    link = tmp_path / "cache"
    (tmp_path / "mine").mkdir()
    link.symlink_to(tmp_path / "mine")
    values = list(link.lstat())
    values[stat.ST_UID] += 1
    theirs = os.stat_result(values)
    lstat = Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda path: theirs if path == link else lstat(path))
    assert is_this_users_alone(tmp_path / "mine")
    assert not is_this_users_alone(link)


def test_a_cache_of_the_users_own_choice_is_not_objected_to(monkeypatch, tmp_path):
    monkeypatch.setenv("RINGFENCE_CACHE", str(tmp_path))
    tmp_path.chmod(0o777)
    assert jax.config.jax_compilation_cache_dir  # as tests/conftest.py set it up
    assert not why_not_kept()


def test_doctor_says_where_the_cache_is_and_why_there_is_none(homeless, capsys):
    assert main(["doctor"]) == 0
    assert f"cache:       {homeless}" in capsys.readouterr().out
    homeless.rmdir()
    homeless.write_text("")
    assert main(["doctor"]) == 0
    assert "cache:       none, because there is no home directory" in capsys.readouterr().out
