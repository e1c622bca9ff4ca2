"""sentence: a verdict in words: first the finding, then the numbers, then what it cost."""

from collections.abc import Iterable
from dataclasses import replace

from distsummary.base.checks import as_unicode
from distsummary.diagnosis.verdict import (
    AWAITED,
    CONFIG,
    DRIFT,
    DROPPED,
    FAILED,
    FINISHED,
    GROWTH,
    HANG,
    INTERRUPTED,
    LEVELS,
    LOADER,
    LOST,
    MEMORY,
    MESSAGE,
    NAN,
    OVERHEAD,
    SHARD,
    SLOW,
    STARTED,
    STOPPED,
    UNEVEN,
    UNRECORDED,
    UNSAVED,
    Verdict,
)
from distsummary.rundir.deal import LongStep

DAMAGE = (*STOPPED, NAN)  # causes that end or spoil a training, whatever the others cost
NAMED = 8  # ranks in a sentence
_SHOWN = 3  # intervals in a sentence
LEAST_S = 0.05  # a cost below it is not given
_OUTSIDE = ("rest", "outside", "evaluation")  # phases in which a rank is for reasons that are unknown
_MINUTE, _HOUR = 60.0, 3600.0
# What is said of a verdict that lasts, and of one that is over; {ranks} begins the sentence.
_FINDINGS = {
    **dict.fromkeys(SLOW, ("{ranks} {has} held up the run {steps}", "{ranks} held up the run {steps}")),
    HANG: ("{ranks} {hangs} at step {step}", "{ranks} hung at step {step}"),
    AWAITED: (
        "{ranks} {keeps} the others waiting at step {step}",
        "{ranks} kept the others waiting at step {step}",
    ),
    LOST: ("{ranks} {was} lost at step {step}",) * 2,
    FAILED: ("{ranks} failed at step {step}",) * 2,
    NAN: ("{ranks} had the first number that is not finite, at step {step}",) * 2,
    DRIFT: ("{ranks} {has} held {other} weights {steps}", "{ranks} held {other} weights {steps}"),
    CONFIG: ("{ranks} {runs} with other settings than {its} peers",) * 2,
    SHARD: ("{ranks} {receives} the same batches",) * 2,
    MEMORY: (
        "{ranks} {has} taken much more memory than {its} peers {steps}",
        "{ranks} took much more memory than {its} peers {steps}",
    ),
    DROPPED: ("{ranks} {has} dropped values",) * 2,
    UNSAVED: ("{ranks} did not save a checkpoint at step {step}",) * 2,
    UNRECORDED: ("{ranks} {does} not record all that was chosen",) * 2,
    LOADER: (
        "{ranks} {has} waited for data most of the time {steps}",
        "{ranks} waited for data most of the time {steps}",
    ),
    GROWTH: ("{ranks} {has} taken more and more memory {steps}", "{ranks} took more and more memory {steps}"),
    OVERHEAD: (
        "{ranks} {has} been slowed down by recording {steps}",
        "{ranks} {was} slowed down by recording {steps}",
    ),
    UNEVEN: ("{ranks} {has} had steps of different lengths", "{ranks} had steps of different lengths"),
    STARTED: ("The run started",) * 2,
    FINISHED: ("The run finished at step {step}",) * 2,
    INTERRUPTED: ("The run was interrupted at step {step}",) * 2,
    MESSAGE: ("{ranks} reports at step {step}",) * 2,
}


def sentence(verdict: Verdict, *, is_over: bool = False, of_s: float | None = None) -> str:
    """A verdict as one sentence, and a second one about its cost if it has one.

    Such as: Rank 2 held up the run in steps 200 to 419: forward took 5.7 ms a step, on its peers 1.3 ms.
    Cost: 1.0 s of 30 s.

    Args:
        is_over: no rank runs any more. of_s: seconds that the run took so far; None: not given.
    """
    # The evidence may hold a path or a name of a host that is no valid text.
    evidence = as_unicode(verdict.evidence.rstrip("."))
    said = f"{finding(verdict, is_over=is_over)}: {evidence}."
    if verdict.lost_s < LEAST_S:
        return said
    lasts = verdict.until_step is None and not is_over
    of = "" if of_s is None else f" of {seconds(max(of_s, verdict.lost_s))}"
    return f"{said} Cost{' so far' if lasts else ''}: {seconds(verdict.lost_s)}{of}."


def with_line(verdict: Verdict, seen: Iterable[LongStep]) -> Verdict:
    """A verdict on a slow rank, with the line at which the rank was in the last long step of it.

    `seen`: its long steps, the newest last.
    """
    phases = (verdict.cause, *(_OUTSIDE if verdict.cause == "unknown" else ()))
    intervals = verdict.intervals or ((verdict.since_step, verdict.until_step),)
    lines = [
        one
        for one in seen
        if one.phase in phases
        and any(since <= one.step and (until is None or one.step <= until) for since, until in intervals)
    ]
    if verdict.cause not in SLOW or not lines:
        return verdict
    evidence = f"{verdict.evidence}; at step {lines[-1].step:,} it was at {lines[-1].line}"
    return replace(verdict, evidence=evidence)


def weight(verdict: Verdict) -> tuple[int, bool, float, int]:
    """A key to sort by, the heaviest first: errors, what ended or spoiled the training, what cost most.

    Of those that cost as much, hangs come first, then lost ranks: others are lost or fail because of these.
    """
    order = STOPPED.index(verdict.cause) if verdict.cause in STOPPED else len(STOPPED)
    return -LEVELS.index(verdict.level), verdict.cause not in DAMAGE, -verdict.lost_s, order


def finding(verdict: Verdict, *, is_over: bool = False) -> str:
    """What was found, on which ranks and at which steps, such as: Rank 2 held up the run in step 7."""
    ranks = verdict.ranks or (verdict.rank,)
    is_one = len(ranks) == 1
    lasting, past = _FINDINGS[verdict.cause]
    text = past if is_over or verdict.until_step is not None else lasting
    named = named_ranks(ranks)
    return text.format(
        ranks=named[0].upper() + named[1:],
        step=f"{verdict.since_step:,}",
        steps=_steps(verdict, is_over=is_over),
        has="has" if is_one else "have",
        hangs="hangs" if is_one else "hang",
        keeps="keeps" if is_one else "keep",
        was="was" if is_one else "were",
        does="does" if is_one else "do",
        runs="runs" if is_one else "run",
        its="its" if is_one else "their",
        receives="receives" if is_one else "receive",
        other="other" if is_one else "different",
    )


def named_ranks(ranks: Iterable[int]) -> str:
    """Ranks in words, runs of three or more as a range, such as: ranks 0, 2 and 5 to 7."""
    parts: list[str] = []
    listed = sorted(set(ranks))
    shown = listed[:]
    while shown and len(parts) < NAMED:
        end = next((i for i in range(1, len(shown)) if shown[i] != shown[0] + i), len(shown))
        if end >= 3:
            parts.append(f"{shown[0]} to {shown[end - 1]}")
        else:
            end = 1
            parts.append(str(shown[0]))
        del shown[:end]
    if shown:
        parts.append(f"{len(shown)} more")
    text = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else "none"
    return f"rank{'s' if len(listed) > 1 else ''} {text}"


def seconds(value: float) -> str:
    """A time with its unit, such as 1.0 s, 35 s, 12 min or 2.5 h."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 2 * _MINUTE:
        return f"{value:.0f} s"
    return f"{value / _MINUTE:.0f} min" if value < 2 * _HOUR else f"{value / _HOUR:.1f} h"


def _steps(verdict: Verdict, *, is_over: bool) -> str:
    """When it was so, such as: in steps 200 to 419; since step 500."""
    intervals = verdict.intervals or ((verdict.since_step, verdict.until_step),)
    ended = [(since, until) for since, until in intervals if until is not None]
    parts = [f"{since:,}" if since == until else f"{since:,} to {until:,}" for since, until in ended[:_SHOWN]]
    last, until = intervals[-1]
    begun = f"from step {last:,} to the end" if is_over else f"since step {last:,}"
    if not ended:
        return begun
    if len(ended) > _SHOWN:
        more = len(ended) - _SHOWN
        parts.append(f"{more} more time{'s' if more > 1 else ''}")
    if until is None:
        parts.append(begun)
    is_one = len(parts) == 1 and ended[0][0] == ended[0][1]
    text = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    return f"in step{'' if is_one else 's'} {text}"
