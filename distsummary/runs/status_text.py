"""What is said of a run's states: a text of one screen, the same as JSON, what they mean and what is next."""

import re
import statistics
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from itertools import compress
from operator import not_
from typing import Any

from distsummary.base.columns import (
    UNLIMITED,
    aligned,
    clock,
    cut,
    named,
    numbered,
    paragraph,
    printable,
    quoted,
    short_ranges,
)
from distsummary.base.health import Removed
from distsummary.base.terminal import duration
from distsummary.diagnosis.sentence import LEAST_S, finding, seconds, sentence, weight
from distsummary.diagnosis.verdict import DROPPED, ERROR, FAILED, HANG, LOST, MESSAGE, SLOW, STOPPED, Verdict
from distsummary.rundir import states
from distsummary.rundir.states import GONE, REBUILT, SILENT, AttemptState, RankState
from distsummary.runs.status import EACH_RANK, GOOD, Status, newest_step, ranks_behind

ODD_RANKS = 12  # of more ranks, up to so many that are not as they should be
MAX_ROWS = 18  # of more ranks; with all else, 40 lines
START_S = 60.0  # after so long, it is said that no rank has made a step; at once if some have not begun
STUCK = "stuck"  # the phase of a rank for which others wait, or that stands still
EARLIER = 3  # attempts before the newest that have a line
FINDINGS = 3  # in a sentence
MOST_HOSTS = 4  # whose names stand in a line
MESSAGE_WIDTH = 60  # characters of a message of the user

_HEAD = ("rank", "state", "step", "phase", "ms/step", "own", "waiting", "seen", "dropped", "process", "")
_RIGHT = (2, 4, 5, 6, 7, 8)
# A command is one word where lines are broken, so that it can be copied.
_COMMAND = re.compile(r"(distsummary \w+|tensorboard --logdir) (?=\S)")
_MEASURED = (5, 6)  # columns that are shown if any rank reported them


def text_of(status: Status, *, width: int = UNLIMITED) -> str:
    """The run, its ranks and what to do next, in lines of at most `width` characters."""
    run, newest = status.run, status.run.newest
    lines = [cut(line, width) for line in _head(status, width)]
    if newest is None:
        return "\n".join([*lines, *_wrapped(hints(status), width)])
    if newest.failure is not None:
        lines.append(
            cut(f"  first failure: rank {newest.failure.rank}, {printable(newest.failure.error)}", width)
        )
    if status.merged is not None:
        on = "" if status.merged.ranks is None else f", the newest on {numbered(status.merged.ranks, 'rank')}"
        lines.append(f"  merged up to step {status.merged.step:,}{on}")
    others = [one for one in run.attempts if one is not newest]
    if len(others) > EARLIER:
        lines.append(f"  {numbered(len(others) - EARLIER, 'earlier attempt')}: see --json")
    lines += [cut(f"  {_other_line(one, newest)}", width) for one in others[-EARLIER:]]
    lines += ["", *_table(status, width), ""]
    return "\n".join(lines + _wrapped(hints(status), width))


def _wrapped(sentences: Iterable[str], width: int) -> list[str]:
    """Sentences in lines of at most `width` characters; commands and long words stay whole."""
    lines: list[str] = []
    for one in sentences:
        # A character that is no space keeps a command whole while lines are broken.
        text = _COMMAND.sub(lambda found: found[0].replace(" ", "\x00"), one)
        broken = paragraph(text, width, indent="    " if one.startswith(" ") else "  ")
        lines += [line.replace("\x00", " ") for line in broken]
    return lines


def _head(status: Status, width: int) -> list[str]:
    """The run in one line; in two if it is too long for one."""
    run, newest = status.run, status.run.newest
    parts = [run.state]
    if newest is not None:
        role = "" if newest.role == "train" else f" of role {newest.role}"
        parts.append(f"attempt {newest.attempt}{role}")
        parts.append(numbered(newest.world_size, "rank"))
        parts += progress(status)
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(newest.started))
        parts.append(f"began {began} ({duration(max(0.0, status.now - newest.started))} ago)")
    path, facts = f"{printable(str(run.path))}:", ", ".join(parts)
    return [f"{path} {facts}"] if len(path) + 1 + len(facts) <= width else [path, f"  {facts}"]


def progress(status: Status) -> list[str]:
    """How far the training is, as far as that is known: step 399 of 1,200; 12 min left; loss 0.123."""
    said = []
    if status.step is not None:
        said.append(f"step {status.step:,}" + (f" of {status.total:,}" if status.total else ""))
    if status.left_s is not None and status.run.state == "running":
        said.append(f"{duration(status.left_s)} left")
    if status.loss is not None:
        said.append(f"loss {status.loss:.4g}")
    return said


def as_json(status: Status) -> dict[str, Any]:
    """For JSON; docs/ranks.md lists the fields."""
    run = status.run
    attempts = [_attempt_as_json(attempt, status) for attempt in run.attempts]
    newest = None if run.newest is None else run.attempts.index(run.newest)
    return {
        "path": str(run.path),
        "run_id": run.run_id,
        "state": run.state,
        "is_healthy": status.is_healthy,
        "level": status.level,
        "unread": status.unread,
        "findings": [verdict.as_json() for verdict in status.findings],
        "step": status.step,
        "total": status.total,
        "left_s": status.left_s,
        "loss": status.loss,
        "merged_step": status.merged_step,
        "merged_ranks": status.merged.ranks if status.merged else None,
        "stuck": [verdict.as_json() for verdict in status.stuck],
        "removed": status.removed._asdict(),
        "now": status.now,
        "newest": newest,
        "attempts": attempts,
        "hints": hints(status),
    }


def hints(status: Status) -> list[str]:
    """How the run is, why, and the next command; a sentence in each line."""
    run, newest = status.run, status.run.newest
    if newest is None:
        return ["No rank has registered: the job has not reached its first step."]
    path = quoted(run.path)
    found = findings_of(status, "more " if status.stuck else "")
    said = [f"{_verdict(status, newest)}{found and f', with {found}'}.", *causes(status)]
    if newest.missing and newest_step(newest):
        said.append(f"{named(newest.missing)} never registered; a training may record on some ranks only.")
    if status.unread:
        said.append(
            f"Not judged: {printable(status.unread)}; what the ranks recorded: distsummary why {path}"
        )
    said += _stuck(status) or behind_ranks(status)
    if status.findings or status.earlier:
        earlier = f"{numbered(status.earlier, 'finding')} of earlier attempts" if status.earlier else ""
        what = " and ".join(filter(None, ("evidence" if status.findings else "", earlier)))
        said.append(f"{what}: distsummary why {path}")
    for host, kept in status.kept.items():
        files = f"{numbered(len(kept), 'large file')} {'stays' if len(kept) == 1 else 'stay'}"
        said.append(f"{files} on host {printable(host)} (see ds.Record(ship_bytes=)): {printable(kept[0])}")
    if status.removed.values:
        said.append(removed_text(status.removed))
    if states.is_over(newest) and _is_unmerged(status, newest):
        said.append(f"The ranks are not merged to their ends: distsummary merge {path}")
    return [*said, f"next: {_next(status, newest, path)}"]


def removed_text(removed: Removed) -> str:
    """What `keep_bytes` has removed, in a sentence."""
    values = f"{numbered(removed.values, 'bulk value')} up to step {removed.step:,}"
    was = "was" if removed.values == 1 else "were"
    return f"{values} ({removed.nbytes / 1e6:.1f} MB) {was} removed, as ds.Record(keep_bytes=) asks."


def _next(status: Status, newest: AttemptState, path: str) -> str:
    """The one step that such a run needs most."""
    if not states.is_over(newest):
        if status.stuck:
            return (
                "end the job (it does not end by itself) and start it again; stuck.json in the directory "
                "of each rank has its stack"
            )
        return f"distsummary watch {path}"
    if newest.state in ("lost", "failed", "interrupted"):
        mend = "" if newest.state == "interrupted" else "mend the cause (see the job's log), then "
        return f"{mend}resume a checkpoint by resume= or initial_step= (attempt {newest.attempt + 1})"
    if any(rank.state not in GOOD and rank.reason != REBUILT for rank in newest.ranks):
        return f"distsummary fsck {path}"
    return f"tensorboard --logdir {path}"


def _attempt_as_json(attempt: AttemptState, status: Status) -> dict[str, Any]:
    found = asdict(attempt)
    is_newest = attempt is status.run.newest
    stuck = {verdict.rank for verdict in status.stuck} if is_newest else set()
    behind = ranks_behind(attempt.ranks) if is_newest else {}
    for rank, state in zip(found["ranks"], attempt.ranks, strict=True):
        rank["dropped"] = state.dropped
        rank["behind"] = behind.get(state.rank, 0) if state.state == "running" else None
        rank["health"] = dict(state.health)
        rank["step_s"] = state.step_s or None
        if state.rank in stuck and state.state == "running":
            rank["phase"] = STUCK
        del rank["process"]
    del found["is_settled"]
    return found | {
        "failure": None if attempt.failure is None else attempt.failure._asdict(),
        "step": status.step if is_newest else newest_step(attempt),
    }


def _other_line(attempt: AttemptState, newest: AttemptState) -> str:
    """What an attempt other than the newest one came to."""
    step = newest_step(attempt)
    came = "" if step is None else f", came to step {step:,}"
    if attempt.role != newest.role:
        return f"{attempt.role} attempt {attempt.attempt}: {attempt.state}{came}"
    why = f" (rank {attempt.failure.rank}: {printable(attempt.failure.error)})" if attempt.failure else ""
    ranks = numbered(attempt.world_size, "rank")
    return f"before: attempt {attempt.attempt}, {attempt.state}, {ranks}{came}{why}"


def _verdict(status: Status, newest: AttemptState) -> str:
    """How the run is, as a sentence without its end."""
    bad = [rank.rank for rank in newest.ranks if rank.state not in GOOD]
    living = [rank for rank in newest.ranks if rank.state == "running"]
    absent = named(bad or newest.missing, "rank") if bad or newest.missing else ""
    is_fine = not (absent or status.findings or status.unread)
    if living:
        is_all = len(living) == newest.world_size > 1
        run = "runs" if len(living) == 1 else "run"
        runs = f"{'all ' if is_all else ''}{numbered(len(living), 'rank')} {run}"
        waited_s = status.now - newest.started
        if not bad and not newest_step(newest) and (absent or waited_s >= START_S):
            begun = f": {absent} {'has' if len(newest.missing) == 1 else 'have'} not begun" if absent else ""
            return f"No rank has made a step for {seconds(waited_s)}{begun}"
        if absent:
            return f"The run continues without {absent}: {runs}"
        if status.stuck:
            return f"The run is stuck {_stuck_at(status)}"
        if slow := status.behind:
            are = "is" if len(slow) == 1 else "are"
            return f"The run continues: {runs}, but {named(slow, 'rank')} {are} behind"
        return f"The run {'is fine' if is_fine else 'continues'}: {runs}"
    if not newest.ranks:
        return "No rank has registered in this attempt"
    if newest.state == "finished":
        if bad:
            return "The run has finished, but events are missing from the files"
        if absent:
            return f"The run has finished without {absent}"
        if _is_unmerged(status, newest):
            return "The run has finished, but its ranks are not merged to their ends"
        return "The run is fine: it has finished" if is_fine else "The run has finished"
    if newest.state == "lost" and any(rank.state in GOOD for rank in newest.ranks):
        return f"The run has ended without {absent}, which did not finish"
    verb = {"interrupted": "was interrupted", "failed": "has failed", "lost": "is dead"}
    end = f"The run {verb.get(newest.state, 'has ended')}"
    if any(verdict.cause == HANG for verdict in status.stuck):
        return f"{end}; it was stuck {_stuck_at(status)}"
    # The step of the rank that failed or was lost first: others may have been ahead of it.
    first = None if newest.failure is None else newest.failure.rank
    step = next((rank.step for rank in newest.ranks if rank.rank == first), None) or newest_step(newest)
    return f"{end} at step {step:,}" if step else end


def _is_unmerged(status: Status, newest: AttemptState) -> bool:
    """Whether the merged run is missing, or ends before the ranks did."""
    ends_early = newest.world_size > 1 and (status.merged_step or 0) < (newest_step(newest) or 0)
    return bool(status.unmerged) or ends_early


def findings_of(status: Status, more: str = "") -> str:
    """The findings of a run in short, but for those that are said with the states of the ranks."""
    said = STOPPED if status.stuck else (LOST, FAILED)
    shown = [one for one in status.findings if one.cause not in said]
    is_over = status.run.newest is not None and states.is_over(status.run.newest)
    return findings_in_short(shown, more, is_over=is_over)


def by_gravity(findings: Iterable[Verdict]) -> list[Verdict]:
    """The findings, errors first, then by what they cost."""
    return sorted(findings, key=lambda one: (one.level != ERROR, *weight(one)))


def findings_in_short(findings: Sequence[Verdict], more: str = "", *, is_over: bool = False) -> str:
    """Such as: 2 findings: ranks 0 and 1 receive the same batches; rank 2 hung at step 7. Empty if none.

    Args:
        more: a word before "finding". is_over: no rank runs any more.
    """
    parts = []
    for one in by_gravity(findings):
        if one.cause == MESSAGE:
            parts.append(f"{cut(one.evidence, MESSAGE_WIDTH)} (step {one.since_step:,})")
            continue
        said = finding(one, is_over=is_over)
        details = [one.evidence.partition(";")[0]] if one.cause == DROPPED else []
        details += [one.cause] if one.cause in SLOW else []
        details += [seconds(one.lost_s)] if one.lost_s >= LEAST_S else []
        parts.append(said[0].lower() + said[1:] + (f" ({', '.join(details)})" if details else ""))
    count = len(parts)
    if count > FINDINGS:
        parts[FINDINGS:] = [f"and {count - FINDINGS} more"]
    return f"{numbered(count, f'{more}finding')}: {'; '.join(map(printable, parts))}" if parts else ""


def _stuck_at(status: Status) -> str:
    stuck = named([verdict.rank for verdict in status.stuck], "rank")
    return f"at step {status.stuck[0].since_step:,}: look at {stuck}"


def stuck_in_short(status: Status) -> str:
    """Where the run is or was stuck, such as: stuck at step 701: rank 2; empty if it is not."""
    hangs = any(verdict.cause == HANG for verdict in status.stuck)
    return f"stuck {_stuck_at(status)}".replace("look at ", "") if hangs else ""


def causes(status: Status) -> list[str]:
    """The ranks that are not as they should be, one line for each reason, at most four."""
    newest = status.run.newest
    if newest is None:
        return []
    first = newest.failure.rank if newest.failure else -1
    bad = _alike(rank for rank in newest.ranks if rank.state not in GOOD or rank.unreached_since is not None)
    # The rank that failed first leads the list.
    bad.sort(key=lambda ranks: first not in [rank.rank for rank in ranks])
    said = []
    for ranks in bad[:3]:
        why = _why(ranks)
        numbers = _of_hosts(ranks, newest) or named([rank.rank for rank in ranks])
        since = _since([one.lost_since for one in ranks if one.lost_since is not None], status.now)
        said.append(f"  {numbers} {ranks[0].state}{since}" + (f": {why}" if why else ""))
    if len(bad) > 3:
        said.append(f"  and {numbered(sum(map(len, bad[3:])), 'more rank')}: see --json")
    return said


def _of_hosts(ranks: Sequence[RankState], attempt: AttemptState) -> str:
    """Such as Host h1 (ranks 2-3), if the ranks are all of it, and others run elsewhere; else empty."""
    numbers, hosts = {rank.rank for rank in ranks}, {rank.host for rank in ranks}
    there = {rank.rank for rank in attempt.ranks if rank.host in hosts}
    # A host is named only where all its ranks are concerned, as the host is then the likely cause.
    if there != numbers or len(numbers) == len(attempt.ranks) or len(hosts) > MOST_HOSTS:
        return ""
    shown = printable(", ".join(sorted(hosts)))
    return f"{'Host' if len(hosts) == 1 else 'Hosts'} {shown} ({named(numbers, 'rank')})"


def _since(moments: Sequence[float], now: float) -> str:
    """When ranks were last seen, such as: since 14:35:00 (5 min ago)."""
    if not moments:
        return ""
    ends = dict.fromkeys(clock(moment, now) for moment in (min(moments), max(moments)))
    ago = duration(max(0.0, now - max(moments)))
    between = "since " if len(ends) == 1 else "between "
    return f" {between}{' and '.join(ends)} ({ago} ago)"


def _why(ranks: Sequence[RankState]) -> str:
    """The reason of ranks that have the same one."""
    why = printable(ranks[0].error or ranks[0].reason)
    if len(ranks) == 1 or not why.startswith((GONE, SILENT)):
        return why
    hosts = {rank.host for rank in ranks}
    where = printable(ranks[0].host) if len(hosts) == 1 else numbered(len(hosts), "host")
    return f"their processes are gone from {where}" if why.startswith(GONE) else "their heartbeats stopped"


def behind_ranks(status: Status) -> list[str]:
    """Which ranks are behind the others, and whether they are slower."""
    newest, behind = status.run.newest, status.behind
    if newest is None or not behind:
        return []
    reported = [rank for rank in newest.ranks if rank.state == "running" and rank.step_s]
    paces = [rank.step_s for rank in reported if rank.rank in behind]
    others = [rank.step_s for rank in reported if rank.rank not in behind]
    steps = f"{_span(behind.values(), ',')} steps"
    pace = ""
    if others:
        usual = statistics.median(others)
        steps += f", {duration(max(behind.values()) * usual)},"
        slow = f"{_pace(statistics.median(paces))} a step" if paces else "no step in the last 30 s"
        pace = f" ({slow} against {_pace(usual)})"
    return [f"{named([*behind])} {'is' if len(behind) == 1 else 'are'} {steps} behind the others{pace}."]


def _pace(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _stuck(status: Status) -> list[str]:
    """Which ranks are stuck, and why."""
    is_over = status.run.newest is not None and states.is_over(status.run.newest)
    said = [printable(sentence(verdict, is_over=is_over)) for verdict in status.stuck[:3]]
    if len(status.stuck) > 3:
        said.append(f"and {numbered(len(status.stuck) - 3, 'more rank')}: distsummary why")
    return said


def _table(status: Status, width: int) -> list[str]:
    rows = [_HEAD, *_rows(status)]
    empty = [place for place in _MEASURED if all(row[place] in ("-", "") for row in rows[1:])]
    shown = [place for place in range(len(_HEAD)) if place not in empty]
    right = [number for number, place in enumerate(shown) if place in _RIGHT]
    return aligned([[row[place] for place in shown] for row in rows], right=right, width=width)


def _rows(status: Status) -> list[tuple[str, ...]]:
    """The rows of the table: a rank each or, if there are many, ranks that are alike."""
    attempt = status.run.newest
    if attempt is None:
        return []
    stuck = {verdict.rank for verdict in status.stuck}
    ranks = [replace(rank, phase=STUCK) if rank.rank in stuck else rank for rank in attempt.ranks]
    missing = (short_ranges(attempt.missing), "missing", *["-"] * 8, "never registered")
    end = [missing] if attempt.missing else []
    if len(ranks) <= EACH_RANK:
        return [_row([rank]) for rank in ranks] + end
    # Of many ranks, only those that are not as they should be have a line each.
    behind = ranks_behind(ranks)
    special = behind.keys() | stuck
    is_odd = [rank.state not in GOOD or rank.rank in special or bool(rank.dropped) for rank in ranks]
    odd = [*compress(ranks, is_odd)]
    rows = [_row(alike) for alike in ([[rank] for rank in odd] if len(odd) <= ODD_RANKS else _alike(odd))]
    rows += [_row(alike) for alike in _alike(compress(ranks, map(not_, is_odd)))] + end
    if len(rows) > MAX_ROWS:
        rest = numbered(len(rows) - MAX_ROWS, "more line")
        rows[MAX_ROWS:] = [("...", f"{rest}: see --json", *[""] * 9)]
    return rows


def _alike(ranks: Iterable[RankState]) -> list[list[RankState]]:
    """Ranks of the same state, phase and reason together; numbers in the reason may differ."""
    groups: dict[tuple[str, str, bool, str], list[RankState]] = defaultdict(list)
    for rank in ranks:
        why = re.sub(r"\d+", "#", rank.error or rank.reason)
        groups[rank.state, rank.phase, bool(rank.dropped), why].append(rank)
    return sorted(groups.values(), key=len)


def _row(ranks: Sequence[RankState]) -> tuple[str, ...]:
    """One rank, or ranks that are alike, as the cells of a line."""
    first = ranks[0]
    steps = [rank.step for rank in ranks if rank.step is not None]
    is_running = first.state == "running"
    reported = [rank for rank in ranks if is_running]
    dropped = [count for rank in ranks if (count := rank.dropped) is not None]
    hosts = {rank.host for rank in ranks}
    process = f"{first.host}:{first.pid}" if len(ranks) == 1 and first.pid else first.host or "-"
    if len(hosts) > 1:
        process = numbered(len(hosts), "host")
    return (
        short_ranges([rank.rank for rank in ranks]),
        first.state,
        _span(steps, "d"),
        (is_running and printable(first.phase)) or "-",
        _span([1e3 * rank.step_s for rank in reported if rank.step_s], ".1f"),
        _span([rank.own_ms for rank in reported if rank.own_ms is not None], ".1f"),
        _span([rank.wait_ms for rank in reported if rank.wait_ms is not None], ".1f"),
        duration(max(rank.last_seen_s for rank in ranks)),
        f"{sum(dropped)}" if dropped else "-",
        printable(process),
        printable(first.error or first.reason),
    )


def _span(numbers: Collection[float], form: str) -> str:
    """Such as 3-7, or 3 if both ends look alike; "-" without any."""
    ends = [format(end, form) for end in (min(numbers), max(numbers))] if numbers else ["-"]
    return "-".join(dict.fromkeys(ends))
