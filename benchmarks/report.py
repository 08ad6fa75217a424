"""The measured numbers as tables on the terminal and in the docs, a JSON file and a picture."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table as RichTable

from ringfence.files import write_json


def read(path: Path) -> dict[str, Any]:
    """Numbers of an earlier run, of which only the sections measured now are replaced."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, numbers: dict[str, Any]) -> None:
    write_json(path, rounded(numbers))


def rounded(value: Any) -> Any:
    """Four significant digits: more would be noise."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def entries(section: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    return ((name, value) for name, value in section.items() if name != "load_average")


class Table(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]]

    def for_terminal(self) -> RichTable:
        made = RichTable(title=self.title, title_justify="left")
        for i, column in enumerate(self.columns):
            made.add_column(column, justify="left" if i == 0 else "right")
        for row in self.rows:
            made.add_row(*row)
        return made

    def for_docs(self) -> str:
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)], *self.rows]
        return "\n".join([f"**{self.title}**", "", *("| " + " | ".join(line) + " |" for line in lines)])


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    return Table(title, columns, list(rows))


def tables(numbers: dict[str, Any]) -> list[Table]:
    """One table per section that was measured."""
    return [make(numbers) for name, make in TABLES.items() if name in numbers]


def show(numbers: dict[str, Any], console: Console) -> None:
    console.print(machine_line(numbers))
    for made in tables(numbers):
        console.print(made.for_terminal())


BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def update_page(numbers: dict[str, Any], page: Path) -> None:
    """Put the tables between the two marks of a Markdown page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    inside = "\n\n".join([machine_line(numbers), *(made.for_docs() for made in tables(numbers))])
    page.write_text(f"{before}{BEGIN}\n{inside}\n{END}{after}", encoding="utf-8")


def machine_line(numbers: dict[str, Any]) -> str:
    about = numbers["machine"]
    loads = [section.get("load_average") for section in numbers.values()]
    busy = max((load for load in loads if load is not None), default=float("nan"))
    return (
        f"{about['processor']}, {about['cores']} cores, {about['vector_instructions']}; jax {about['versions']['jax']}, "
        f"{about['computation']}, Python {about['python']}; {about['date']}; greatest load average while measuring: {busy}."
    )


def peak_table(numbers: dict[str, Any]) -> Table:
    rows = [
        (count, f"{value['gflops']:.0f}", f"{value.get('gflop_per_cpu_second', float('nan')):.0f}")
        for count, value in entries(numbers["peak"])
    ]
    return table("Matrix-multiply peak, float32", ("cores", "GFLOP/s", "GFLOP per CPU second"), rows)


def speed_rows(section: dict[str, Any]) -> Iterable[Sequence[str]]:
    for name, value in entries(section):
        numbers = (value["steps_per_second"], value["median"])
        yield (
            name,
            *(f"{number:.1f}" for number in numbers),
            f"{value['matrix_flops'] / 1e9:.3f}",
            f"{value['gflops']:.0f}",
            f"{value['peak_gflops']:.0f}",
            f"{100 * value['share_of_peak']:.0f} %",
            f"{value['indicator']:.2f}" if "indicator" in value else "",
        )


SPEED_COLUMNS = ("", "steps/s", "median", "GFLOP/step", "GFLOP/s", "peak beside it", "of peak", "indicator")


def methods_table(numbers: dict[str, Any]) -> Table:
    rows = speed_rows(numbers["methods"])
    return table("Every method: batch 256, hidden 256x256, a log of Hopper, all cores", SPEED_COLUMNS, rows)


def without_kernels_table(numbers: dict[str, Any]) -> Table:
    rows = speed_rows(numbers["without_kernels"])
    return table("CPQ without our kernels: XLA's own products, all cores", SPEED_COLUMNS, rows)


def one_core_table(numbers: dict[str, Any]) -> Table:
    return table("The same on one core", SPEED_COLUMNS, speed_rows(numbers["one_core"]))


def population_table(numbers: dict[str, Any]) -> Table:
    section = numbers["population"]
    rows = [(f"{n} seeds, one program", f"{rate:.1f}") for n, rate in section["one_program"].items()]
    rows += [(f"{n} processes", f"{rate:.1f}") for n, rate in section["processes"].items()]
    return table("Several seeds of CPQ: steps of all of them together", ("", "steps/s"), rows)


def startup_table(numbers: dict[str, Any]) -> Table:
    rows = [(name.replace("_", " "), f"{value:.2f}") for name, value in entries(numbers["startup"])]
    return table("Waiting", ("", ""), rows)


def evaluation_table(numbers: dict[str, Any]) -> Table:
    section = numbers["evaluation"]
    rows = [
        ("environment steps/s", f"{section['env_steps_per_second']:.0f}"),
        ("one evaluation of 10 episodes, s", f"{section['seconds']:.2f}"),
        ("share of a run, every 5,000 steps", f"{100 * section['share_of_run']:.1f} %"),
    ]
    return table("Evaluation", ("", ""), rows)


def large_log_table(numbers: dict[str, Any]) -> Table:
    section = numbers["large_log"]
    rows = [
        (
            f"read {suffix}",
            f"{section[suffix]['seconds']:.1f}",
            f"{section[suffix]['peak_megabytes']:.0f}",
            f"{section[suffix]['peak_over_data']:.2f}",
        )
        for suffix in ("h5", "parquet")
    ]
    train = section["train"]
    extra = train["peak_megabytes"] - train["peak_on_a_tiny_log_megabytes"]
    rows.append(("train", "", f"{extra:.0f}", f"{train['for_the_log_over_data']:.2f}"))
    rows.append(("batches drawn/s", f"{section['sampling']['batches_per_second']:.0f}", "", ""))
    data = section["h5"]["data_megabytes"]
    title = f"A log of {section['rows']:,} rows of Walker2d's size, {data:.0f} MB"
    return table(title, ("", "s", "peak MB", "peak / data"), rows)


def growth_table(numbers: dict[str, Any]) -> Table:
    rows = [
        (f"{name} {value}", f"{m['steps_per_second']:.1f}", f"{m['matrix_flops'] / 1e9:.3f}", f"{m['gflops']:.0f}")
        for name, section in entries(numbers["growth"])
        for value, m in section.items()
    ]
    return table("Growth of CPQ's default", ("", "steps/s", "GFLOP/step", "GFLOP/s"), rows)


def peers_table(numbers: dict[str, Any]) -> Table:
    """Others' CPQ steps beside ours; the ratio, of steps per second, is to the first line with the same cores."""
    rows: list[Sequence[str]] = []
    for cores, section in entries(numbers["peers"]):
        base = next((v["steps_per_second"] for v in section.values() if "failed" not in v), float("nan"))
        for name, value in section.items():
            if "failed" in value:
                rows.append((name, cores, value["failed"], "", ""))
                continue
            rate, cpu = value["steps_per_second"], value["steps_per_cpu_second"]
            rows.append((name, cores, f"{rate:.1f}", f"{cpu:.1f}", f"{rate / base:.1f}"))
    columns = ("", "cores", "steps/s", "steps per CPU second", "times")
    return table("CPQ's step elsewhere: batch 256, hidden 256x256, n = 10", columns, rows)


def before_table(numbers: dict[str, Any]) -> Table:
    rows = []
    for cores, section in entries(numbers["before_and_after"]):
        for name, trees in section.items():
            before, after = (trees[tree]["steps_per_cpu_second"] for tree in ("before", "after"))
            rows.append((name, cores, f"{before:.1f}", f"{after:.1f}", f"{after / before:.2f}"))
    columns = ("steps per CPU second", "cores", "before", "after", "times")
    return table("Before and after the work on speed", columns, rows)


TABLES = {
    "peak": peak_table,
    "methods": methods_table,
    "without_kernels": without_kernels_table,
    "one_core": one_core_table,
    "population": population_table,
    "startup": startup_table,
    "evaluation": evaluation_table,
    "large_log": large_log_table,
    "growth": growth_table,
    "peers": peers_table,
    "before_and_after": before_table,
}


def draw(numbers: dict[str, Any], path: Path) -> None:
    """Time per step as one thing grows, beside what its matrix work alone would make of the first point."""
    if "growth" not in numbers:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sections = list(entries(numbers["growth"]))
    figure, axes = plt.subplots(1, len(sections), figsize=(3.2 * len(sections), 3), sharey=True)
    for axis, (name, section) in zip(axes, sections, strict=True):
        x = [int(value) for value in section]
        times = [1e3 / m["steps_per_second"] for m in section.values()]
        work = [m["matrix_flops"] for m in section.values()]
        axis.loglog(x, times, "o-", label="measured")
        axis.loglog(
            x, [times[-1] * w / work[-1] for w in work], "--", color="grey", label="in step with its arithmetic"
        )
        axis.set_xlabel(name.replace("_", " "))
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("ms per step")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
