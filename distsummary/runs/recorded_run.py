"""RecordedRun: a run on disk, read as tables, and RankView: one of its ranks; `open_run` opens a run."""

import hashlib
import html
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from distsummary.base.checks import check_choice, check_type
from distsummary.base.columns import quoted
from distsummary.base.publish import file_system_time
from distsummary.diagnosis.alerts import (
    MUTED,
    alerts_as_of_now,
    each_fact_once,
    hangs_among,
    holds,
    is_finding,
    level_in,
    open_findings,
    read_reports,
    worst_level,
)
from distsummary.diagnosis.ends import unreported_end
from distsummary.diagnosis.sentence import sentence, weight
from distsummary.diagnosis.verdict import CAUSES, STOPPED, WARNING, Verdict
from distsummary.errors import (
    DistSummaryError,
    MissingFileError,
    NotADirectoryPathError,
)
from distsummary.events.index import is_index
from distsummary.events.newest import newest_loss
from distsummary.events.reader import Damage, read_file, read_lineage
from distsummary.events.recorded import EventPlace
from distsummary.events.segments import all_event_files, landscape_files
from distsummary.format.definitions import Definitions
from distsummary.format.json_values import fields
from distsummary.format.lineage import Lineage, custom_values, lineage_values
from distsummary.format.pb.mindspore_anf_ir_pb2 import GraphProto
from distsummary.format.records import NORMS
from distsummary.landscapes.output.loss_grid import LossGrid
from distsummary.rundir.meshes import Meshes
from distsummary.rundir.rank_facts import read_command
from distsummary.rundir.rank_parts import parts_of
from distsummary.rundir.run_dir import MANIFEST, Manifest, RunDir
from distsummary.rundir.states import RunState, is_over, is_silent, read_run
from distsummary.runs.attempt_times import attempt_times
from distsummary.runs.cost import AttemptTimes, Bill, bill
from distsummary.runs.deals import DealRow, deal_rows
from distsummary.runs.norms_table import norms_table
from distsummary.runs.rank_files import MERGED, MERGED_RANK, Rank, RankFiles, Tags, ends, noting, wanted
from distsummary.runs.read_values import added, assembled, readable, value_table
from distsummary.runs.status import with_recorded_steps
from distsummary.runs.status_text import findings_in_short
from distsummary.runs.table import (
    Array,
    Matrix,
    Piece,
    ScalarTable,
    Table,
    ValueTable,
    matrix_of,
    table_of,
)

if TYPE_CHECKING:
    from distsummary import NotebookPage

NO_MANIFEST = f"no {MANIFEST}"
NOT_MERGED = "not merged: "  # begins the problem of ranks that no one merged
# The columns of tables and their kinds.
_ATTEMPTS = {
    "attempt": np.int64, "role": object, "state": object, "world_size": np.int64, "ranks": np.int64,
    "started": np.float64, "failed_rank": np.int64, "error": object,
}  # fmt: skip
_HEALTH = {
    "rank": np.int64, "attempt": np.int64, "role": object, "state": object, "step": np.int64,
    "last_seen_s": np.float64, "dropped": np.int64, "error": object, "host": object, "counters": object,
}  # fmt: skip
_VERDICTS = {
    "rank": np.int32, "cause": object, "since_step": np.int64, "until_step": np.int64, "evidence": object,
    "reported_step": np.int64, "level": object, "lost_s": np.float64, "ranks": object, "sentence": object,
    "intervals": object,
}  # fmt: skip


def open_run(path: str | os.PathLike[str], *, role: str = "train", index: bool = True) -> "RecordedRun":
    """Open a run to read it, whether it still runs or has ended; nothing is read before it is asked for.

    Args:
        path: a run dir; the directory of one rank; any directory with event files of TensorBoard, torch or
            MindSpore, which is read as a run of one rank.
        role: "train", or "eval" for the evaluation of several ranks.
        index: keep the columns of event files next to them, in `seg-<hash>.idx`, so that the next reader need
            not read the files. Without, or where the directory cannot be written, nothing is written.

    Raises:
        MissingFileError: there is no such directory, or it holds no run; the message says what it holds.
        NotADirectoryPathError: it is a file. InvalidValueError: it is a URL.
    """
    return RecordedRun(path, role=role, index=index)


class RecordedRun:
    """A run on disk; see `open_run`.

    Each call and each property reads what the run has recorded until then, so a running one is followed
    by asking again; a table that was returned does not change. What cannot be read is left out, and named in
    `problems`.

    In all tables `rank` is -1 for the merged run, and after a restart the steps that a later attempt repeated
    are left out of the earlier ones, as in the merged run.

    Attributes:
        path: the directory. role: as given.
    """

    def __init__(self, path: str | os.PathLike[str], *, role: str = "train", index: bool = True) -> None:
        check_choice("role", role, ("train", "eval", "landscape"))
        check_type("index", index, bool)
        run = RunDir(path)
        self.path, self.role = run.base, role
        self._run_dir = run
        self._files = RankFiles(run, role, uses_index=index)
        self._problems: dict[str, dict[str, None]] = {}  # what was read -> the problems that were met
        self._moment: _Moment | None = None  # while it is held
        _check_is_run(run, os.fspath(path), role)

    def __repr__(self) -> str:
        return f"open_run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows: what the run is, its loss, the heaviest verdict in words, and all others."""
        steps = "" if self.steps is None else f", steps {self.steps[0]:,} to {self.steps[1]:,}"
        counts = ", ".join(f"{plugin} {len(tags):,}" for plugin, tags in self.tags.items())
        found = findings(self).text
        problems, loss = self.verdicts, None
        with noting(self._problems.setdefault("loss", {})):
            loss = newest_loss(self.path, *filter(None, [self._files.directories().get(0)]))
        last = "" if loss is None else f", loss {loss:.4g}"
        ranks = f"{len(self.ranks):,} rank{'s' * (len(self.ranks) != 1)}"
        lines = [
            f"{self.path}: {self.state}, {ranks}{steps}{last}",
            *([str(problems["sentence"][0])] if len(problems) and problems["sentence"][0] else []),
            *([found] if found and len(problems) != 1 else []),
            f"tags: {counts or 'none'}",
            *self.problems,
        ]
        text = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
        return text + (problems._repr_html_() if len(problems) else "")

    def page(self, *, height: int = 800) -> "NotebookPage":
        """The page of the run as it is now, which a notebook shows in a frame of so many pixels.

        It is that of `distsummary report`. Raises the errors of `NotebookPage`.
        """
        # The package's door: reading a run knows nothing of pages.
        import distsummary

        return distsummary.NotebookPage(self, height=height)

    # --- the run

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.name

    @property
    def id(self) -> str:
        """The random id of the run, which stays when it is moved; empty without a run.json."""
        # `problems` have it from other properties.
        with noting({}):
            return str(self._run_dir.read_manifest().get("run_id", ""))
        return ""

    @property
    def world_size(self) -> int:
        """The ranks of the newest attempt; without a run.json, those that have a directory."""
        return int(self._entry().get("world_size") or len(self.ranks))

    @property
    def ranks(self) -> "Mapping[int, RankView]":
        """What each rank recorded that has a directory, as `run.ranks[2].scalars("loss")`; 0 for a run of one
        rank. It iterates over the numbers of the ranks.
        """
        return {rank: RankView(self, rank) for rank in self._files.directories()}

    @property
    def merged(self) -> "RankView":
        """The merged run, as `run.merged.scalars("loss")`."""
        return RankView(self, MERGED)

    @property
    def state(self) -> str:
        """As `distsummary status` reports it: running, finished, failed, lost and so on.

        "no run.json" for event files of other programs, "unreadable" if the run.json cannot be read.
        """
        if not self._run_dir.manifest_path.exists():
            return NO_MANIFEST
        state = self._state()
        return "unreadable" if state is None else state.state

    @property
    def attempts(self) -> Table:
        """The starts of the job: attempt, role, state, world_size, ranks (registered), started (seconds since
        the epoch), failed_rank (-1: none) and error.

        If ranks died without an error of any rank, failed_rank is the one that was seen last the longest ago,
        and error says what is known of its end.
        """
        state = self._state()
        rows = []
        for one in state.attempts if state else ():
            rank, error = (one.failure.rank, one.failure.error) if one.failure else (-1, "")
            # Of ranks that died without an error, the one that fell silent first is nearest to the cause.
            silent = [known for known in one.ranks if is_silent(known)]
            if one.failure is None and silent:
                first = max(silent, key=lambda known: known.last_seen_s)
                rank, error = first.rank, first.reason
            known = (one.attempt, one.role, one.state, one.world_size, len(one.ranks), one.started)
            rows.append((*known, rank, error))
        return table_of(rows, _ATTEMPTS, title="attempts")

    @property
    def health(self) -> Table:
        """The ranks of all attempts: rank, attempt, role, state, step (-1: none reported), last_seen_s
        (seconds since the last sign of life), dropped values (-1: not reported), error, host, and `counters`,
        a dict of what the rank reported about itself.
        """
        state = self._state()
        rows = []
        for attempt in state.attempts if state else ():
            for one in attempt.ranks:
                said = one.error or one.reason
                known = (one.rank, one.attempt, one.role, one.state, one.step, one.last_seen_s)
                rows.append((*known, one.health.get("dropped"), said, one.host, dict(one.health)))
        return table_of(rows, _HEALTH, title="health")

    @property
    def config(self) -> dict[str, Any]:
        """The `config` of the newest attempt, nested as it was given; {} if there was none.

        For files of MindSpore, its custom lineage; for files of TensorBoard, what is on the page HPARAMS.
        """
        entry = self._entry()
        if entry.get("config"):
            return dict(entry["config"])
        lineage = self._lineage()
        if lineage.custom is not None:
            return dict(custom_values(lineage.custom))
        found: dict[str, Any] = {}
        problems = self._problems["config"] = {}
        for _, place in self._files.places("hparams", None, None):
            for value in readable(place, problems):
                for name, entered in value.session_start_info.hparams.items():
                    kind = entered.WhichOneof("kind")
                    found[name] = getattr(entered, kind) if kind and kind != "null_value" else None
        return found

    @property
    def provenance(self) -> dict[str, Any]:
        """The commit, command line and versions of the newest attempt, as far as they can be read."""
        entry = self._entry()
        found = dict(entry.get("provenance") or {})
        if entry:
            place = self._run_dir.writer_dir(entry["role"], 0, entry["world_size"])
            if argv := read_command(place, entry["attempt"]):
                found["argv"] = argv
        return found

    @property
    def lineage(self) -> dict[str, Any]:
        """What was trained, with which data and how well, as plain dicts: train, evaluation, dataset_graph
        and custom; those that are there. Of several ranks, the merged one.
        """
        values = lineage_values(self._lineage())
        words = {"train_lineage": "train", "eval_lineage": "evaluation", "custom_lineage_data": "custom"}
        return {words.get(value.plugin, value.plugin): fields(value.data) for value in values}

    @property
    def problems(self) -> list[str]:
        """What could not be read until now, one line each; [] if all is well. Asking reads the files."""
        self._files.read(lambda: None)
        state = self._state()
        problems = [line for lines in self._problems.values() for line in lines]
        for rank, why in self._files.gone.items():
            problems.append(f"{'the merged run' if rank == MERGED_RANK else f'rank {rank}'}: {why}")
        damage = [one for recorded in self._files.all() for one in recorded.damage]
        # What a running rank has not finished may still be written.
        if state is None or state.state != "running":
            damage += [one for recorded in self._files.all() for one in recorded.unfinished()]
        problems += map(_place, damage)
        newest = state.newest if state else None
        problems += [
            f"rank {one.rank}: {one.reason}"
            for one in (newest.ranks if newest else ())
            if one.state == "unknown"
        ]
        if newest and newest.role == self.role and newest.world_size > 1:
            there = set(self._files.ranks) & set(self._run_dir.rank_dirs(self.role))
            if missing := sorted(set(range(newest.world_size)) - there):
                problems.append(f"no directory of rank {', '.join(map(str, missing))}")
            is_merged = self._files.merged is not None and self._files.merged.files
            if not is_merged and state is not None and state.state != "running":
                problems.append(f"{NOT_MERGED}distsummary merge {quoted(self.path)}")
        return [*dict.fromkeys(problems)]

    @property
    def verdicts(self) -> Table:
        """What was found to be wrong, lost and failed ranks among it, without muted causes: rank,
        cause, since_step, until_step (-1: to the end), evidence (of a hang, from the newest stuck.json),
        reported_step, level ("error" or "warning"), lost_s (seconds of the run that it cost), ranks (all
        that it is about, if several), sentence (all of this in words) and intervals (the first and the last
        step of each time, if it ended and came again). What ended or spoiled the training comes first, then
        what cost most. Empty if there are none.
        """
        rows = [row | {"level": level_in(row), "lost_s": row.get("lost_s") or 0.0} for row in self._alerts()]
        return table_of([[row.get(name) for name in _VERDICTS] for row in rows], _VERDICTS, title="verdicts")

    def cost(self) -> Bill:
        """What the wall time of all attempts was spent on, in parts that add up to it; see `Bill`.

        It needs nothing but the files, so that a running run has a bill up to now. What was not recorded,
        such as the waiting of a single rank, is a part of the training. Raises MissingFileError if the run
        was removed.
        """
        now, state = self._moment or self._now()
        attempts = [one for one in (state.attempts if state else ()) if one.role == self.role]

        def read() -> list[AttemptTimes]:
            meshes = Meshes(self._files.directories())
            return attempt_times(self._files.ranks, attempts, meshes, now=now)

        verdicts = hangs_among(self._reported(), CAUSES)
        return bill(self._files.read(read), [(one.attempt, one.verdict) for one in verdicts])

    @property
    def deals(self) -> Table:
        """Which rank had to record which parameters at which steps, as it was in force: attempt, deal (its
        version), rank, since_step and until_step (the last one that the rank recorded under it), values
        ("histogram", "tensor" or "gradient"), parameters (a tuple of names) and steps (a tuple).

        Parameters that are equal on several ranks are dealt; what is on one rank only, such as a shard, is
        not. A rank with nothing to record has a row without values. Gradients are recorded at the next step
        of the optimizer. Empty for one rank, and with `deal="all"`.
        """

        def last_steps() -> dict[int, dict[int, float]]:
            """Attempt -> rank -> the last step that counts."""
            highs = {rank: one.highs() for rank, one in self._files.ranks.items()}
            return {
                attempt: {rank: min(of_rank.get(attempt, 0), end - 1) for rank, of_rank in highs.items()}
                for attempt, end in ends(self._files.ranks.values()).items()
            }

        found = self._files.read(last_steps)
        directories = self._files.directories()
        rows: list[DealRow] = []
        for attempt, last in found.items():
            rows += deal_rows(attempt, parts_of(directories, attempt), last)
        kinds = DealRow.__annotations__.items()
        return table_of(rows, {n: np.int64 if kind is int else object for n, kind in kinds}, title="deals")

    def _alerts(self) -> list[dict[str, Any]]:
        """The lines of alerts.jsonl that are findings; notes what cannot be read."""
        return [row for row in self._reported() if is_finding(row) and row.get("held") != MUTED]

    def _reported(self) -> list[dict[str, Any]]:
        """All lines of alerts.jsonl, as of now."""
        run_dir = RunDir(self.path)
        problems = self._problems["verdicts"] = {}
        state = self._state()
        newest = state.newest if state else None
        rows, unread = read_reports(run_dir, newest)
        if unread:
            problems[f"not judged: {unread}"] = None
        with noting(problems):
            rows = alerts_as_of_now(run_dir, newest, rows)
        if newest is not None:
            said = [one.verdict for one in hangs_among(rows, STOPPED) if one.attempt == newest.attempt]
            number = {"attempt": newest.attempt}
            rows += [number | one.as_json() for one in unreported_end(said, newest)]
            rows = [row for row in rows if holds(row, newest)]
        return _with_sentences(each_fact_once(rows), is_over=newest is not None and is_over(newest))

    def stamp(self) -> str:
        """A text that is another one when the run has recorded more or a rank is in another state.

        Takes a look at the files' sizes and times and at run.json; no event is read. Raises MissingFileError
        if the run was removed.
        """
        directories = {self.path, self._run_dir.landscape_dir, *self._files.directories().values()}
        found: list[tuple[object, ...]] = []
        for directory in sorted(directories):
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        # Readers write indexes: they do not show that the run has recorded more.
                        if entry.is_file() and not is_index(entry.name):
                            stat = entry.stat()
                            found.append((entry.path, stat.st_ino, stat.st_size, stat.st_mtime_ns))
            except FileNotFoundError:
                pass
            except OSError as error:
                # It may not be read: the error stands for its files, so that a change of rights shows.
                found.append((os.fspath(directory), error.errno))
        if not found:
            raise MissingFileError(f"the run {self.path} was removed while it was read")
        state = self._now().state
        states = [
            (one.attempt, one.rank, one.state) for a in (state.attempts if state else ()) for one in a.ranks
        ]
        return hashlib.blake2b(repr((sorted(found), states)).encode(), digest_size=16).hexdigest()

    # --- what was recorded

    @property
    def tags(self) -> dict[str, dict[str, int]]:
        """What there is: plugin -> tag -> how many ranks have it, the merged run not counted."""
        return {
            plugin: {tag: len(ranks) for tag, ranks in of_plugin.items()}
            for plugin, of_plugin in self._ranks_by_tag().items()
        }

    def ranks_of(self, plugin: str) -> dict[str, tuple[int, ...]]:
        """Tag -> the ranks that recorded it, of the tags of a plugin, see `tags`."""
        return {tag: tuple(ranks) for tag, ranks in self._ranks_by_tag().get(plugin, {}).items()}

    def _ranks_by_tag(self) -> dict[str, dict[str, list[int]]]:
        """Plugin -> tag -> the ranks that recorded it."""

        def read() -> dict[str, dict[str, list[int]]]:
            found: dict[str, dict[str, list[int]]] = {}
            for rank, recorded in self._files.ranks.items():
                for plugin, tag in [*(("scalar", tag) for tag in recorded.tags()), *recorded.kinds()]:
                    found.setdefault(plugin, {}).setdefault(tag, []).append(rank)
            return found

        return self._files.read(read)

    @property
    def steps(self) -> tuple[int, int] | None:
        """The lowest and the highest recorded step of any rank; None if nothing was recorded."""

        def span() -> tuple[int, int] | None:
            found = [steps for one in self._files.ranks.values() if (steps := one.steps()) is not None]
            return (min(low for low, _ in found), max(high for _, high in found)) if found else None

        return self._files.read(span)

    def scalars(self, tag: Tags = None, rank: Rank = None) -> ScalarTable:
        """The scalars by tag, then rank, in recording order: rank, attempt, step, wall_time, tag and value.

        Args:
            tag: one tag or several; None: all.
            rank: a rank; None: all ranks; "merged": the merged run, whose rank is -1.

        Raises:
            InvalidValueError: no rank recorded this tag (the nearest are named), or there is no such rank.
            MissingFileError: the run was removed.
        """

        def read() -> ScalarTable:
            chosen, until = self._files.chosen(rank)
            of_rank = {number: dict.fromkeys(recorded.tags()) for number, recorded in chosen.items()}
            known = [*dict.fromkeys(name for names in of_rank.values() for name in names)]
            asked = [
                (number, name)
                for name in wanted(tag, known, "scalars")
                for number, names in of_rank.items()
                if name in names
            ]
            # The table takes its memory at once, and the pieces are read into it one after the other.
            room = sum(chosen[number].count(name) for number, name in asked)
            pieces = (Piece(number, *chosen[number].scalars(name, until)) for number, name in asked)
            return ScalarTable(pieces, room)

        return self._files.read(read)

    def matrix(self, tag: str) -> tuple[Array, Array, Array]:
        """One tag of all ranks as steps int64 (S,), ranks int32 (R,) and values float32 (S, R).

        NaN where a rank recorded nothing. Takes little more memory than the values: one rank is read after
        the other. The errors are those of `scalars`.
        """
        return self.matrix_and_nans(tag)[:3]

    def matrix_and_nans(self, tag: str) -> tuple[Array, Array, Array, Array | None]:
        """As `matrix`, and where a rank recorded NaN itself, bool (S, R); None: nowhere."""

        def read() -> Matrix:
            until = ends(self._files.ranks.values())
            having = {rank: one for rank, one in self._files.ranks.items() if tag in one.tags()}
            if not having:
                # Raises the error that names the tags which are nearest.
                wanted(
                    tag,
                    [*dict.fromkeys(t for one in self._files.ranks.values() for t in one.tags())],
                    "scalars",
                )
            return matrix_of((rank, *one.curve(tag, until)) for rank, one in having.items())

        return self._files.read(read)

    def histograms(self, tag: Tags = None, rank: Rank = None) -> ValueTable:
        """The histograms (records with left, width, counts, min, max ...), by rank.

        Those of the shards of one parameter are added up to that of the whole, one row under the lowest rank,
        unless `rank` names one. Where shards are missing, their rows stand as they are. The arguments and
        errors are those of `scalars`.
        """
        return self._values("histogram", tag, rank, join=added)

    def tensors(self, tag: Tags = None, rank: Rank = None) -> ValueTable:
        """The tensors as arrays, by rank.

        The shards of a tensor are put together to the whole, one row under the lowest rank, unless `rank`
        names one: then it is its shard. What no shard holds is masked (`numpy.ma.MaskedArray`). The arguments
        and errors are those of `scalars`.
        """
        return self._values("tensor", tag, rank, join=assembled)

    def images(self, tag: Tags = None, rank: Rank = None) -> ValueTable:
        """The images: height, width, and `encoded`, the bytes of the PNG. Arguments, errors: as `scalars`."""
        return self._values("image", tag, rank)

    def text(self, tag: Tags = None, rank: Rank = None) -> ValueTable:
        """The texts. The arguments and errors are those of `scalars`."""
        return self._values("text", tag, rank)

    def audio(self, tag: Tags = None, rank: Rank = None) -> ValueTable:
        """The sounds: rate, channels, frames, and `encoded`, a WAV file. Arguments, errors: as `scalars`."""
        return self._values("audio", tag, rank)

    def pr_curves(self, tag: Tags = None, rank: Rank = None) -> ValueTable:
        """The PR curves, float32 (6, T): `format.records.CURVE_ROWS` at T thresholds from 0 to 1.

        The arguments and errors are those of `scalars`.
        """
        return self._values("pr_curve", tag, rank)

    @property
    def graph(self) -> GraphProto | None:
        """The newest graph of the model that is recorded, of the lowest rank that has one; None without."""

        def read() -> GraphProto | None:
            problems = self._problems["graph"] = {}
            for recorded in self._files.all():
                places = recorded.places("graph", None, {})
                # The newest attempt first: the model may have been changed for a restart.
                for place in sorted(places, key=lambda place: place.attempt, reverse=True):
                    for data in readable(place, problems):
                        return GraphProto.FromString(data)
            return None

        return self._files.read(read)

    def norms(self, parameter: Tags = None, rank: Rank = MERGED) -> Table:
        """The norms of the parameters at every step, with their attempt, rank, wall_time and parameter.

        The columns weight, gradient and update are L2 norms (NaN: not measured, or no gradient), update_max
        is the largest change of an element, and nonfinite how many elements of weight and gradient are NaN
        or infinite.

        Args:
            parameter: one name or several; None: all.
            rank: "merged": those of whole parameters; a rank: those of the elements that it holds; None: the
                latter of all ranks.

        Raises InvalidValueError if there is no such rank, or no such parameter.
        """
        found = self._files.places(NORMS, None, rank)
        problems = self._problems[f"norms of {rank}"] = {}
        return norms_table(found, parameter, problems)

    def norms_by_step(self, rank: Rank = MERGED) -> ValueTable:
        """The norms as they were recorded: one row for each step, whose value is a `ParameterNorms` with the
        norms of all parameters. It is read when it is asked for, so that norms of many steps need not fit
        into memory. `rank` is that of `norms`.
        """
        return self._values(NORMS, None, rank)

    @property
    def landscapes(self) -> dict[str, Any]:  # LossGrid or Landscape
        """The loss landscapes by name: of `landscape/*.npz` a LossGrid with all that is known, of event files
        alone a Landscape with axes, losses and path.
        """
        found: dict[str, Any] = {}
        problems = self._problems["landscapes"] = {}
        directory = self._run_dir.landscape_dir
        for path in sorted(directory.glob("*.npz")) if directory.is_dir() else ():
            with noting(problems):
                found[path.stem] = LossGrid.load(path)
        if not found:
            # Event files have landscapes, too, without what only the .npz files hold.
            skipped: list[Damage] = []
            for path in landscape_files(self.path) if self.path.is_dir() else ():
                with noting(problems):
                    for event in read_file(path, "skip", skipped=skipped):
                        found |= {one.tag: one.data for one in event.values if one.plugin == "landscape"}
            problems |= dict.fromkeys(map(_place, skipped))
            for _, place in self._files.places("landscape", None, None):
                for value in readable(place, problems):
                    found[place.tag] = value
        return found

    @contextmanager
    def held(self) -> Iterator[None]:
        """While it is open, all calls read what the run had recorded, and its state, at its beginning.

        They do not look at the files of all ranks again, which takes 0.1 s each for 1,000 ranks.
        Raises MissingFileError if the run was removed.
        """
        with self._files.held():
            before = self._moment
            self._moment = before or self._now()
            try:
                yield
            finally:
                self._moment = before

    # --- reading

    def _values(
        self,
        plugin: str,
        tag: Tags,
        rank: Rank,
        join: "Callable[[list[EventPlace]], Callable[[], Any] | None] | None" = None,
    ) -> ValueTable:
        """A table of values; `join` puts shards together, unless one rank was asked for."""
        found = self._files.places(plugin, tag, rank)
        return value_table(found, join if rank is None else None, f"{plugin} values")

    def _state(self) -> RunState | None:
        """What the manifests say; None if run.json cannot be read."""
        return (self._moment or self._now()).state

    def _now(self) -> "_Moment":
        """The same as of now: the manifests of 1,000 ranks take 0.5 s."""
        now = file_system_time(self.path)
        problems = self._problems["state"] = {}
        with noting(problems):
            return _Moment(now, with_recorded_steps(self._run_dir, read_run(self._run_dir, now=now))[0])
        return _Moment(now, None)

    def _entry(self) -> Manifest:
        """The entry of the newest attempt in run.json; {} if there is none."""
        problems = self._problems["run.json"] = {}
        mine: list[Manifest] = []
        with noting(problems):
            entries = self._run_dir.read_manifest()["attempts"]
            mine = [entry for entry in entries if entry["role"] == self.role]
        return max(mine, key=lambda entry: int(entry["attempt"]), default={})

    def _lineage(self) -> Lineage:
        """The lineage of the run or, before there is one, of its lowest rank."""
        skipped: list[Damage] = []
        problems = self._problems["lineage"] = {}
        lineage = Lineage()
        for directory in (self._run_dir.writer_dir(self.role, 0, 1), *self._files.directories().values()):
            with noting(problems):
                if directory.is_dir():
                    lineage = read_lineage(directory, skipped=skipped)
                    if lineage_values(lineage):
                        break
        problems |= dict.fromkeys(map(_place, skipped))
        return lineage


class _Moment(NamedTuple):
    """How a run was: `now`, in seconds since the epoch, and its state; None if run.json cannot be read."""

    now: float
    state: RunState | None


def _place(damage: Damage) -> str:
    return f"{damage.file}, byte {damage.offset}: {damage.reason}"


def _check_is_run(run: RunDir, given: str, role: str) -> None:
    """Raise unless the directory holds a run or event files."""
    base = run.base
    if run.rank_dirs(role) or (role == "train" and run.manifest_path.exists()):
        return
    if not base.exists():
        raise MissingFileError(f"there is no {given}; {run.remedy_if_missing()}")
    if not base.is_dir():
        raise NotADirectoryPathError(f"{given} is a file; name the directory that it is in")
    directory = run.writer_dir(role, 0, 1)
    if directory.is_dir() and all_event_files(directory):
        return
    if role != "train" and run.manifest_path.exists():
        raise MissingFileError(
            f"{given} holds nothing of the role {role!r}; leave role= out for its training"
        )
    # The message helps those who named a directory of runs.
    children = [child for child in base.iterdir() if child.is_dir()]
    has_runs = any((child / MANIFEST).exists() or all_event_files(child) for child in children)
    remedy = f"it holds runs: distsummary runs {quoted(given)}" if has_runs else "name the directory of a run"
    raise MissingFileError(
        f"{given} is not a run: it has neither {MANIFEST} nor rank directories nor event files; {remedy}"
    )


class Found(NamedTuple):
    """What is wrong with the newest attempt of a run: `level` ("error", "warning", or empty) and `text`."""

    verdicts: list[Verdict]
    level: str
    text: str


def findings(run: RecordedRun) -> Found:
    """What is wrong with the newest attempt of a run; `distsummary status` says it after the state."""
    state = run._state()
    found = open_findings(run._alerts(), state.newest if state else None)
    said = [findings_in_short(found, is_over=run.state != "running"), *run._problems["verdicts"]]
    # What cannot be read may be anything.
    level = worst_level(found) or (WARNING if run._problems["verdicts"] else "")
    return Found(found, level, "; ".join(filter(None, said)))


def definitions_of(run: RecordedRun) -> Definitions:
    """What run.json says of tags, such as which direction is better."""
    with noting(run._problems.setdefault("run.json", {})):
        return Definitions(run._run_dir.read_manifest().get("define", {}))
    return Definitions({})


def planned_steps(run: RecordedRun) -> int | None:
    """How many steps the newest attempt was to have, by the loaders of its ranks; None if unknown."""
    state = run._state()
    totals = [one.total for one in state.newest.ranks] if state and state.newest else []
    return max(filter(None, totals), default=None)


def _with_sentences(alerts: Iterable[dict[str, Any]], *, is_over: bool) -> list[dict[str, Any]]:
    """The alerts with what they say in words, the heaviest first; what is no verdict of ours comes last."""
    found: list[tuple[tuple[int, bool, float, int], dict[str, Any]]] = []
    foreign = []
    for alert in alerts:
        try:
            verdict = Verdict.from_json(alert)
            said = sentence(verdict, is_over=is_over)
        except (DistSummaryError, AttributeError, KeyError, TypeError, ValueError):
            # An alert of another version may have causes or fields that are unknown here.
            foreign.append(alert)
            continue
        found.append((weight(verdict), {**alert, "sentence": said}))
    return [*(alert for _, alert in sorted(found, key=lambda one: one[0])), *foreign]


class RankView:
    """What one rank of a run recorded: each call is that of `RecordedRun` with this `rank`.

    Attributes:
        rank: its number, or "merged".
    """

    def __init__(self, run: RecordedRun, rank: int | Literal["merged"]) -> None:
        self._run, self.rank = run, rank

    def __repr__(self) -> str:
        return f"{self._run!r}.{self.rank if isinstance(self.rank, str) else f'ranks[{self.rank}]'}"

    def scalars(self, tag: Tags = None) -> ScalarTable:
        """See `RecordedRun.scalars`."""
        return self._run.scalars(tag, self.rank)

    def histograms(self, tag: Tags = None) -> ValueTable:
        """See `RecordedRun.histograms`."""
        return self._run.histograms(tag, self.rank)

    def tensors(self, tag: Tags = None) -> ValueTable:
        """See `RecordedRun.tensors`."""
        return self._run.tensors(tag, self.rank)

    def images(self, tag: Tags = None) -> ValueTable:
        """See `RecordedRun.images`."""
        return self._run.images(tag, self.rank)

    def text(self, tag: Tags = None) -> ValueTable:
        """See `RecordedRun.text`."""
        return self._run.text(tag, self.rank)

    def norms(self, parameter: Tags = None) -> Table:
        """See `RecordedRun.norms`."""
        return self._run.norms(parameter, self.rank)
