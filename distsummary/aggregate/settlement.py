"""Settlement: completes the merged run of the attempts of which no rank runs any more."""

from collections.abc import Callable
from contextlib import suppress

from distsummary.aggregate.dealing import note_last_deals
from distsummary.aggregate.live import LiveReport
from distsummary.aggregate.merge import merge_run
from distsummary.aggregate.merged_files import merge_facts
from distsummary.aggregate.role_description import RoleDescription, describe, log_conflicts
from distsummary.base.columns import quoted
from distsummary.base.guard import guarded_log
from distsummary.diagnosis.sentence import named_ranks
from distsummary.errors import DistSummaryError, MissingFileError
from distsummary.events.newest import newest_step
from distsummary.rundir.attempts import Key, end_of, key_of, merged_states, note_fields, note_state
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.timeouts import EVALUATED_S, HIDDEN_S

GIVE_UP_S = 5.0  # how long a merge that fails is tried again

logger = guarded_log(__name__)


class Settlement:
    """Merges the ranks of attempts that are over, unless all of it is merged, and notes how they ended.

    It waits a while for evaluations and for files that a network file system does not show yet, and tries a
    merge that fails, such as on a full disk, again for GIVE_UP_S.

    Args:
        run_dir: the run. clock: the time in seconds. warn: logs a warning, once.

    Attributes:
        given_up: the attempts that could not be merged, and why.
    """

    def __init__(self, run_dir: RunDir, clock: Callable[[], float], warn: Callable[[str], None]) -> None:
        self.given_up: dict[Key, tuple[Manifest, str]] = {}
        self._run_dir, self._clock, self._warn = run_dir, clock, warn
        self._evaluated: dict[Key, tuple[int, float]] = {}  # how many ranks evaluated, and when
        self._hidden_s: dict[Key, float] = {}  # since when files do not show all that was recorded
        self._failing_s: dict[Key, float] = {}  # since when an attempt cannot be merged

    def awaits_evaluations(self, entry: Manifest) -> bool:
        """Whether some ranks have reported an evaluation, and others may still do so."""
        reported = len(entry.get("evaluated", []))
        if not reported or reported >= len(entry["ranks"]):
            return False
        known, since_s = self._evaluated.get(key_of(entry), (0, 0.0))
        if reported > known:
            since_s = self._clock()
            self._evaluated[key_of(entry)] = reported, since_s
        return self._clock() - since_s < EVALUATED_S

    def _awaits_files(self, entry: Manifest) -> bool:
        """Whether the files of some ranks do not show here yet what these recorded, and may still."""
        if entry["world_size"] == 1 or not (hidden := _hidden_ranks(self._run_dir, entry)):
            return False
        since_s = self._hidden_s.setdefault(key_of(entry), self._clock())
        if is_awaited := self._clock() - since_s < HIDDEN_S:
            self._warn(
                f"the files of {named_ranks(hidden)} do not show here yet all that was recorded; a network "
                f"file system shows it within a minute. The merge waits {HIDDEN_S:g} s for it"
            )
        return is_awaited

    def settle(self, entry: Manifest, close_live: Callable[[RoleDescription], LiveReport | None]) -> bool:
        """Complete the merged run of an attempt, with its ranks; False: to be tried again.

        Args:
            close_live: ends the merge while the ranks trained; returns what it wrote, None if all files have
                to be merged.
        """
        if self._awaits_files(entry):
            return False
        try:
            self._settle(entry, close_live)
        except (DistSummaryError, OSError) as error:
            since_s = self._failing_s.setdefault(key_of(entry), self._clock())
            # A missing file may only be hidden for a while by a network file system.
            is_hidden = isinstance(error, MissingFileError)
            if self._clock() - since_s < (HIDDEN_S if is_hidden else GIVE_UP_S):
                return False
            base = self._run_dir.base
            reason = (
                f"{base}: the ranks could not be merged: {error}; then run: distsummary merge {quoted(base)}"
            )
            self.given_up[key_of(entry)] = entry, reason
            logger.warning("%s", reason)
        return True

    def _settle(self, entry: Manifest, close_live: Callable[[RoleDescription], LiveReport | None]) -> None:
        run_dir, role, states = self._run_dir, entry["role"], merged_states(entry)
        note_state(run_dir, role, entry["attempt"], end_of(states))
        if entry["world_size"] > 1:
            if role == "train":
                note_last_deals(run_dir, entry)
            about = describe(run_dir, role, run_dir.read_manifest(), run_dir.rank_dirs(role))
            # What the live merge wrote stays if a merge of all files would give the same.
            report = close_live(about)
            # Viewers that know nothing of attempts would show the steps twice that an attempt repeats.
            if report is None or entry.get("evaluated") or entry["attempt"] > 0:
                merge_run(run_dir)
            else:
                log_conflicts(about.conflicts, run_dir.base)
                missing = about.attempt.missing if about.attempt else ()
                facts = merge_facts(report.last_steps, missing, about.conflicts, report.damage)
                run_dir.update_manifest(
                    lambda manifest: manifest.setdefault("merged", {}).update({role: facts})
                )
        note_fields(run_dir, key_of(entry), {"merged": states})


def _hidden_ranks(run_dir: RunDir, entry: Manifest) -> list[int]:
    """The ranks of an attempt, with its ranks, that have ended and recorded more than their files show here.

    A network file system caches the sizes of files: for up to a minute, a host may read less of a file than
    its writer has written on another host (NFS: acregmax). The manifest of a rank that has ended has the
    newest step that it recorded. What is in the files of one that died or dropped values is unknown.
    """
    found = []
    for rank, known in entry["ranks"].items():
        health = known.get("health") or {}
        last = health.get("recorded_step")
        if known["state"] == "running" or last is None or health.get("dropped"):
            continue
        directory = run_dir.writer_dir(entry["role"], int(rank), entry["world_size"])
        # The merge reports what cannot be read.
        with suppress(DistSummaryError, OSError):
            seen = newest_step(directory, attempt=entry["attempt"])
            if seen is not None and seen < last:
                found.append(int(rank))
    return found
