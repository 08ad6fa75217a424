"""The one training loop that every method runs in."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ringfence.algorithms.interface import AddsColumns, Exports, Metrics
from ringfence.data.dataset import Dataset
from ringfence.deploy import Artifact, Policy
from ringfence.errors import CheckpointError, NonFiniteLoss
from ringfence.progress import ProgressBar
from ringfence.training.artifact import member_artifact
from ringfence.training.checkpoint import load_newest, named_arrays, non_finite, save_checkpoint, steps_saved
from ringfence.training.configuration import Configuration, Member
from ringfence.training.device import diagnostic_sample, spec_of, to_device
from ringfence.training.interrupt import Interrupt
from ringfence.training.journal import Journal
from ringfence.training.plan import Plan
from ringfence.training.population import Programs, compile_programs, without_limit, zero_sums
from ringfence.training.record import Run
from ringfence.training.rundir import RunDirectory
from ringfence.training.sharding import layout_of
from ringfence.training.streams import Row

Evaluate = Callable[[Policy, Member], Mapping[str, float]]
"""What a policy does in a task, with the names of `evaluation.scores`."""

CHUNK_SECONDS = 1.0  # how long one call into the compiled program should take: progress and Ctrl-C wait for it


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
        interrupt: Interrupt,
        observe: Callable[[Row], None],
    ):
        self.log, self.plan, self.evaluate, self.directory = dataset, plan, evaluate, directory
        self.metadata, self.progress, self.interrupt = metadata, progress, interrupt
        self.method = without_limit(plan.method)
        self.stages = self.method.stages(plan.steps)
        self.dataset = plan.learns_from(dataset)
        self.spec = spec_of(self.dataset)
        self.layout = layout_of(self.method, len(plan.members))
        columns = self.method.columns(self.dataset) if isinstance(self.method, AddsColumns) else None
        self.data = self.layout.copy(to_device(self.dataset, columns))
        self.sample = diagnostic_sample(self.dataset, self.data, self.method.discount)
        self.seeds = self.layout.spread(jnp.asarray([member.seed for member in plan.members], jnp.uint32))
        self.result = Run(configuration, path=directory.path if directory else None)
        self.journal = Journal(self.result, plan, directory, progress, observe)
        self.identity = configuration.identity()
        self.policy_steps = 0

    def run(self, resume: bool) -> Run:
        limits = jnp.asarray([member.limit for member in self.plan.members], jnp.float32)
        self.state = self.layout.spread(self._programs(0).init(self.seeds, limits))
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
                self.journal.begin_stage()
            if not self._run_stage(index, start):
                self.result.interrupted = True
                break
        self._leave_policies()
        return self.result

    def _run_stage(self, index: int, done: int) -> bool:
        """Run a stage to its end; False if it was interrupted (and saved)."""
        stage, plan = self.stages[index], self.plan
        last_stage = self._is_last(index)
        programs = self._programs(index)
        self.progress.start(stage.name, done, stage.steps)
        chunk = 10  # steps; adapts to CHUNK_SECONDS. The numbers do not depend on it.
        while done < stage.steps:
            until = min(done + chunk, stage.steps, *(next_multiple(done, every) for every in plan.stops))
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
                self._log(index, done, programs)
            if at_end:
                self._finish(index, programs)
            if last_stage and self.evaluate and (done % plan.evaluate_every == 0 or at_end):
                scores = [self.evaluate(Policy(self.artifact(i)), member) for i, member in enumerate(plan.members)]
                self.journal.evaluated(index, done, scores)
            if last_stage and plan.keep_every is not None and done % plan.keep_every == 0:
                self._keep(done)  # before the checkpoint: a run that is killed between the two keeps it again
            interrupted = self.interrupt.pending and not (at_end and last_stage)
            if done % plan.checkpoint_every == 0 or at_end or interrupted:
                self._save(index, done)
            if interrupted:
                return False
        return True

    def _programs(self, index: int) -> Programs:
        return compile_programs(self.method, self.spec, index, len(self.seeds))

    def _is_last(self, index: int) -> bool:
        return index == len(self.stages) - 1

    def _zeros(self, index: int) -> Metrics:
        return self.layout.spread(zero_sums(self.method, self.spec, index, len(self.seeds), self.state, self.data))

    def _log(self, index: int, done: int, programs: Programs) -> None:
        interval = (done - 1) % self.plan.log_every + 1
        means = {name: np.asarray(total, np.float64) / interval for name, total in self.sums.items()}
        if done % self.plan.log_every == 0 or not self._is_last(index):
            # At an end between two lines the sums go on: the run may be continued for longer.
            self.sums = self.layout.spread(jax.tree.map(jnp.zeros_like, self.sums))
        self._require_finite([name for name, value in means.items() if not np.isfinite(value).all()], index, done)
        if self._is_last(index):
            seen = programs.diagnose(self.state, self.seeds, self.sample, jnp.asarray(done))
            means |= {name: np.asarray(value) for name, value in seen.items()}
        self.journal.measured(index, done, means)
        shown = {name: float(means[name].mean()) for name in self.method.shown if name in means}
        self.progress.advance(done, shown)

    def _finish(self, index: int, programs: Programs) -> None:
        stage = self.stages[index]
        state, report = programs.finish(self.state, self.seeds, self.data)
        self.state = self.layout.spread(state)
        if report:
            self.journal.measured(index, stage.steps, {name: np.asarray(value) for name, value in report.items()})
            shown = ", ".join(f"{name} {float(np.mean(value)):.3g}" for name, value in report.items())
            self.progress.say(f"{stage.name} done: {shown}")

    # Checkpoints and policies

    def _save(self, index: int, done: int) -> None:
        """A checkpoint, after a look at every number: one that is not finite must not push out the good ones."""
        tree = {"state": self.state, "sums": self.sums}
        self._require_finite(non_finite(named_arrays(tree)), index, done)
        if self.directory is not None:
            progress = {"stage": index, "step": done, "lines": self.journal.line_counts()}
            overall = self.journal.overall_step(index, done)
            save_checkpoint(self.directory.checkpoints, overall, tree, progress, self.identity)

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
        self.policy_steps = done if self._is_last(index) else 0
        self.journal.rewind(directory, index, done, lines)
        return index, done

    def _require_finite(self, bad: Sequence[str], index: int, done: int) -> None:
        if bad:
            saved = steps_saved(self.directory.checkpoints) if self.directory else []
            kept = f"; the last good checkpoint is kept in {self.directory.path}" if self.directory and saved else ""
            more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
            raise NonFiniteLoss(
                f"{', '.join(bad[:3])}{more} became NaN or infinite by {self.stages[index].name} step {done}{kept}. "
                "Resuming would end the same way: start a new run with lower learning rates, or look for extreme rewards or "
                "costs with `ringfence inspect`"
            )

    def artifact(self, member_index: int) -> Artifact:
        """What a member has learned so far."""
        assert isinstance(self.method, Exports)
        return member_artifact(
            self.method.export(jax.tree.map(lambda x: x[member_index], self.state)),
            self.result.configuration,
            self.plan.members[member_index],
            self.log,
            self.dataset,
            steps_done=self.policy_steps,
            metadata=self.metadata,
        )

    def _keep(self, done: int) -> None:
        if self.directory is not None and isinstance(self.method, Exports):
            artifacts = [self.artifact(i) for i in range(len(self.plan.members))]
            if all(artifact.has_policy for artifact in artifacts):
                self.directory.keep(done, artifacts, self.plan.members)

    def _leave_policies(self) -> None:
        """Policies and a verdict, once the policy's own training has begun: before, the actor is a random one."""
        left = self.policy_steps > 0 and isinstance(self.method, Exports)
        artifacts = [self.artifact(i) for i in range(len(self.plan.members))] if left else []
        self.result.artifacts = artifacts
        self.result.steps_done = self.policy_steps
        if self.directory is not None and artifacts:
            self.directory.save(artifacts, self.plan.members)
            self.result.write_verdict()


def next_multiple(number: int, of: int) -> int:
    return (number // of + 1) * of
