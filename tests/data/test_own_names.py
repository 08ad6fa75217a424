"""A reactor's log with names, units and number formats of its own, in Parquet and CSV."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfence.cli import main
from ringfence.cli.options import parse_columns
from ringfence.data import ColumnMapping, load_file
from ringfence.errors import EmptyData, InvalidSetting, MissingColumns, UnreadableFile, WrongShape

NAMES = {"observations": ("cA", "T_K"), "actions": "Tc_K", "rewards": "profit", "costs": "hot", "episode": "batch"}
WORDS = ["observations=cA,T_K", "actions=Tc_K", "rewards=profit", "costs=hot", "episode=batch"]


def reactor_rows(rows=30):
    rng = np.random.default_rng(0)
    return {
        "batch": np.arange(rows) // 10,
        "cA": rng.uniform(0.1, 0.9, rows),
        "T_K": rng.uniform(300.5, 380.5, rows),
        "Tc_K": rng.uniform(280, 320, rows),
        "profit": rng.normal(size=rows),
        "hot": rng.integers(0, 2, rows),
    }


def write_text(path, table, delimiter=",", decimal=".", quote=""):
    lines = [delimiter.join(table)]
    for row in zip(*table.values(), strict=True):
        lines.append(delimiter.join(f"{quote}{value}{quote}".replace(".", decimal) for value in row))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def parquet(tmp_path):
    pq.write_table(pa.table(reactor_rows()), tmp_path / "reactor.parquet")
    return tmp_path / "reactor.parquet"


def refusal(capsys, *words):
    assert main([str(word) for word in words]) == 2
    err = capsys.readouterr().err.strip()
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1
    return err


def test_the_exact_name_of_one_column_wins_over_a_prefix():
    present = ["cA", "T_K", "Tc_K", "Tc_K0", "profit"]
    assert ColumnMapping(actions="Tc_K").resolve(present)["actions"] == ("Tc_K",)
    assert ColumnMapping(actions="Tc_K").resolve(["Tc_K0", "Tc_K1"])["actions"] == ("Tc_K0", "Tc_K1")


def test_one_action_column_is_given_by_its_name_on_the_command_line(parquet, capsys):
    assert main(["inspect", str(parquet), "--json", "--columns", *WORDS]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["action_names"] == ["Tc_K"]
    assert summary["observation_names"] == ["cA", "T_K"]


@pytest.mark.parametrize("word", ["reward", "rewards"])
def test_singular_and_plural_name_the_same_column(word):
    assert parse_columns([f"{word}=profit"]) == ColumnMapping(rewards="profit")


def test_a_name_with_a_comma_stands_in_quotes():
    assert parse_columns(['observations=speed, "flow ""n"", north"', 'rewards="profit, net"']) == ColumnMapping(
        observations=("speed", 'flow "n", north'), rewards="profit, net"
    )


def test_a_table_with_other_names_says_how_to_give_them(tmp_path, capsys):
    table = tmp_path / "log.csv"
    table.write_text("speed,valve,reward,cost,episode\n1,2,3,0,1\n")
    assert "--columns observations=" in refusal(capsys, "inspect", table)


def test_text_that_is_not_utf8_says_what_to_do(tmp_path, capsys):
    table = tmp_path / "log.csv"
    table.write_bytes("Größe,action_0,reward,cost,episode\n1,2,3,0,1\n".encode("latin-1"))
    assert "save it again with the encoding UTF-8" in refusal(capsys, "inspect", table)


def test_a_column_without_a_name_is_noted_as_such(tmp_path):
    table = tmp_path / "log.csv"  # as pandas writes it with its index
    table.write_text(",obs_0,action_0,reward,cost,episode\n" + "".join(f"{i},{i},0,0,0,0\n" for i in range(4)))
    assert "not used: a column without a name" in load_file(table).notes


def test_a_near_miss_is_asked_about(parquet, capsys):
    with pytest.raises(InvalidSetting, match="did you mean 'rewards'"):
        parse_columns(["rewrads=profit"])
    with pytest.raises(MissingColumns, match="did you mean 'Tc_K'"):
        load_file(parquet, columns=NAMES | {"actions": "tc_k"})
    with pytest.raises(MissingColumns, match=r"there is no column 'T_k'.*did you mean 'T_K'"):
        load_file(parquet, columns=NAMES | {"observations": ["cA", "T_k"]})
    assert "did you mean 'observations'" in refusal(capsys, "inspect", parquet, "--columns", "observatoins=cA")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reward=a", "rewards=b"], "rewards is given twice"),
        (["rewards=a", "rewards=b"], "rewards is given twice"),
        (["rewards"], "OURS=THEIRS"),
        (["speed=a"], "no column 'speed'; it has observations"),
    ],
)
def test_words_that_make_no_mapping_are_refused(words, message):
    with pytest.raises(InvalidSetting, match=message):
        parse_columns(words)


def test_a_column_listed_twice_among_the_observations_is_refused(parquet):
    with pytest.raises(InvalidSetting, match="'cA' is listed twice"):
        load_file(parquet, columns=NAMES | {"observations": ["cA", "cA"]})


@pytest.mark.parametrize("word", ["reward", "cost", "terminated", "truncated", "episode", "source"])
def test_two_columns_for_what_is_one_are_refused(word):
    """Of two costs the first alone would be kept inside the limit."""
    mapping = parse_columns([f"{word}=one,two"])
    with pytest.raises(InvalidSetting, match="is one column, not one, two"):
        mapping.resolve(["obs_0", "action_0", "reward", "cost", "one", "two"])


def test_an_action_cannot_be_an_observation_too(parquet):
    with pytest.raises(InvalidSetting, match="'Tc_K' is listed as an observation and as an action"):
        load_file(parquet, columns=NAMES | {"observations": ["cA", "Tc_K"], "actions": "Tc_K"})


def test_a_table_without_rows_says_so(tmp_path, parquet):
    empty = tmp_path / "empty.parquet"
    pq.write_table(pq.read_table(parquet).slice(0, 0), empty)
    with pytest.raises(EmptyData, match=r"empty\.parquet has no rows"):
        load_file(empty, columns=NAMES)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_csv_file_is_read_whatever_divides_its_columns(tmp_path, parquet, delimiter):
    path = write_text(tmp_path / "reactor.csv", reactor_rows(), delimiter)
    log = load_file(path, columns=NAMES)
    assert log.fingerprint == load_file(parquet, columns=NAMES).fingerprint
    assert any(repr(delimiter) in note for note in log.notes) == (delimiter != ",")
    assert load_file(path, columns=NAMES, csv_delimiter=delimiter).fingerprint == log.fingerprint


def test_a_decimal_comma_is_refused_with_the_option_that_reads_it(tmp_path, parquet, capsys):
    path = write_text(tmp_path / "reactor.csv", reactor_rows(), ";", ",")
    assert "--csv-decimal ," in refusal(capsys, "inspect", path, "--columns", *WORDS)
    assert main(["inspect", str(path), "--json", "--csv-decimal", ",", "--columns", *WORDS]) == 0
    expected = load_file(parquet, columns=NAMES).fingerprint
    assert json.loads(capsys.readouterr().out)["fingerprint"] == expected


def test_quoted_decimal_commas_between_commas_are_read_by_the_option_that_their_refusal_names(tmp_path, parquet):
    path = write_text(tmp_path / "reactor.csv", reactor_rows(), ",", ",", quote='"')
    with pytest.raises(WrongShape, match=r"--csv-decimal ,"):
        load_file(path, columns=NAMES)
    expected = load_file(parquet, columns=NAMES).fingerprint
    for style in ({"csv_decimal": ","}, {"csv_decimal": ",", "csv_delimiter": ","}):
        assert load_file(path, columns=NAMES, **style).fingerprint == expected


def test_a_decimal_point_in_a_file_said_to_have_commas_is_refused(tmp_path):
    path = write_text(tmp_path / "reactor.csv", reactor_rows(), ";")
    with pytest.raises(WrongShape, match=r"--csv-decimal \."):
        load_file(path, columns=NAMES, csv_decimal=",")


def test_a_first_line_in_doubt_is_refused_with_the_option_that_decides(tmp_path):
    table = {name.replace("_", ";"): values for name, values in reactor_rows().items()}
    path = write_text(tmp_path / "reactor.csv", table)
    names = NAMES | {"observations": ("cA", "T;K"), "actions": "Tc;K"}
    with pytest.raises(UnreadableFile, match=r"','.*';'.*--csv-delimiter"):
        load_file(path, columns=names)
    assert load_file(path, columns=names, csv_delimiter=",").action_names == ("Tc;K",)


@pytest.mark.parametrize(
    ("style", "message"),
    [
        ({"csv_delimiter": ";;"}, "one character"),
        ({"csv_decimal": "'"}, r"\. or ,"),
        ({"csv_delimiter": ",", "csv_decimal": ","}, "both"),
        ({"csv_decimal": ","}, "--csv-delimiter"),
    ],
)
def test_a_senseless_csv_style_is_refused(tmp_path, style, message):
    path = write_text(tmp_path / "reactor.csv", reactor_rows(), decimal=style.get("csv_decimal", ".").replace("'", "."))
    with pytest.raises(InvalidSetting, match=message):
        load_file(path, columns=NAMES, **style)


def test_a_csv_style_for_another_format_is_refused(parquet):
    with pytest.raises(InvalidSetting, match="for CSV files"):
        load_file(parquet, columns=NAMES, csv_decimal=",")


@pytest.mark.parametrize(("low", "high"), [(["250"], ["350"]), (["-40.5"], ["350"])])
def test_action_bounds_are_given_on_the_command_line(parquet, capsys, low, high):
    words = ["inspect", str(parquet), "--json", "--action-low", *low, "--action-high", *high, "--columns", *WORDS]
    assert main(words) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["action_low"] == [float(low[0])]
    assert summary["action_high"] == [float(high[0])]


def test_action_bounds_that_do_not_fit_are_refused(parquet, capsys):
    bounds = ["--action-low", "250", "251", "--action-high", "350", "--columns", *WORDS]
    assert "one per action dimension (1)" in refusal(capsys, "inspect", parquet, *bounds)
    assert "give both" in refusal(capsys, "inspect", parquet, "--action-low", "250", "--columns", *WORDS)
