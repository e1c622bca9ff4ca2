"""Which rank is slowed when: the episodes of a training, equal for equal names and seeds."""

import random
from dataclasses import dataclass

from benchmarks.zoo.faults import Episode
from benchmarks.zoo.trainings import WITHOUT_LOADER, WORKERS

RANKS = 4
WORK = [(place, "work") for place in ("data", "forward", "backward", "optimizer")]
CAUSES = [*WORK, ("data", "sleep"), ("forward", "sleep")]
COLLECTING = ("python", "work")  # garbage; of one training
QUEUED = 30  # steps by which an episode of a loader's workers is longer: their batches are used up first


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When a rank is slowed.

    Args:
        share: by which fraction of the CPU time of its own step.
        each: episodes of each cause. limit: steps within which it is to be reported.
        causes: (place, how) of the faults; all, if there are none.
        first: the step of the first one. length: of each, in steps. gap: the fewest and most clean steps
            between two.
    """

    share: float = 0.25
    each: int = 2
    limit: int = 20
    causes: tuple[tuple[str, str], ...] = ()
    first: int = 220
    length: int = 30
    gap: tuple[int, int] = (50, 80)


FULL = Schedule()
SMALL = Schedule(share=0.10, limit=40, length=60)
BUSY = Schedule(each=1, first=100, gap=(40, 50))
EACH = 32  # steps from one stall to the next
STALLS = Schedule(
    share=8.0,
    each=1,
    causes=(("data", "sleep"), ("forward", "work")),
    length=11 * EACH + 1,
    limit=10 * EACH,
)


def causes_of(name: str) -> list[tuple[str, str]]:
    """(place, how) of the faults that a training can have.

    Where processes load the data, work in them is no fault of that size: it would take a processor.
    """
    if name == "mlp":
        return [*CAUSES, COLLECTING]
    if name in WITHOUT_LOADER:
        return [cause for cause in CAUSES if cause[0] != "data"]
    return [cause for cause in CAUSES if cause != ("data", "work") or not WORKERS[name]]


def episodes(name: str, schedule: Schedule, seed: int = 0, ranks: int = RANKS) -> list[Episode]:
    """The episodes of a training. No rank is slowed twice in the same place: such verdicts may be one."""
    chance = random.Random(f"{name} {seed}")
    drawn = [one for one in causes_of(name) if one in (schedule.causes or causes_of(name))] * schedule.each
    chance.shuffle(drawn)
    orders = {place: chance.sample(range(ranks), ranks) for place, _ in drawn}
    found: list[Episode] = []
    step = schedule.first
    for place, how in drawn:
        workers = WORKERS[name] if place == "data" else 0
        end = step + schedule.length + QUEUED * bool(workers)
        rank = orders[place][sum(one["place"] == place for one in found) % ranks]
        one = {"rank": rank, "place": place, "how": how, "share": schedule.share, "start": step, "end": end}
        found.append(one | ({"workers": workers} if workers else {}))
        step = end + chance.randint(*schedule.gap)
    return found


def stalls(episode: Episode) -> list[Episode]:
    """An episode as single steps, EACH from one to the next."""
    return [
        episode | {"start": step, "end": step + 1} for step in range(episode["start"], episode["end"], EACH)
    ]


def steps_for(found: list[Episode]) -> int:
    """How many steps a training with these episodes has: whole epochs of 200."""
    return -(-(found[-1]["end"] + 25) // 200) * 200
