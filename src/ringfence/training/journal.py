"""What a run reports while it trains: lines of metrics, evaluations and warnings.

A line goes into the `Run`, into its file, and to whoever observes. When a run is resumed, the lines that were written after
its checkpoint are dropped: they are made again.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ringfence.progress import ProgressBar
from ringfence.training import streams
from ringfence.training.configuration import Member
from ringfence.training.plan import Plan
from ringfence.training.population import without_limit
from ringfence.training.record import Run
from ringfence.training.rundir import STREAMS, RunDirectory
from ringfence.training.streams import Row


class Journal:
    """The lines of one run. A place in training is the index of a stage and the steps done in it."""

    def __init__(
        self,
        run: Run,
        plan: Plan,
        directory: RunDirectory | None,
        progress: ProgressBar,
        observe: Callable[[Row], None],
    ):
        self.run, self.plan, self.directory, self.progress, self.observe = run, plan, directory, progress, observe
        self.method = without_limit(plan.method)
        self.stages = self.method.stages(plan.steps)
        self.history: dict[Member, list[Mapping[str, float]]] = defaultdict(list)  # the metrics of this stage
        self.warned: set[tuple[Member, str]] = set()  # each kind of warning is given once per member
        self.lost = dict.fromkeys(STREAMS, 0)  # lines that were written before the checkpoint and are gone

    def overall_step(self, index: int, done: int) -> int:
        return sum(stage.steps for stage in self.stages[:index]) + done

    def begin_stage(self) -> None:
        self.history.clear()

    def measured(self, index: int, done: int, values: Mapping[str, np.ndarray]) -> None:
        """A line of metrics for each member, and the warnings that they give rise to. `values` have an entry per member."""
        stage, rows, warned = self.stages[index], [], []
        for i, member in enumerate(self.plan.members):
            numbers = {name: float(value[i]) for name, value in values.items()}
            where = self._where(index, done, member)
            rows.append({**where, **numbers})
            self.history[member].append(numbers)
            for text in self.method.warnings(stage.name, self.history[member]):
                if (member, _kind(text)) not in self.warned:
                    self.warned.add((member, _kind(text)))
                    warned.append({**where, "text": text})
                    self.progress.warn(f"{text} [{stage.name} step {done}, seed {member.seed}]")
        self._add("metrics", rows)
        self._add("warnings", warned)

    def evaluated(self, index: int, done: int, scores: Sequence[Mapping[str, float]]) -> None:
        """A line for the scores of each member's policy in its task."""
        rows = [
            {**self._where(index, done, member), **score}
            for member, score in zip(self.plan.members, scores, strict=True)
        ]
        self._add("evaluations", rows)
        shown = ", ".join(f"return {row['return']:.0f} cost {row['discounted_cost']:.1f}" for row in rows)
        self.progress.say(f"step {done}: {shown}")

    def _where(self, index: int, done: int, member: Member) -> Row:
        return {
            "stage": self.stages[index].name,
            "step": done,
            "overall_step": self.overall_step(index, done),
            "seed": member.seed,
            "limit": member.limit,
        }

    def _add(self, stream: str, rows: Sequence[Row]) -> None:
        getattr(self.run, stream).extend(rows)
        if self.directory is not None and rows:
            self.directory.append(stream, rows)
        for row in rows:
            self.observe(row)

    def line_counts(self) -> dict[str, int]:
        """How many lines of each stream a run that resumes here must find, whatever its planned number of steps."""
        return {stream: self._scheduled_lines(stream) + self.lost[stream] for stream in STREAMS}

    def rewind(self, directory: RunDirectory, index: int, done: int, counts: Mapping[str, int]) -> None:
        """Go back to the lines up to this place, without those that only the end of a shorter run has. `counts` are those
        of `line_counts` when the checkpoint was written."""
        last_step = self.overall_step(index, done)
        for stream in STREAMS:

            def keep(row: Row, stream: str = stream) -> bool:
                at_end = row["step"] == self.plan.steps
                return bool(row["overall_step"] <= last_step and (at_end or self._is_scheduled(stream, row)))

            file = directory.path / f"{stream}.jsonl"
            streams.rewind(file, keep)
            rows, damage = directory.read(stream)
            getattr(self.run, stream).extend(rows)
            self.lost[stream] = max(counts.get(stream, 0) - self._scheduled_lines(stream), 0)
            if self.lost[stream] > len(damage):
                damage.append(f"{self.lost[stream] - len(damage)} line(s) of {file} are lost")
            self.run.damage += tuple(damage)
            for sentence in damage:
                self.progress.warn(sentence)
        for row in self.run.metrics:
            if row["stage"] == self.stages[index].name:
                self.history[Member(row["seed"], row["limit"])].append(row)
        for row in self.run.warnings:
            self.warned.add((Member(row["seed"], row["limit"]), _kind(row["text"])))

    def _scheduled_lines(self, stream: str) -> int:
        return sum(self._is_scheduled(stream, row) for row in getattr(self.run, stream))

    def _is_scheduled(self, stream: str, row: Row) -> bool:
        """Whether a run of any length has this line; only the end of a run may fall between two intervals."""
        interval = self.plan.evaluate_every if stream == "evaluations" else self.plan.log_every
        return bool(row["step"] % interval == 0 or row["stage"] != self.stages[-1].name)


def _kind(warning: str) -> str:
    """Warnings of one kind have other numbers after the colon."""
    return warning.split(":")[0]
