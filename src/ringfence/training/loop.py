"""The one training loop that every method runs in."""

import json
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from ringfence.algorithms.interface import AddsColumns, Exports, Learner, Metrics, RestrictsLog, Stage, State
from ringfence.data.dataset import Dataset
from ringfence.deploy import Artifact, Policy
from ringfence.errors import CheckpointError, NonFiniteLoss
from ringfence.progress import ProgressBar
from ringfence.training import defaults, streams
from ringfence.training.artifact import artifact_of
from ringfence.training.checkpoint import load_newest, named_arrays, non_finite, save_checkpoint, steps_saved
from ringfence.training.computation import computed_by, versions
from ringfence.training.configuration import Configuration, LogRecord, Member, Schedule, check_members, digest
from ringfence.training.device import diagnostic_sample, spec_of, to_device
from ringfence.training.population import compile_programs, without_limit, zero_sums
from ringfence.training.record import Run
from ringfence.training.rundir import STREAMS, RunDirectory
from ringfence.training.sharding import layout_for
from ringfence.training.streams import Row

Evaluate = Callable[[Policy, Member], Mapping[str, float]]
"""What a policy does in a task, with the names of `evaluation.scores`."""

CHUNK_SECONDS = 1.0  # how long one call into the compiled program should take: progress and Ctrl-C wait for it


@dataclass(frozen=True)
class Plan:
    """What to run, for how long, and how often to look at it."""

    method: Learner  # its own limit is not used: each member has one
    members: tuple[Member, ...]
    steps: int = defaults.STEPS
    log_every: int = defaults.LOG_EVERY
    evaluate_every: int = defaults.EVALUATE_EVERY
    checkpoint_every: int = defaults.CHECKPOINT_EVERY

    def __post_init__(self) -> None:
        _ = self.schedule  # refuses numbers that make no sense
        check_members(self.members)
        self.method.stages(self.steps)  # a method may refuse so many steps; better before anything is written

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.steps, self.log_every, self.evaluate_every, self.checkpoint_every)

    def learns_from(self, log: Dataset) -> Dataset:
        """The part of the log that the method learns from; an error if it finds nothing it can use."""
        if isinstance(self.method, RestrictsLog):
            return self.method.restrict(log, [member.limit for member in self.members])
        return log

    def configuration(
        self, log: Dataset, origin: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None
    ) -> Configuration:
        """What the run directory remembers of a run of this plan on this log."""
        return Configuration(
            method=self.method.name,
            settings=json.loads(json.dumps(asdict(cast(Any, without_limit(self.method))))),
            members=self.members,
            schedule=self.schedule,
            log=LogRecord(log.name, len(log), log.fingerprint, log.horizon, origin),
            extras=dict(extras or {}),
            computed_by=(computed_by(),),
            versions=versions(),
        )


def run(
    dataset: Dataset,
    plan: Plan,
    *,
    evaluate: Evaluate | None = None,
    directory: RunDirectory | None = None,
    configuration: Configuration | None = None,
    resume: bool = False,
    metadata: Mapping[str, Any] | None = None,
    progress: bool = True,
    observe: Callable[[Row], None] = lambda row: None,
) -> Run:
    """Train every member of the plan. With a directory the run can be killed at any moment and resumed to the same
    numbers; the directory must have been created with the same configuration (by default the plan's own on this log).
    `observe` sees each line of metrics and evaluations as it is made."""
    configuration = configuration or plan.configuration(dataset)
    with ProgressBar(progress) as shown, Interrupt() as interrupt:
        session = Session(
            dataset, plan, configuration, evaluate, directory, dict(metadata or {}), shown, interrupt, observe
        )
        return session.run(resume)


class Session:
    """The state of one call of `run`."""

    def __init__(
        self,
        dataset: Dataset,
        plan: Plan,
        configuration: Configuration,
        evaluate: Evaluate | None,
        directory: RunDirectory | None,
        metadata: dict[str, Any],
        progress: ProgressBar,
        interrupt: "Interrupt",
        observe: Callable[[Row], None],
    ):
        self.log, self.plan, self.evaluate, self.directory = dataset, plan, evaluate, directory
        self.metadata, self.progress, self.interrupt, self.observe = metadata, progress, interrupt, observe
        self.method = without_limit(plan.method)
        self.stages = self.method.stages(plan.steps)
        self.dataset = plan.learns_from(dataset)
        self.spec = spec_of(self.dataset)
        self.layout = layout_for(len(plan.members), self.method.batch_size)
        columns = self.method.columns(self.dataset) if isinstance(self.method, AddsColumns) else None
        self.data = self.layout.copy(to_device(self.dataset, columns))
        self.sample = diagnostic_sample(self.dataset, self.data, self.method.discount)
        self.seeds = self.layout.spread(jnp.asarray([member.seed for member in plan.members], jnp.uint32))
        self.result = Run(configuration, path=directory.path if directory else None)
        self.identity = configuration.identity()
        self.history: dict[Member, list[Mapping[str, float]]] = defaultdict(list)
        self.warned: set[tuple[Member, str]] = set()  # each kind of warning is given once per member
        self.policy_steps = 0
        self.lost = dict.fromkeys(STREAMS, 0)  # lines that were written before the checkpoint and are gone

    def run(self, resume: bool) -> Run:
        limits = jnp.asarray([member.limit for member in self.plan.members], jnp.float32)
        first = compile_programs(self.method, self.spec, 0, len(self.seeds))
        self.state = self.layout.spread(first.init(self.seeds, limits))
        stage_index, done = 0, 0
        self.sums = self._zeros(0)
        if resume and self.directory is not None:
            stage_index, done = self._restore(self.directory)
        if len(self.stages) > 1:
            self.progress.say("stages: " + ", then ".join(f"{s.name} ({s.steps:,} steps)" for s in self.stages))
        for index in range(stage_index, len(self.stages)):
            start = done if index == stage_index else 0
            if index > stage_index:
                self.sums = self._zeros(index)
                self.history.clear()
            if not self._run_stage(index, start):
                self.result.interrupted = True
                break
        self._leave_policies()
        return self.result

    def _run_stage(self, index: int, done: int) -> bool:
        """Run a stage to its end; False if it was interrupted (and saved)."""
        stage, plan = self.stages[index], self.plan
        last_stage = index == len(self.stages) - 1
        programs = compile_programs(self.method, self.spec, index, len(self.seeds))
        self.progress.start(stage.name, done, stage.steps)
        chunk = 10  # steps; adapts to CHUNK_SECONDS. The numbers do not depend on it.
        while done < stage.steps:
            until = min(done + chunk, stage.steps, *(next_multiple(done, every) for every in plan.schedule.intervals))
            began = time.monotonic()
            constants = (self.data, self.seeds)
            self.state, self.sums = programs.advance(
                constants, (self.state, self.sums), jnp.asarray(done), jnp.asarray(until)
            )
            jax.tree.map(np.asarray, self.sums)  # wait for it
            if (took := time.monotonic() - began) > 0 and until - done == chunk:
                chunk = int(np.clip(chunk * CHUNK_SECONDS / took, chunk / 4 + 1, chunk * 4))
            done = until
            self.progress.advance(done, last=False)
            self.policy_steps = done if last_stage else 0
            at_end = done == stage.steps
            if done % plan.log_every == 0 or at_end:
                self._log(index, stage, done, programs.diagnose)
            if at_end:
                self._finish(index, stage, programs.finish)
            if last_stage and self.evaluate and (done % plan.evaluate_every == 0 or at_end):
                self._evaluate(index, stage, done)
            interrupted = self.interrupt.pending and not (at_end and last_stage)
            if done % plan.checkpoint_every == 0 or at_end or interrupted:
                self._save(index, done)
            if interrupted:
                return False
        return True

    def _overall(self, index: int, done: int) -> int:
        return sum(stage.steps for stage in self.stages[:index]) + done

    def _zeros(self, index: int) -> Metrics:
        return self.layout.spread(zero_sums(self.method, self.spec, index, len(self.seeds), self.state, self.data))

    def _log(self, index: int, stage: Stage, done: int, diagnose: Callable[..., Metrics]) -> None:
        interval = (done - 1) % self.plan.log_every + 1
        means = {name: np.asarray(total, np.float64) / interval for name, total in self.sums.items()}
        last_stage = index == len(self.stages) - 1
        if done % self.plan.log_every == 0 or not last_stage:
            # At an end between two lines the sums go on: the run may be continued for longer.
            self.sums = self.layout.spread(jax.tree.map(jnp.zeros_like, self.sums))
        self._require_finite([name for name, value in means.items() if not np.isfinite(value).all()], stage, done)
        if last_stage:
            seen = diagnose(self.state, self.seeds, self.sample, jnp.asarray(done))
            means |= {name: np.asarray(value) for name, value in seen.items()}
        self._record(index, stage, done, means)
        shown = {name: float(means[name].mean()) for name in self.method.shown if name in means}
        self.progress.advance(done, shown)

    def _finish(self, index: int, stage: Stage, finish: Callable[..., tuple[State, Metrics]]) -> None:
        state, report = finish(self.state, self.seeds, self.data)
        self.state = self.layout.spread(state)
        if report:
            self._record(index, stage, stage.steps, {name: np.asarray(value) for name, value in report.items()})
            shown = ", ".join(f"{name} {float(np.mean(value)):.3g}" for name, value in report.items())
            self.progress.say(f"{stage.name} done: {shown}")

    def _record(self, index: int, stage: Stage, done: int, values: Mapping[str, np.ndarray]) -> None:
        rows, warned = [], []
        for i, member in enumerate(self.plan.members):
            numbers = {name: float(value[i]) for name, value in values.items()}
            where = self._where(index, stage, done, member)
            rows.append({**where, **numbers})
            self.history[member].append(numbers)
            for text in self.method.warnings(stage.name, self.history[member]):
                kind = text.split(":")[0]
                if (member, kind) not in self.warned:
                    self.warned.add((member, kind))
                    warned.append({**where, "text": text})
                    self.progress.warn(f"{text} [{stage.name} step {done}, seed {member.seed}]")
        self._emit("metrics", self.result.metrics, rows)
        self._emit("warnings", self.result.warnings, warned)

    def _evaluate(self, index: int, stage: Stage, done: int) -> None:
        assert self.evaluate is not None
        rows = []
        for i, member in enumerate(self.plan.members):
            rows.append({**self._where(index, stage, done, member), **self.evaluate(Policy(self.artifact(i)), member)})
        self._emit("evaluations", self.result.evaluations, rows)
        shown = ", ".join(f"return {row['return']:.0f} cost {row['discounted_cost']:.1f}" for row in rows)
        self.progress.say(f"step {done}: {shown}")

    def _where(self, index: int, stage: Stage, done: int, member: Member) -> Row:
        return {
            "stage": stage.name,
            "step": done,
            "overall_step": self._overall(index, done),
            "seed": member.seed,
            "limit": member.limit,
        }

    def _emit(self, stream: str, kept: list[Row], rows: Sequence[Row]) -> None:
        kept.extend(rows)
        if self.directory is not None and rows:
            self.directory.append(stream, rows)
        for row in rows:
            self.observe(row)

    def _require_finite(self, bad: Sequence[str], stage: Stage, done: int) -> None:
        if bad:
            saved = steps_saved(self.directory.checkpoints) if self.directory else []
            kept = f"; the last good checkpoint is kept in {self.directory.path}" if self.directory and saved else ""
            more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
            raise NonFiniteLoss(
                f"{', '.join(bad[:3])}{more} became NaN or infinite by {stage.name} step {done}{kept}. Going on would come "
                "to the same: start a new run with lower learning rates, or look for extreme rewards or costs with "
                "`ringfence inspect`"
            )

    def artifact(self, index: int) -> Artifact:
        """What a member has learned so far."""
        assert isinstance(self.method, Exports)
        member = self.plan.members[index]
        export = self.method.export(jax.tree.map(lambda x: x[index], self.state))
        return artifact_of(
            export,
            self.log,
            learned_from=self.dataset,
            method=self.method.name,
            limit=member.limit if export.limit_range is None else None,  # else it is given at run time
            discount=self.method.discount,
            seed=member.seed,
            steps_done=self.policy_steps,
            steps_planned=self.plan.steps,
            metadata={**self.metadata, **self._origin()},
        )

    def _origin(self) -> dict[str, str]:
        """Which run made a policy, from which log, and from which part of it where episodes were set aside."""
        log = self.result.configuration.log.fingerprint
        part = {"learned_from": self.log.fingerprint} if self.log.fingerprint != log else {}
        return {"run": digest(self.identity), "log_fingerprint": log, **part}

    def _leave_policies(self) -> None:
        """Policies and a verdict, once the policy's own training has begun: before, the actor is a random one."""
        left = self.policy_steps > 0 and isinstance(self.method, Exports)
        artifacts = [self.artifact(i) for i in range(len(self.plan.members))] if left else []
        self.result.artifacts = artifacts
        self.result.steps_done = self.policy_steps
        if self.directory is not None and artifacts:
            self.directory.save(artifacts, self.plan.members)
            self.result.write_verdict()

    def _save(self, index: int, done: int) -> None:
        """A checkpoint, after a look at every number: one that is not finite must not push out the good ones."""
        tree = {"state": self.state, "sums": self.sums}
        self._require_finite(non_finite(named_arrays(tree)), self.stages[index], done)
        if self.directory is not None:
            progress = {"stage": index, "step": done, "lines": {name: self._lines(name) for name in STREAMS}}
            save_checkpoint(self.directory.checkpoints, self._overall(index, done), tree, progress, self.identity)

    def _restore(self, directory: RunDirectory) -> tuple[int, int]:
        """Go back to the newest whole checkpoint, and forget what was logged after it. Returns stage and step."""
        found = load_newest(
            directory.checkpoints,
            lambda progress: {"state": self.state, "sums": self._zeros(progress["stage"])},
            self.identity,
        )
        index, done, lines = 0, 0, {}
        if found is not None:
            tree, progress = found
            self.state, self.sums = self.layout.spread((tree["state"], tree["sums"]))
            index, done, lines = progress["stage"], progress["step"], progress.get("lines", {})
        if done > self.stages[index].steps:
            raise CheckpointError(
                f"{directory.path} has {done} steps behind it, more than the {self.plan.steps} planned"
            )
        self.policy_steps = done if index == len(self.stages) - 1 else 0
        self._rewind(directory, self._overall(index, done), lines)
        for row in self.result.metrics:
            if row["stage"] == self.stages[index].name:
                self.history[Member(row["seed"], row["limit"])].append(row)
        for row in self.result.warnings:
            self.warned.add((Member(row["seed"], row["limit"]), row["text"].split(":")[0]))
        return index, done

    def _rewind(self, directory: RunDirectory, step: int, lines: Mapping[str, int]) -> None:
        """Keep the lines up to this (overall) step, without those that only the end of a shorter run has. `lines` says how
        many there were when the checkpoint was written."""
        for stream in STREAMS:

            def keep(row: Row, stream: str = stream) -> bool:
                at_end = row["step"] == self.plan.steps
                return bool(row["overall_step"] <= step and (at_end or self._on_schedule(stream, row)))

            file = directory.path / f"{stream}.jsonl"
            streams.rewind(file, keep)
            rows, damage = directory.read(stream)
            getattr(self.result, stream).extend(rows)
            self.lost[stream] = max(lines.get(stream, 0) - self._lines(stream), 0)
            if self.lost[stream] > len(damage):
                damage.append(f"{self.lost[stream] - len(damage)} line(s) of {file} are lost")
            self.result.damage += tuple(damage)
            for sentence in damage:
                self.progress.warn(sentence)

    def _lines(self, stream: str) -> int:
        """How many lines of this stream a run that resumes here must find, whatever its planned number of steps."""
        return sum(self._on_schedule(stream, row) for row in getattr(self.result, stream)) + self.lost[stream]

    def _on_schedule(self, stream: str, row: Row) -> bool:
        interval = self.plan.evaluate_every if stream == "evaluations" else self.plan.log_every
        return bool(row["step"] % interval == 0 or row["stage"] != self.stages[-1].name)


def next_multiple(number: int, of: int) -> int:
    return (number // of + 1) * of


class Interrupt:
    """Turns the first Ctrl-C into a request to save and stop; a second one stops at once."""

    def __init__(self) -> None:
        self.pending = False

    def __enter__(self) -> "Interrupt":
        self.previous: Any = None
        if threading.current_thread() is threading.main_thread():
            self.previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.pending = True
        signal.signal(signal.SIGINT, self.previous)
