"""attempt_verdicts: how an attempt began and ended, and what its ranks lost, as verdicts to report."""

from collections.abc import Collection

from distsummary.diagnosis.alerts import values_dropped
from distsummary.diagnosis.verdict import FAILED, FINISHED, INTERRUPTED, LOST, STARTED, Verdict
from distsummary.rundir.consequences import follows_from_another
from distsummary.rundir.states import AttemptState, is_over


def attempt_verdicts(attempt: AttemptState, *, is_over: bool) -> list[Verdict]:
    """The verdicts on an attempt as it is now; of each cause, `Alerts` reports the first.

    Args:
        is_over: no rank runs any more, and none may join.
    """
    if not attempt.ranks:
        return []
    steps = {rank.rank: rank.step or int(rank.health.get("step") or 0) for rank in attempt.ranks}
    step = max(steps.values())
    found = [_of(STARTED, 0, 0, f"{_ranks(attempt.world_size)}, attempt {attempt.attempt}")]
    if dropped := {rank.rank: count for rank in attempt.ranks if (count := rank.dropped)}:
        found.append(values_dropped(dropped, step))
    failure = attempt.failure
    lost = [rank for rank in attempt.ranks if rank.state == "lost"]
    if failure is not None and (is_over or not follows_from_another(failure.error)):
        is_lost = failure.rank in {rank.rank for rank in lost}
        # The rank's own: others may be ahead of it.
        at = steps[failure.rank] or step
        failed = tuple(rank.rank for rank in attempt.ranks if rank.state == "failed")
        # If all failed ranks only lost a connection, it is not known to whom: all of them are named.
        named = failed if follows_from_another(failure.error) and len(failed) > 1 else ()
        found.append(_of(LOST if is_lost else FAILED, failure.rank, at, failure.error, named))
    elif lost and failure is None:
        numbers = tuple(rank.rank for rank in lost)
        at = max(steps[rank] for rank in numbers) or step
        found.append(_of(LOST, numbers[0], at, lost[0].reason, numbers if len(lost) > 1 else ()))
    elif is_over and attempt.state == "interrupted":
        first = next((rank for rank in attempt.ranks if rank.state == "interrupted"), attempt.ranks[0])
        found.append(_of(INTERRUPTED, first.rank, step, first.error or "by a signal"))
    elif is_over and attempt.state == "finished":
        found.append(_of(FINISHED, 0, step, _ranks(attempt.world_size)))
    return found


def unreported_end(found: Collection[Verdict], attempt: AttemptState | None) -> list[Verdict]:
    """How the newest attempt failed, if none reported it: of a rank alone that was killed.

    `found`: the verdicts on it so far.
    """
    if attempt is None or attempt.role != "train" or not is_over(attempt):
        return []
    if any(verdict.cause in (FAILED, LOST) for verdict in found):
        return []
    ends = attempt_verdicts(attempt, is_over=True)
    return [verdict for verdict in ends if verdict.cause in (FAILED, LOST)]


def _of(cause: str, rank: int, step: int, evidence: str, ranks: tuple[int, ...] = ()) -> Verdict:
    return Verdict(
        rank=rank,
        cause=cause,
        since_step=step,
        until_step=None,
        evidence=evidence,
        reported_step=step,
        ranks=ranks,
    )


def _ranks(count: int) -> str:
    return f"{count:,} rank{'s' if count > 1 else ''}"
