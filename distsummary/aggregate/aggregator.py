"""The aggregator of one run: it registers the ranks, deals, and writes the merged run while they train."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from distsummary.aggregate.live import LiveMerge, LiveReport
from distsummary.aggregate.merge import merge_facts, merge_run
from distsummary.aggregate.registrar import Registrar
from distsummary.aggregate.role_description import RoleDescription, describe, log_conflicts
from distsummary.aggregate.stuck_ranks import StuckRanks
from distsummary.aggregate.visible import hidden_ranks
from distsummary.base.failures import error_line
from distsummary.diagnosis.ends import attempt_verdicts
from distsummary.diagnosis.reporting import Alerts
from distsummary.diagnosis.sentence import named_ranks
from distsummary.errors import DistSummaryError, MissingFileError, RunDirError
from distsummary.events.newest import newest_step
from distsummary.rundir.attempts import (
    Registration,
    end_of,
    find_attempt,
    is_open,
    merged_states,
    newest_attempts,
    note_aggregator,
    note_deaths,
    note_evaluation,
    note_state,
    with_ranks,
)
from distsummary.rundir.deal import Deal, Heartbeat, deals_in, first_deal, next_deal, with_parts
from distsummary.rundir.rank_manifest import read_ranks
from distsummary.rundir.rank_parts import parts_of
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.states import AttemptState, RankState, is_over, read_run
from distsummary.rundir.timeouts import EVALUATED_S, HIDDEN_S, JOIN_S, LAUNCHER_S, WORLD_S
from distsummary.rundir.topology import LAUNCHED, Topology

logger = logging.getLogger(__name__)

ROUND_S = 0.5
LOOK_S = 2.0  # seconds between two looks at the files in which the ranks report their states
LOOK_SHARE = 20  # a look that takes long, on a slow disk, is repeated after this many times as long
GIVE_UP_S = 5.0  # how long a merge that fails is tried again
REPORT_S = 10.0  # how long it stays to report a failed merge to a launch that ends
UNREADABLE_S = 60.0  # how long the aggregator stays although it cannot read how the ranks are
GRACE_S = 2.0
NO_DEATHS: Mapping[int, str] = MappingProxyType({})
NAMED = 8  # missing ranks in a message

Key = tuple[str, int]  # role and attempt


class Aggregator:
    """A Coordinator that follows the ranks of a run; the data that they record do not pass through it.

    It learns from their files how the ranks are (see `states`). Their calls only make it faster, so that it
    works the same as an actor, which the ranks call, and as a process that no one calls. All its lasting
    state is in the run dir: if it dies, the next one continues where it stopped.

    Every `round_s` seconds its thread

    - appends to the merged run of the newest training (see LiveMerge),
    - reports which rank is stuck, if one is (see `diagnosis/stuck.py`),
    - deals the recording of equal values among the ranks that live (see `deal`),
    - settles each attempt none of whose ranks runs any more. If the merged run is not what a merge of all
      files would give, because a rank reported something late or an attempt repeated steps, it merges again.

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
        self._has_ended = False
        # The thread and the calls of ranks share the fields above under this lock.
        self._changed = threading.Condition(threading.RLock())
        # What follows is the thread's own.
        self._since_s: dict[Key, float] = {}  # when an attempt was seen first
        self._evaluated: dict[Key, tuple[int, float]] = {}  # how many ranks evaluated, and when
        self._hidden_s: dict[Key, float] = {}  # since when files do not show all that was recorded
        self._failing_s: dict[Key, float] = {}  # since when an attempt cannot be merged
        self._given_up: dict[Key, tuple[Manifest, str]] = {}  # the attempts that could not be merged, and why
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
            self._wait_until_settled(lambda entry: _key(entry) == (topology.role, attempt))

    def evaluated(self, topology: Topology, attempt: int) -> None:
        """Note that a rank evaluated its finished training; the last rank's call returns after the merge."""
        self.renew()
        note_evaluation(self._run_dir, topology, attempt)
        entry = find_attempt(self._run_dir.read_manifest(), "train", attempt)
        if len(entry.get("evaluated", [])) >= topology.world_size:
            self._wait_until_settled(lambda other: _key(other) == ("train", attempt))

    def settle(self, launch_id: str, deaths: Mapping[int, str] = NO_DEATHS, state: str = "lost") -> None:
        """Settle the attempts of a launch whose processes have ended; returns when they are settled.

        `deaths` and `state` say how ranks ended that could not report it; see
        `coordination.note_deaths`.
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
        keys = {_key(entry) for entry in newest if entry["incarnation"].startswith(launch_id)}
        # Ranks that reported their own end keep what they reported.
        for attempt in read_run(self._run_dir).attempts:
            unreported = {one.rank for one in attempt.ranks if one.state in ("running", "lost")}
            died = {rank: reason for rank, reason in deaths.items() if rank in unreported}
            if died and (attempt.role, attempt.attempt) in keys:
                note_deaths(self._run_dir, attempt.role, attempt.attempt, died, state=state)

    def _wait_until_settled(self, wanted: Callable[[Manifest], bool]) -> None:
        """Wait until the thread has looked at the ranks, and settled what is wanted and over.

        Raises RunDirError if it has given that up.
        """
        with self._changed:
            self._asked += 1
            asked = self._asked
            self._changed.notify_all()
            # An earlier look may have missed what the caller just noted: wait for one that begins now.
            self._changed.wait_for(
                lambda: self._has_ended or (self._answered >= asked and not any(map(wanted, self._over)))
            )
            for entry, reason in self._given_up.values():
                if wanted(entry):
                    raise RunDirError(reason)

    # --- the aggregator's thread

    def _watch(self) -> None:
        try:
            while self._round():
                with self._changed:
                    if self._asked == self._answered:
                        self._changed.wait(self._round_s)
        except Exception:
            # No one waits for this thread, and the files of the ranks can still be merged later.
            logger.exception("%s: the aggregator ends; run: distsummary merge", self._run_dir.base)
        finally:
            # A live merge is still open if its attempt disappeared with run.json, or after an error.
            if self._live is not None:
                self._live.abandon()
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()
            self._alerts.close()
            self._on_end()

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
            if not self._run_dir.base.is_dir():
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
                key = _key(entry)
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
                if key not in self._given_up:
                    entry = with_ranks(self._run_dir, entry)
                    # Evaluations of several ranks are awaited, so that one merge takes all of them.
                    if is_open(entry) and not self._awaits_evaluations(entry):
                        self._report(attempt, is_over=True)
                        over.append(entry)
                        watched.append(attempt)
        except DistSummaryError as error:
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
        self._note(entry, "missing", {"ranks": [*missing], "after_s": JOIN_S})

    def _awaits_evaluations(self, entry: Manifest) -> bool:
        """Whether some ranks have reported an evaluation, and others may still do so."""
        reported = len(entry.get("evaluated", []))
        if not reported or reported >= len(entry["ranks"]):
            return False
        known, since_s = self._evaluated.get(_key(entry), (0, 0.0))
        if reported > known:
            since_s = self._clock()
            self._evaluated[_key(entry)] = reported, since_s
        is_awaited = self._clock() - since_s < EVALUATED_S
        self._is_busy |= is_awaited
        return is_awaited

    def _awaits_files(self, entry: Manifest) -> bool:
        """Whether the files of some ranks do not show here yet what these recorded, and may still."""
        if entry["world_size"] == 1 or not (hidden := hidden_ranks(self._run_dir, entry)):
            return False
        since_s = self._hidden_s.setdefault(_key(entry), self._clock())
        if is_awaited := self._clock() - since_s < HIDDEN_S:
            self._warn(
                f"the files of {named_ranks(hidden)} do not show here yet all that was recorded; a network "
                f"file system shows it within a minute. The merge waits {HIDDEN_S:g} s for it"
            )
        return is_awaited

    def _follow(self, entry: Manifest, attempt: AttemptState, age_s: float) -> None:
        """Begin to merge a training of several ranks that runs, and deal among its living ranks."""
        if attempt.role != "train" or attempt.world_size == 1 or not attempt.ranks:
            return
        # Another attempt takes the place of the one that was merged so far.
        if self._live_of != _key(entry):
            self._close_live()
            self._live_of, self._can_merge_live = _key(entry), True
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
            about = self._describe(entry)
            if about.ranks == attempt.world_size or age_s > JOIN_S:
                self._live.describe(about)
                self._is_described = True
        # The first deal waits for all ranks, but not for long: some may never record.
        if age_s > WORLD_S or not attempt.missing:
            self._deal(entry)

    def _deal(self, entry: Manifest) -> None:
        """Deal among the running ranks, unless the deal that holds is one among them; note who took what."""
        files = read_ranks(self._run_dir, entry["role"], entry["world_size"], self._running)
        found = {rank: file.entry(entry["attempt"]) for rank, file in files.items()}
        ranks = {rank: one for rank, one in found.items() if one is not None and one["heartbeat"]}
        # The first heartbeat of a rank reports its number of steps, which the deal needs.
        if ranks.keys() != self._running:
            return
        beats = {
            rank: Heartbeat(**{k: v for k, v in one["heartbeat"].items() if k in Heartbeat._fields})
            for rank, one in ranks.items()
        }
        # Before any rank has begun its loop, there is nothing to deal.
        if all(beat.step == 0 and beat.total is None for beat in beats.values()):
            return
        meshes = {rank: one.get("mesh", {}) for rank, one in ranks.items()}
        deals = deals_in(entry) or (self._first_deal(entry, ranks),)
        deal = next_deal(deals[-1], meshes, beats)
        # Even without a new deal, each running rank has to be in the deal that run.json holds.
        noted = entry.get("deals", [])
        if deal is not None or not noted or not {*map(str, self._running)} <= noted[-1]["ranks"].keys():
            self._note_deals(entry, deals if deal is None else (*deals, deal), is_over=False)

    def _first_deal(self, entry: Manifest, ranks: Mapping[int, Manifest]) -> Deal:
        """The deal that the ranks followed without asking; `ranks` are their entries."""
        meshes = {rank: one.get("mesh", {}) for rank, one in ranks.items()}
        parts = parts_of(self._run_dir.rank_dirs(entry["role"]), entry["attempt"])
        beats = [one["heartbeat"] for rank, one in ranks.items() if rank not in parts and "heartbeat" in one]
        # Until the files of a rank say how many steps it expects, its heartbeat does, if its loop has begun.
        begun = [beat for beat in beats if "total" in beat and (beat["step"] or beat["total"] is not None)]
        totals = [*(of[0].total for of in parts.values()), *(beat["total"] for beat in begun)]
        return first_deal(entry["world_size"], meshes, totals)

    def _note_deals(self, entry: Manifest, deals: Sequence[Deal], *, is_over: bool) -> None:
        """Write the deals into run.json, with what each rank recorded of them, unless it has them."""
        parts = parts_of(self._run_dir.rank_dirs(entry["role"]), entry["attempt"])
        stored = with_parts(deals, parts, is_over=is_over)
        if stored != entry.get("deals", []):
            self._note(entry, "deals", stored)

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

    def _describe(self, entry: Manifest) -> RoleDescription:
        run_dir, role = self._run_dir, entry["role"]
        return describe(run_dir, role, run_dir.read_manifest(), run_dir.rank_dirs(role))

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
        key, states = _key(entry), merged_states(entry)
        if self._awaits_files(entry):
            return False
        try:
            note_state(self._run_dir, *key, end_of(states))
            if entry["world_size"] > 1:
                if entry["role"] == "train":
                    ranks = {int(rank): one for rank, one in entry["ranks"].items()}
                    deals = deals_in(entry) or (self._first_deal(entry, ranks),)
                    self._note_deals(entry, deals, is_over=True)
                about = self._describe(entry)
                # What the live merge wrote stays if a merge of all files would give the same.
                report = self._close_live(about) if self._live_of == key else None
                # Viewers that know nothing of attempts would show the steps twice that an attempt repeats.
                if report is None or entry.get("evaluated") or entry["attempt"] > 0:
                    merge_run(self._run_dir)
                else:
                    log_conflicts(about.conflicts, self._run_dir.base)
                    missing = about.attempt.missing if about.attempt else ()
                    facts = merge_facts(report.last_steps, missing, about.conflicts, report.damage)
                    self._run_dir.update_manifest(
                        lambda manifest: manifest.setdefault("merged", {}).update({key[0]: facts})
                    )
            self._note(entry, "merged", states)
        except (DistSummaryError, OSError) as error:
            since_s = self._failing_s.setdefault(key, self._clock())
            # A missing file may only be hidden for a while by a network file system.
            is_hidden = isinstance(error, MissingFileError)
            if self._clock() - since_s < (HIDDEN_S if is_hidden else GIVE_UP_S):
                return False
            base = self._run_dir.base
            reason = f"{base}: the ranks could not be merged: {error}; then run: distsummary merge {base}"
            self._given_up[key] = entry, reason
            # If a launch ends now, the aggregator still has to be there to report the failure to it.
            with self._changed:
                self._last_contact_s = self._clock() + REPORT_S
            logger.warning("%s", reason)
        return True

    def _note(self, entry: Manifest, name: str, value: object) -> None:
        """Write a field of an attempt into run.json."""
        self._run_dir.update_manifest(
            lambda manifest: find_attempt(manifest, *_key(entry)).update({name: value})
        )

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


def _key(entry: Manifest) -> Key:
    return entry["role"], entry["attempt"]
