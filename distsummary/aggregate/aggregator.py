"""The aggregator of one run: it registers the ranks, deals, and writes the merged run while they train."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from distsummary.aggregate.dealing import deal_among
from distsummary.aggregate.live import LiveMerge, LiveReport
from distsummary.aggregate.registrar import Registrar
from distsummary.aggregate.role_description import RoleDescription, describe
from distsummary.aggregate.settlement import Settlement
from distsummary.aggregate.stuck_ranks import StuckRanks
from distsummary.base.columns import quoted
from distsummary.base.failures import error_line
from distsummary.base.guard import guarded_log, run_each
from distsummary.base.publish import is_gone
from distsummary.diagnosis.ends import attempt_verdicts
from distsummary.diagnosis.reporting import Alerts
from distsummary.errors import DistSummaryError, RunDirError
from distsummary.events.newest import newest_step
from distsummary.rundir.attempts import (
    Key,
    Registration,
    find_attempt,
    is_open,
    key_of,
    newest_attempts,
    note_aggregator,
    note_deaths,
    note_evaluation,
    note_fields,
    with_ranks,
)
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.states import AttemptState, RankState, is_over, read_run
from distsummary.rundir.timeouts import JOIN_S, LAUNCHER_S, WORLD_S
from distsummary.rundir.topology import LAUNCHED, Topology

logger = guarded_log(__name__)

ROUND_S = 0.5
LOOK_S = 2.0  # seconds between two looks at the files in which the ranks report their states
LOOK_SHARE = 20  # a look that takes long, on a slow disk, is repeated after this many times as long
REPORT_S = 10.0  # how long it stays to report a failed merge to a launch that ends
UNREADABLE_S = 60.0  # how long the aggregator stays although it cannot read how the ranks are
GRACE_S = 2.0
NO_DEATHS: Mapping[int, str] = MappingProxyType({})
NAMED = 8  # missing ranks in a message


class Aggregator:
    """A Coordinator that follows the ranks of a run; the data that they record do not pass through it.

    It learns from their files how the ranks are (see `states`). Their calls only make it faster, so that it
    works the same as an actor, which the ranks call, and as a process that no one calls. All its lasting
    state is in the run dir: if it dies, the next one continues where it stopped.

    Every `round_s` seconds its thread

    - appends to the merged run of the newest training (see LiveMerge),
    - reports which rank is stuck, if one is (see `diagnosis/stuck.py`),
    - deals the recording of equal values among the ranks that live (see `deal`),
    - settles each attempt none of whose ranks runs any more (see Settlement). It merges again if the merged
      run may not be what a merge of all files would give, because a rank reported something late, an attempt
      repeated steps, or another aggregator began it.

    When every attempt is settled, no rank has called for `grace_s` seconds, and `ds.launch` has reported why
    its ranks died (or has not for LAUNCHER_S), the thread ends and calls `on_end`; also if what is left could
    not be merged for GIVE_UP_S, such as on a full disk.

    Its attributes are the state of these rounds, each a clock or a table by attempt that one method keeps;
    they are read together under one lock, when it decides whether it may end.

    Args:
        run_dir: the run dir.
        grace_s: see above; in seconds.
        on_end: called once, in the aggregator's own thread.
        round_s: seconds between two rounds.
        clock: the time in seconds.
    """

    def __init__(
        self,
        run_dir: str,
        *,
        grace_s: float = GRACE_S,
        on_end: Callable[[], None] = lambda: None,
        round_s: float = ROUND_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir = RunDir(run_dir)
        self._registrar = Registrar(self._run_dir)
        self._grace_s, self._on_end = grace_s, on_end
        self._round_s, self._clock = round_s, clock
        self._ended_launches: set[str] = set()
        self._last_contact_s = self._clock()
        self._asked = self._answered = 0  # how often somebody asked for a look at the ranks
        self._has_ended, self._error = False, ""  # what ended it, if that was an error
        # The thread and the calls of ranks share the fields above under this lock.
        self._changed = threading.Condition(threading.RLock())
        # What follows is the thread's own.
        self._since_s: dict[Key, float] = {}  # when an attempt was seen first
        self._settlement = Settlement(self._run_dir, clock, self._warn)
        self._warned: set[str] = set()
        self._over: list[Manifest] = []  # the attempts to settle, with their ranks
        self._is_busy = True  # whether ranks run, or may join
        self._look_at_s = 0.0
        self._seen_s = self._clock()  # when the states of the ranks were read last
        self._seen = 0  # the time of the run.json that was looked at
        self._live: LiveMerge | None = None
        self._live_of: Key | None = None
        self._can_merge_live = self._is_described = True
        self._running: set[int] = set()  # ranks of the training that `_live` merges
        self._alerts = Alerts(self._run_dir)
        self._stuck = StuckRanks(self._run_dir, self._alerts)
        self._is_blind = False  # a look for stuck ranks has raised something, which was logged
        self._watched: list[AttemptState] = []  # trainings of several ranks that run, or have just ended
        try:
            note_aggregator(self._run_dir)
        except DistSummaryError as error:
            # The ranks can register all the same.
            logger.warning("a merge by hand will not see that an aggregator lives: %s", error)
        threading.Thread(target=self._watch, name="distsummary-aggregator", daemon=True).start()

    # --- calls of the ranks

    def register(self, topology: Topology) -> Registration:
        """Add a rank to the run; raises WorldMismatchError if the ranks disagree on the world size."""
        self.renew()
        return self._registrar.register(topology)

    def renew(self) -> None:
        """A rank of the run calls: the aggregator does not end yet."""
        with self._changed:
            self._last_contact_s = self._clock()

    def serves(self, launch_id: str) -> bool:
        """Whether ranks of this launch have joined the run; never waits for a merge."""
        attempts = self._run_dir.read_manifest()["attempts"]
        return any(entry["incarnation"].startswith(launch_id) for entry in attempts)

    def finish(self, topology: Topology, attempt: int, health: Mapping[str, int | str]) -> None:
        """Note that a rank has left; for the last rank, return only when the attempt is settled."""
        self.renew()
        if self._registrar.leave(topology, attempt, health):
            self._wait_until_settled(lambda entry: key_of(entry) == (topology.role, attempt))

    def evaluated(self, topology: Topology, attempt: int) -> None:
        """Note that a rank evaluated its finished training; the last rank's call returns after the merge."""
        self.renew()
        note_evaluation(self._run_dir, topology, attempt)
        entry = find_attempt(self._run_dir.read_manifest(), "train", attempt)
        if len(entry.get("evaluated", [])) >= topology.world_size:
            self._wait_until_settled(lambda other: key_of(other) == ("train", attempt))

    def settle(self, launch_id: str, deaths: Mapping[int, str] = NO_DEATHS, state: str = "lost") -> None:
        """Settle the attempts of a launch whose processes have ended; returns when they are settled.

        `deaths` and `state` say how ranks ended that could not report it (`rundir.attempts.note_deaths`).
        """
        if deaths:
            self._note_deaths(launch_id, deaths, state)
        with self._changed:
            self._ended_launches.add(launch_id)
        self._wait_until_settled(lambda entry: entry["incarnation"].startswith(launch_id))
        with self._changed:
            # No rank is left to wait for, so the grace period is over.
            self._last_contact_s -= self._grace_s

    def _note_deaths(self, launch_id: str, deaths: Mapping[int, str], state: str) -> None:
        newest = newest_attempts(self._run_dir.read_manifest())
        keys = {key_of(entry) for entry in newest if entry["incarnation"].startswith(launch_id)}
        # Ranks that reported their own end keep what they reported.
        for attempt in read_run(self._run_dir).attempts:
            unreported = {one.rank for one in attempt.ranks if one.state in ("running", "lost")}
            died = {rank: reason for rank, reason in deaths.items() if rank in unreported}
            if died and (attempt.role, attempt.attempt) in keys:
                note_deaths(self._run_dir, attempt.role, attempt.attempt, died, state=state)

    def _wait_until_settled(self, wanted: Callable[[Manifest], bool]) -> None:
        """Wait until the thread has looked at the ranks, and settled what is wanted and over.

        Raises RunDirError if it has given that up, or has failed.
        """
        with self._changed:
            self._asked += 1
            asked = self._asked
            self._changed.notify_all()
            # An earlier look may have missed what the caller just noted: wait for one that begins now.
            self._changed.wait_for(
                lambda: self._has_ended or (self._answered >= asked and not any(map(wanted, self._over)))
            )
            for entry, reason in self._settlement.given_up.values():
                if wanted(entry):
                    raise RunDirError(reason)
            if self._error:
                raise RunDirError(self._error)

    # --- the aggregator's thread

    def _watch(self) -> None:
        try:
            while self._round():
                with self._changed:
                    if self._asked == self._answered:
                        self._changed.wait(self._round_s)
        except Exception as error:
            base = self._run_dir.base
            # If the run dir was removed, also in the midst of a round, nothing is left to merge.
            if not is_gone(base):
                # The files of the ranks can still be merged later.
                reason = f"the aggregator failed: {error_line(error)}"
                self._error = f"{base}: {reason}; run: distsummary merge {quoted(base)}"
                logger.warning("%s", self._error)
        finally:
            # Whoever waits is released first, whatever the steps of the end raise.
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()
            # A live merge is still open if its attempt disappeared with run.json, or after an error.
            live = self._live
            run_each(
                [
                    ("the merged run", live.abandon if live is not None else lambda: None),
                    ("the alerts", self._alerts.close),
                    ("the end", self._on_end),
                ],
                lambda what, error: self._warn(f"{what}: {error_line(error)}"),
            )

    def _round(self) -> bool:
        """One round of the thread; False when nothing is left to do."""
        asked, began_s = self._asked, self._clock()
        # The last rank that leaves changes run.json and then waits for the merge: look at once.
        changed = self._manifest_time()
        if asked > self._answered or began_s >= self._look_at_s or changed != self._seen:
            self._seen = changed
            self._look()
            took_s = self._clock() - began_s
            self._look_at_s = began_s + took_s + max(LOOK_S, LOOK_SHARE * took_s)
        self._write_live()
        self._report_stuck()
        self._over = [entry for entry in self._over if not self._settle(entry)]
        with self._changed:
            self._answered = asked
            self._changed.notify_all()
            silent_s = self._clock() - self._last_contact_s
            # If the run dir was removed, nothing is left to merge.
            if is_gone(self._run_dir.base):
                return False
            return self._is_busy or bool(self._over) or silent_s < self._grace_s

    def _manifest_time(self) -> int:
        """When run.json was written, in nanoseconds; 0 if there is none."""
        try:
            return self._run_dir.manifest_path.stat().st_mtime_ns
        except OSError:
            return 0

    def _look(self) -> None:
        """Look how the ranks are: which attempts still run, and which are over and not settled."""
        over: list[Manifest] = []
        watched: list[AttemptState] = []
        was_busy, self._is_busy = self._is_busy, False
        try:
            entries = newest_attempts(self._run_dir.read_manifest())
            # Read after the entries: an attempt that begins in between is here and waits for the next look.
            attempts = {(one.role, one.attempt): one for one in read_run(self._run_dir).attempts}
            for entry in entries:
                key = key_of(entry)
                attempt = attempts[key]
                age_s = self._clock() - self._since_s.setdefault(key, self._clock())
                has_ended = any(entry["incarnation"].startswith(launch) for launch in self._ended_launches)
                # Ranks that have not begun may still join for a while; later a warning names them.
                if attempt.missing and not has_ended:
                    self._is_busy |= age_s < JOIN_S
                    if attempt.ranks and age_s >= JOIN_S and attempt.role == "train":
                        self._name_missing(entry, attempt.missing)
                if not has_ended and not is_over(attempt):
                    self._is_busy |= bool(attempt.ranks)
                    watched.append(attempt)
                    self._report(attempt)
                    self._follow(entry, attempt, age_s)
                    continue
                # All ranks have ended, but the launcher may still report why one of them died.
                if not has_ended:
                    self._is_busy |= _awaits_launcher(entry, attempt)
                if key not in self._settlement.given_up:
                    entry = with_ranks(self._run_dir, entry)
                    # Evaluations of several ranks are awaited, so that one merge takes all of them.
                    is_awaited = is_open(entry) and self._settlement.awaits_evaluations(entry)
                    self._is_busy |= is_awaited
                    if is_open(entry) and not is_awaited:
                        self._report(attempt, is_over=True)
                        over.append(entry)
                        watched.append(attempt)
        except (DistSummaryError, OSError) as error:
            self._warn(f"the states of the ranks cannot be read: {error}")
            # Ranks whose states cannot be read for a while have not necessarily ended.
            self._is_busy = was_busy and self._clock() - self._seen_s < UNREADABLE_S
        else:
            self._seen_s = self._clock()
        self._over, self._watched = over, watched

    def _report(self, attempt: AttemptState, *, is_over: bool = False) -> None:
        """Report how a training began and ended, and what its ranks have dropped."""
        lost = [rank for rank in attempt.ranks if rank.state == "lost"][:NAMED]
        others = [rank for rank in attempt.ranks if rank.state != "lost"][: len(lost)]
        asked = {rank.rank for rank in (*lost, *others)}
        # Heartbeats are seconds old, files are not. The steps of the lost ranks, and of as many others to
        # compare them with, come from the files.
        if asked:
            ranks = [self._with_step(rank, attempt) if rank.rank in asked else rank for rank in attempt.ranks]
            attempt = replace(attempt, ranks=tuple(ranks))
        for verdict in attempt_verdicts(attempt, is_over=is_over) if attempt.role == "train" else ():
            self._alerts.report(attempt.attempt, verdict)

    def _with_step(self, rank: RankState, attempt: AttemptState) -> RankState:
        """The rank with the newest step in its files, if that is newer."""
        directory = self._run_dir.writer_dir(attempt.role, rank.rank, attempt.world_size)
        try:
            step = newest_step(directory, attempt=attempt.attempt)
        except (DistSummaryError, OSError):
            # The merge reports what cannot be read.
            return rank
        return replace(rank, step=max(rank.step or 0, step or 0) or None)

    def _name_missing(self, entry: Manifest, missing: Collection[int]) -> None:
        """Say once which ranks have not begun to record."""
        if "missing" in entry:
            return
        ranks = ", ".join(map(str, [*missing][:NAMED]))
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        self._warn(
            f"of {entry['world_size']} ranks, rank(s) {ranks}{more} have not begun to record here within "
            f"{JOIN_S:g} s. Either only some ranks record, or they are still starting, or the directory is "
            "not on a disk that all nodes share (look for it on the other nodes)"
        )
        note_fields(self._run_dir, key_of(entry), {"missing": {"ranks": [*missing], "after_s": JOIN_S}})

    def _follow(self, entry: Manifest, attempt: AttemptState, age_s: float) -> None:
        """Begin to merge a training of several ranks that runs, and deal among its living ranks."""
        if attempt.role != "train" or attempt.world_size == 1 or not attempt.ranks:
            return
        # Another attempt takes the place of the one that was merged so far.
        if self._live_of != key_of(entry):
            self._close_live()
            self._live_of, self._can_merge_live = key_of(entry), True
        if self._live is None and self._can_merge_live:
            self._is_described = False
            try:
                self._live = LiveMerge(
                    self._run_dir,
                    role=attempt.role,
                    attempt=attempt.attempt,
                    world_size=attempt.world_size,
                    key_tags=self._run_dir.read_manifest().get("key_tags", []),
                    alerts=self._alerts,
                )
            except OSError as error:
                # The next look tries again.
                self._warn(f"nothing is merged while the ranks train: {error_line(error)}")
        self._running = {rank.rank for rank in attempt.ranks if rank.state == "running"}
        # The description needs the lineages of all ranks, or of those that came in time, and is written once.
        if self._live is not None and not self._is_described:
            directories = self._run_dir.rank_dirs(attempt.role)
            about = describe(self._run_dir, attempt.role, self._run_dir.read_manifest(), directories)
            if about.ranks == attempt.world_size or age_s > JOIN_S:
                self._live.describe(about)
                self._is_described = True
        # The first deal waits for all ranks, but not for long: some may never record.
        if age_s > WORLD_S or not attempt.missing:
            deal_among(self._run_dir, entry, self._running)

    def _write_live(self) -> None:
        """Append to the merged run what is complete."""
        if self._live is None:
            return
        try:
            self._live.poll()
            self._live.advance(self._running, self._clock())
        except OSError as error:
            # Such as a full disk: the next round tries again.
            self._warn(f"the merged run cannot be written now: {error_line(error)}")
        except Exception:
            # Any other error ends only the live merge: when the ranks have ended, their files are merged.
            logger.exception("%s: nothing more is merged before the ranks have ended", self._run_dir.base)
            live, self._live, self._can_merge_live = self._live, None, False
            with suppress(OSError):
                live.abandon()

    def _report_stuck(self) -> None:
        """Report which ranks of the trainings that run are stuck."""
        for attempt in self._watched:
            try:
                new = self._stuck.look(attempt)
                if self._live is not None and self._live_of == (attempt.role, attempt.attempt):
                    self._live.show(new)
            except OSError as error:
                # Such as a full disk: the next round tries again.
                self._warn(f"which rank is stuck cannot be determined: {error_line(error)}")
            except Exception:
                # This is logged once, and merging continues.
                if not self._is_blind:
                    logger.exception("%s: which rank is stuck cannot be determined", self._run_dir.base)
                self._is_blind = True

    def _close_live(self, about: RoleDescription | None = None) -> LiveReport | None:
        """End the live merge; returns what it wrote, None if the files of the ranks have to be merged again.

        about: what the run says about itself, if the attempt is over.
        """
        live, self._live = self._live, None
        if live is None:
            return None
        try:
            report = live.close(about)
            return report if report.is_exact else None
        except Exception as error:
            self._warn(f"the merged run could not be completed, and is merged again: {error!r}")
            return None

    def _settle(self, entry: Manifest) -> bool:
        """Complete the merged run of an attempt that is over; False: to be tried again in the next round."""
        is_live = self._live_of == key_of(entry)
        is_settled = self._settlement.settle(entry, self._close_live if is_live else lambda about: None)
        if key_of(entry) in self._settlement.given_up:
            # If a launch ends now, the aggregator still has to be there to report the failure to it.
            with self._changed:
                self._last_contact_s = self._clock() + REPORT_S
        return is_settled

    def _warn(self, text: str) -> None:
        """Log a warning, once."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s: %s", self._run_dir.base, text)


def _awaits_launcher(entry: Manifest, attempt: AttemptState) -> bool:
    """Whether `ds.launch` started a rank that died lately, and has yet to report how: exit code or signal."""
    deaths = entry.get("deaths", {})
    return entry["incarnation"].startswith(LAUNCHED) and any(
        rank.state == "lost" and rank.last_seen_s < LAUNCHER_S and str(rank.rank) not in deaths
        for rank in attempt.ranks
    )
