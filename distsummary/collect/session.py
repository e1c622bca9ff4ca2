"""Session: everything that a collector keeps open while it records, such as files and lineage."""

import math
import struct
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from distsummary.base.failures import Failures, one_line
from distsummary.base.guard import guarded, guarded_log
from distsummary.base.health import Health, absences
from distsummary.base.interrupts import is_interruption
from distsummary.base.processes import age_s, is_alive, peak_memory_gib
from distsummary.base.redaction import redacted
from distsummary.collect.background import Background
from distsummary.collect.config import differing, listed
from distsummary.collect.file_export import Exports, write_values
from distsummary.collect.heartbeat import Pulse
from distsummary.collect.provenance import command_line, error_text, provenance
from distsummary.collect.remote.open_writer import open_writer
from distsummary.collect.run_settings import RunSettings
from distsummary.collect.session_end import Parts, SessionEnd
from distsummary.collect.values.system_metrics import Sampler, SystemMonitor, sources_of
from distsummary.collect.watcher import LoopPlace, Watcher, groups_of_torch
from distsummary.diagnosis.diagnose import Diagnose
from distsummary.diagnosis.reporting import Alerts, SentAlerts
from distsummary.diagnosis.verdict import ERROR, MESSAGE, OVERHEAD, UNSAVED, WARNING, Verdict
from distsummary.errors import ClosedError, MissingRunDirError
from distsummary.events.overhead import Overhead
from distsummary.events.segments import segments
from distsummary.format.own_tags import EPOCH, EVERY, OWN_MS, RUN_TEXT, WAIT_MS, is_own
from distsummary.format.records import DIALECTS, LINEAGE_PLUGINS, Event, Value
from distsummary.format.scalar_rows import MAX_PACKERS, row_struct
from distsummary.rundir.attempts import Registration, newest_attempt
from distsummary.rundir.coordination import Coordinator, LocalCoordinator
from distsummary.rundir.deal import SPENT, Deal, Group, Heartbeat, Part
from distsummary.rundir.rank_facts import RankFacts, write_command, write_facts
from distsummary.rundir.rank_manifest import ranks_of
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.run_text import run_text
from distsummary.rundir.states import read_run
from distsummary.rundir.topology import Topology, lost_driver
from distsummary.training.recorder import counted
from distsummary.training.run import STEP_TIMES
from distsummary.training.timing.phases import CHECKPOINT, EVALUATION, STEP_PHASES
from distsummary.training.values import resolve

if TYPE_CHECKING:
    from distsummary.checkpoints.landscape_spec import LandscapeSpec
    from distsummary.collect.checkpoint_keeper import CheckpointKeeper

logger = guarded_log(__name__)

NOTHING: Mapping[str, object] = MappingProxyType({})
BY_LOG, BY_EVALUATION = "run.log", "an evaluation"  # who gives numbers
MESSAGES_S = 8.0  # the end waits so long for git or a driver, if nothing else has to be done
_left_s = [-math.inf]  # when the newest run of this process ended, by time.monotonic()


class Past(NamedTuple):
    """The newest attempt of a training that no process records any more, and this rank's files in it.

    `formats` are those that the training wrote. Nothing is added in another format, because a merge reads
    only one format of an attempt.
    """

    registration: Registration
    rank_dir: Path
    formats: tuple[str, ...]


def find_past(run_dir: RunDir, topology: Topology) -> Past | None:
    """The training that an evaluation by this rank belongs to; None if there is none or it still runs."""
    manifest = run_dir.read_manifest()
    entry = newest_attempt(manifest)
    if entry is None or topology.world_size > entry["world_size"]:
        return None
    known = ranks_of(run_dir, entry, [topology.rank]).get(str(topology.rank))
    if known is None:
        return None
    rank_dir = run_dir.writer_dir("train", topology.rank, entry["world_size"])
    if not rank_dir.is_dir() or (known["state"] == "running" and is_alive(known) is not False):
        return None
    formats = tuple(dialect for dialect in DIALECTS if segments(rank_dir, dialect))
    registration = Registration(
        run_id=manifest["run_id"], attempt=entry["attempt"], created=manifest["created"]
    )
    return Past(registration, rank_dir, formats) if formats else None


def watcher_of(run_dir: RunDir, topology: Topology, failures: Failures) -> Watcher:
    """What watches a rank of a training."""
    return Watcher(
        run_dir.writer_dir(topology.role, topology.rank, topology.world_size),
        rank=topology.rank,
        groups=groups_of_torch,
        failures=failures,
        is_alone=topology.world_size == 1,
    )


class _Row:
    """A row of numbers: their tags, what packs one, and the newest one with its step."""

    __slots__ = ("numbers", "pack", "step", "tags")

    def __init__(self, tags: tuple[str, ...]) -> None:
        self.tags, self.pack = tags, row_struct(len(tags)).pack
        self.step, self.numbers = -1, NOTHING


class Session:
    """One rank's part of a run, from joining it to leaving it.

    Its attributes are what it owns and has to end (the writer, the threads, the monitor, the heartbeats), and
    what it counts of the steps for the heartbeats.

    Args:
        run_dir, topology: the run and the rank in it.
        settings: what is recorded, and how.
        coordinator: joins all ranks to one run.
        failures: counts the session's own failures. overhead: what recording costs the loop.
        spent_s: what evaluations and checkpoints cost it so far, see `StepContext`.
        of_run: what run.json says of the run, which rank 0 notes; see `note_of_run`.
        past: the attempt to which evaluations are added, instead of registering a new one.

    Raises the errors of the coordinator's `register` and of opening the files.
    """

    def __init__(
        self,
        run_dir: RunDir,
        topology: Topology,
        settings: RunSettings,
        *,
        coordinator: Coordinator,
        failures: Failures,
        overhead: Overhead,
        spent_s: Mapping[str, float],
        of_run: Mapping[str, object] = NOTHING,
        past: Past | None = None,
    ) -> None:
        self.topology, self.overhead, self._spent_s = topology, overhead, spent_s
        self._run_dir, self._coordinator = run_dir, coordinator
        self.failures, self._own_guard = failures, failures.guard
        has_times = settings.collected.metric and settings.collected.additions
        times = () if has_times else (*STEP_TIMES, *STEP_PHASES)
        self._leaves_out = times if settings.collected.additions else (*times, EPOCH)
        self._is_past = past is not None
        if past is not None:
            self._registration, rank_dir = past.registration, past.rank_dir
        else:
            self._registration = self._coordinator.register(topology)
            rank_dir = run_dir.writer_dir(topology.role, topology.rank, topology.world_size)
        self._rank_dir = rank_dir
        self.attempt = self._registration.attempt
        # Before any value is written: the merged run depends on the definitions.
        if of_run and topology.rank == 0 and not self._is_past:
            failures.call("the names of the run", coordinator.note, topology, self.attempt, of_run)
        # Of several trainings of a process, each begins when the one before has ended.
        self._start_s = min(age_s(), time.monotonic() - _left_s[0])
        self._spent_before_s = self._totals_s()
        spec = replace(
            settings.writer,
            directory=str(rank_dir),
            formats=settings.formats_of_ranks(topology.world_size) if past is None else past.formats,
            run_id=self._registration.run_id,
            attempt=self.attempt,
            begun=self._registration.created or None,
            hides_lineage=run_dir.is_rank_dir(rank_dir),
            shows_norms=not run_dir.is_rank_dir(rank_dir),
            role=topology.role,
            rank=topology.rank,
        )
        self._writer, _ = open_writer(
            spec, settings.record.collectors, ranks=topology.local_world_size, is_timed=True
        )
        self._rows: dict[tuple[str, ...], _Row] = {}
        self._newest: dict[str, tuple[int, object]] = {}  # tag -> step and number, of what is in no row
        self._files = Background(failures.health, raise_exception=spec.raise_exception)
        # A second thread: git and a driver may be slow, and checkpoints must not wait for them.
        self._messages = Background(failures.health, raise_exception=spec.raise_exception, close_s=MESSAGES_S)
        # Of the user and of callbacks.
        self._alerts: Alerts | SentAlerts = (
            SentAlerts(coordinator) if run_dir.is_away else Alerts(run_dir)  # type: ignore[arg-type]
        )
        self._exports: Exports | None = None
        if settings.record.export_npy:
            keep_bytes = settings.record.keep_bytes
            self._exports = Exports(rank_dir, int(time.time()), self._files, keep_bytes, failures.health)
        self.checkpoints: CheckpointKeeper | None = None
        self._monitor: SystemMonitor | None = None
        self._pulse: Pulse | None = None
        self._watcher: Watcher | None = None
        self._last_step: int | None = None  # the newest recorded step
        self._of_step: list[tuple[str, Set[str]]] = []  # who gave it numbers, and their tags
        self._sampled_step: int | None = None  # that of the newest system metrics
        self.step = 0  # the newest step, also if nothing was recorded at it
        self._own_ms: float | None = None  # of all steps; None if the phases of steps are not measured
        self._wait_ms = 0.0
        self.phase = "starting"  # what this process does, for its heartbeats
        self.total: int | None = None  # steps of the training by this rank's loader; None if unknown
        self._is_missing = False  # the run dir is gone
        self._end = SessionEnd(
            self._begin_end,
            writer=self._writer,
            progress=self._written,
            failures=failures,
            directory=rank_dir,
        )
        if topology.rank == 0 and not self._is_past:
            # The first alerts may come soon, and git is slow, so this comes before the provenance.
            if settings.diagnose != Diagnose():
                self._messages.submit("diagnose", partial(self._note_diagnose, settings.diagnose))
            self._messages.submit("provenance", partial(self._record_provenance, settings.config.nested))

    def _note_diagnose(self, diagnose: Diagnose) -> None:
        """Put what is reported into the manifest, for whoever reports."""
        self._coordinator.note(self.topology, self.attempt, {"diagnose": asdict(diagnose)})

    def _record_provenance(self, config: Mapping[str, Any]) -> None:
        """Put provenance and config into the manifest, if it has this attempt; warn of a changed config."""
        role, attempt = self.topology.role, self.attempt
        fields = {"provenance": provenance()} | ({"config": config} if config else {})
        write_command(self._rank_dir, attempt, redacted(command_line()))
        known = self._run_dir.read_manifest()["attempts"]
        if any((entry["role"], entry["attempt"]) == (role, attempt) for entry in known):
            self._coordinator.note(self.topology, attempt, fields)
        older = [entry for entry in known if entry["role"] == role and entry.get("config")]
        names = differing(older[0]["config"], config) if older and config else []
        if names and self.topology.world_size == 1 and role == "train":
            logger.warning(
                "the config differs from that of attempt %s in %s; TensorBoard's page HPARAMS still shows "
                "the older one (run.json has both): name another run dir to see both",
                older[0]["attempt"],
                listed(names),
            )

    def note_of_run(self, fields: Mapping[str, object]) -> None:
        """Put what is said of the whole run into run.json, in the background; rank 0 alone does."""
        if self.topology.rank == 0 and not self._is_past:
            note = partial(self._coordinator.note, self.topology, self.attempt, fields)
            self._messages.submit("the definitions", note)

    @property
    def is_judged(self) -> bool:
        """Whether what this rank records is judged while it trains, so that alerts name the first NaN."""
        has_judge = type(self._coordinator) is not LocalCoordinator
        return has_judge and self.topology.role == "train" and not self._is_past

    def begin_heartbeats(self, follow: Callable[[Deal], None], step: int = 0) -> None:
        """From now on, report to the coordinator how far this rank is; `follow` is called with each new deal.

        `step`: how many steps a resumed training has behind it.
        """
        if self._pulse is not None:
            return
        self.step = step
        self._pulse = Pulse(self._place, self._beat, follow, self.failures, step, self._registration.deals)

    def _beat(self, heartbeat: Heartbeat) -> tuple[Deal, ...]:
        if self._monitor is not None:
            self.failures.call("system metrics", self._monitor.look)
        try:
            return self._coordinator.beat(self.topology, self.attempt, heartbeat)
        except MissingRunDirError as error:
            # No file of the run is made again; the training continues.
            if not self._is_missing:
                self._is_missing = True
                reason = f"{error}: nothing is recorded any more"
                logger.warning("rank=%d %s", self.topology.rank, reason)
                # The end stops the heartbeats, so it cannot run in their thread.
                self._end.begin_early(reason)
            return ()

    def watch_steps(self, place: Callable[[], LoopPlace]) -> None:
        """From now on, report in stuck.json when a step of this thread is late; `place` says where it is."""
        if self._watcher is None and self.topology.role == "train":
            self._watcher = watcher_of(self._run_dir, self.topology, self.failures)
            self._watcher.begin(self.attempt, place)

    def _place(self) -> Heartbeat:
        health = self.health()
        dropped = sum(health.dropped.values())
        found = self.overhead.look(self.step, sum(health.given.values()))
        if found is not None and self.topology.role == "train" and not self._is_past:
            # If the run is being closed, nothing takes the alert any more.
            with suppress(ClosedError):
                self.report_alert(OVERHEAD, found.step, found.evidence, WARNING, lost_s=found.lost_s)
        own_ms, wait_ms = self._own_ms, None if self._own_ms is None else self._wait_ms
        return Heartbeat(
            step=self.step,
            phase=self.phase,
            total=self.total,
            dropped=dropped,
            own_ms=own_ms,
            wait_ms=wait_ms,
            spent_ms=self._spent_ms(),
            memory_gib=peak_memory_gib(),
            seen=self._watcher.seen if self._watcher is not None else (),
        )

    def _spent_ms(self) -> dict[str, int]:
        """See `Heartbeat.spent_ms`."""
        since_s = (now - then for now, then in zip(self._totals_s(), self._spent_before_s, strict=True))
        found = zip(SPENT, (self._start_s, *since_s), strict=True)
        return {name: max(0, round(1e3 * seconds)) for name, seconds in found}

    def _totals_s(self) -> tuple[float, ...]:
        """What was spent by the recorder and the loop, which may have had other sessions, after START_MS."""
        phases = (CHECKPOINT, EVALUATION)
        return self.overhead.spent_s, *(self._spent_s.get(phase, 0.0) for phase in phases)

    def describe_run(self, step: int) -> None:
        """Record a text at `step` that says what the manifest knows about a run of one rank.

        For a run of several ranks, merging does this. Call it after the first step: TensorBoard hides what
        earlier attempts recorded from the step of this attempt's first event on.
        """
        if self.topology.world_size > 1 or self.topology.role != "train":
            return

        def describe() -> None:
            text = run_text(self._run_dir.read_manifest(), read_run(self._run_dir))
            self._writer.write(Event(step, time.time(), [Value("text", RUN_TEXT, text)]))

        # The same thread records the provenance before, which the text shows.
        self._messages.submit("the text about the run", describe)

    def record(
        self,
        step: int,
        numbers: Mapping[str, object],
        values: Sequence[Value] = (),
        *,
        giver: str = BY_LOG,
    ) -> None:
        """Record numbers by name and other values as one event; without any, record nothing.

        Numbers alone take the quick way, without an object for each of them. `giver`: who gives them.
        """
        begun_s = time.perf_counter()
        self.step = step
        if OWN_MS in numbers:
            self._add_own(numbers)
        if self._leaves_out:
            numbers = {name: number for name, number in numbers.items() if name not in self._leaves_out}
        tags: Set[str] = numbers.keys()
        if values:
            more = {value.tag: value.data for value in values if value.plugin == "scalar"}
            self._newest.update((tag, (step, number)) for tag, number in more.items())
            tags = tags | more.keys()
            # Scalars of different tags and nothing else take the quick way, too.
            if len(tags) == len(numbers) + len(values):
                numbers, values = {**numbers, **more}, ()
        if step != self._last_step:
            self._of_step = [(giver, tags)]
        else:
            self._name_repeated(giver, tags)
        try:
            try:
                row = self._rows[(*numbers,)]
            except KeyError:
                if not (numbers or values):
                    return
                row = self._new_row((*numbers,))
            row.step, row.numbers = step, numbers
            if values:
                self._write(step, numbers, values)
                self._last_step = step
                return
            try:
                packed = row.pack(time.time(), step, *numbers.values())
            except (struct.error, OverflowError):
                # Some values are not numbers of the host, such as those still on a device.
                scalars = [Value("scalar", tag, number) for tag, number in numbers.items()]
                self._writer.write(Event(step, time.time(), scalars))
            else:
                self._writer.write_row(row.tags, packed)
            self._last_step = step
        except ClosedError:
            # After an early end the loop continues: what it still gives is counted as dropped.
            if not self._end.is_early:
                raise
            # Of the step that a signal cut, nothing is missing that a training without it would have had.
            lost = {} if self._end.is_asked else counted(numbers, values)
            self.failures.count(f"{self._end.reason}, while the loop continues", dropped=lost)
        finally:
            self.overhead.spent_s += time.perf_counter() - begun_s

    def _name_repeated(self, giver: str, tags: Set[str]) -> None:
        """Count, once a tag, that an evaluation gives a number to a tag which has one at this step already.

        A second number of `run.log` takes the place of the first one, as its documentation says.
        """
        for other, earlier in self._of_step:
            for tag in sorted(tags & earlier) if BY_EVALUATION in (giver, other) else ():
                givers = "two evaluations" if giver == other else f"{BY_LOG} and {BY_EVALUATION}"
                self.failures.count(
                    f"{tag!r} has two numbers at a step, of {givers}: the files hold both, tables the newer "
                    "one; give them different names"
                )
        self._of_step.append((giver, tags))

    def _new_row(self, tags: tuple[str, ...]) -> _Row:
        if len(self._rows) >= MAX_PACKERS:
            self._newest = self._newest_numbers()
            self._rows.clear()
        row = self._rows[tags] = _Row(tags)
        return row

    def _newest_numbers(self) -> dict[str, tuple[int, object]]:
        found = self._newest.copy()
        for row in sorted(self._rows.values(), key=attrgetter("step")):
            for tag, number in row.numbers.items():
                if found.get(tag, (-1,))[0] <= row.step:
                    found[tag] = row.step, number
        return found

    def summary(self) -> dict[str, float]:
        """The newest number of each tag of the user, by name; waits for those that are still on a device."""
        return {
            tag: resolve(number)  # type: ignore[arg-type]  # what a Run gives are Scalars
            for tag, (_, number) in sorted(self._newest_numbers().items())
            if not is_own(tag)
        }

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._registration.run_id

    def _add_own(self, numbers: Mapping[str, object]) -> None:
        """Add what a step took this rank, for its heartbeats; a marked step stands for those around it."""
        own_ms, wait_ms, every = numbers[OWN_MS], numbers.get(WAIT_MS), numbers.get(EVERY, 1.0)
        if isinstance(own_ms, float) and isinstance(wait_ms, float) and isinstance(every, float):
            self._own_ms = (self._own_ms or 0.0) + every * own_ms
            self._wait_ms += every * wait_ms

    def _write(self, step: int, numbers: Mapping[str, object], values: Sequence[Value]) -> None:
        """Write numbers and values as events, and as files what is exported."""
        scalars = [Value("scalar", tag, number) for tag, number in numbers.items()]
        lineage = [value for value in values if value.plugin in LINEAGE_PLUGINS]
        others = [value for value in values if value.plugin not in LINEAGE_PLUGINS]
        write_values(self._writer, self._exports, step, [*scalars, *others])
        self.report(step, lineage)

    def send_facts(self, facts: RankFacts) -> None:
        """Write what is compared with other ranks into this rank's directory; raises RunDirError."""
        write_facts(self._rank_dir, self.attempt, facts)

    def report_parts(self, parts: Sequence[Part]) -> None:
        """Write this rank's parts in the deals so far into its directory, in the background."""
        from distsummary.rundir.rank_parts import write_parts

        attempt = self.attempt
        self._files.submit("the deal", partial(write_parts, self._rank_dir, attempt, parts))

    def report(self, step: int, values: list[Value]) -> None:
        """Record lineage; the aggregator reads it from the files."""
        if values:
            # After an early end the loop continues, and no lineage is written any more.
            with suppress(*[ClosedError] * self._end.is_early):
                self._writer.write(Event(step, time.time(), values))

    def report_alert(self, cause: str, step: int, evidence: str, level: str, *, lost_s: float = 0.0) -> None:
        """Report what the user or a callback says of a step, in the background."""
        verdict = Verdict(
            rank=self.topology.rank,
            cause=cause,
            since_step=step,
            until_step=step if cause == MESSAGE else None,
            evidence=redacted(evidence),
            reported_step=step,
            lost_s=lost_s,
            level=level,
        )
        self._messages.submit("the alert", partial(self._alerts.report, self.attempt, verdict))

    def keep_checkpoints(
        self, spec: "LandscapeSpec", network: object, group: Group, step_per_epoch: int
    ) -> None:
        """From now on, keep what `spec` names of the network; see `CheckpointKeeper`."""
        from distsummary.collect.checkpoint_keeper import CheckpointKeeper

        keeper = self.checkpoints or CheckpointKeeper(
            self._run_dir,
            self.topology,
            self._registration,
            files=self._files,
            failures=self.failures,
            report_unsaved=self._report_unsaved,
        )
        keeper.begin(spec, network, group, step_per_epoch)
        self.checkpoints = keeper if keeper.is_active else None

    def _report_unsaved(self, step: int, reason: str) -> None:
        """Report that a checkpoint of the trajectory, due at `step`, is not saved; from any thread."""
        # A job that ends after the session was closed reports nothing.
        with suppress(ClosedError):
            self.report_alert(UNSAVED, step, one_line(reason), ERROR)

    def monitor_system(self, network: object) -> None:
        """From now on, record system metrics, including those of the GPU that holds the network."""
        if self._monitor is None:
            sources = sources_of(self.topology, self._run_dir.base, network)
            sampler = Sampler(sources, self.failures)
            self._monitor = SystemMonitor(sampler, self._record_system, self.failures, self._messages.submit)

    def _record_system(self, sample: Mapping[str, float], is_last: bool) -> bool:
        """Record a sample at the newest recorded step, not at a step of its own; False before the first.

        The last sample is left out, too, if that step has one: viewers show the values of a step as one.
        """
        if self._last_step is None or (is_last and self._last_step == self._sampled_step):
            return False
        self._sampled_step = self._last_step
        # What is given under the same name counts.
        given = {tag for _, tags in [*self._of_step] for tag in tags}
        values = [Value("scalar", tag, number) for tag, number in sample.items() if tag not in given]
        self._writer.write(Event(self._last_step, time.time(), values))
        return True

    def health(self) -> Health:
        """What was written, dropped and refused so far."""
        return self._writer.health().plus(self.failures.health).plus(absences())

    @guarded(again=True)
    def close(self, error: BaseException | None = None) -> Health:
        """Write and close everything, even if a part fails, and leave the run; returns the final health.

        `error` is what ended the training, if anything did.

        In a process forked from the one that joined the run, it writes and closes nothing. A second call does
        nothing either.
        """
        return self.health() if self._end.close(error) else self.failures.health

    def _written(self) -> object:
        """Something that changes as long as this session writes."""
        with suppress(Exception):
            return self._writer.health().bytes, self._files.progress(), self._messages.progress()
        return None

    def _begin_end(self, error: BaseException | None) -> Parts:
        """The parts of the end of a training that `error` has ended, if anything did."""
        final, missing = self.failures.health, ""
        self.phase = "closing"

        def count() -> None:
            nonlocal final, missing
            final, missing = self.health(), self._writer.health().missing

        def leave() -> None:
            _left_s[0] = time.monotonic()
            if self._is_past:
                self._coordinator.evaluated(self.topology, self.attempt)
                return
            counters: dict[str, int | str] = {
                "events": final.events,
                "bytes": final.bytes,
                "last_seq": final.last_seq,
                "errors": sum(final.errors.values()),
                "given": sum(final.given.values()),
                "dropped": sum(final.dropped.values()),
                **{f"dropped/{plugin}": count for plugin, count in sorted(final.dropped.items())},
                "step": self.step,
                **self._spent_ms(),
            }
            if self.is_judged:
                counters["judged"] = 1
            if self._last_step is not None:
                counters["recorded_step"] = self._last_step
                # After an early end the loop continues, but records nothing.
                if self._end.is_early:
                    counters["step"] = self._last_step
            if error is not None:
                counters["interrupted" if is_interruption(error) else "failed"] = 1
                counters["error"] = error_text(error)
            elif lost := lost_driver():
                counters |= {"failed": 1, "error": lost}
            if missing:
                counters["missing"] = missing
            with suppress(*[MissingRunDirError] * self._is_missing):
                self._coordinator.finish(self.topology, self.attempt, counters)

        def write_alerts() -> None:
            # A run dir that is gone is not made again for them.
            if not self._is_missing:
                self._alerts.write()

        # The order matters: what still records ends first, then the files are closed, and at last the rank
        # reports what was written and leaves.
        return [
            ("the watcher", lambda: self._watcher.stop(error) if self._watcher else None),
            ("a last sample of system metrics", self._monitor.stop if self._monitor else lambda: None),
            ("closing the files", partial(self._files.close, self._end.deadline_s)),
            ("the messages and that sample", partial(self._messages.close, self._end.deadline_s)),
            ("the alerts", write_alerts),
            ("closing the event files", self._writer.close),
            ("counting what was written", count),
            # The heartbeats continue until here, because closing the files may take long.
            ("the heartbeat", self._pulse.stop if self._pulse else lambda: None),
            ("leaving the run", leave),
        ]
