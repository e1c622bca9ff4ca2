"""different_settings: finds ranks whose settings, seeds or versions are not those of the others."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from distsummary.diagnosis.verdict import CONFIG, Verdict
from distsummary.rank_facts import RankFacts

Settings = Mapping[str, str | None]  # what a rank tells, by name; None or absent: not known

CONFIG_PREFIX = "config "  # of the names of the user's own settings
ENVIRONMENT_PREFIX = "environment "
SEED_PREFIX = "seed "
LOCAL_RANK = "local rank"  # among the settings: not compared, it tells who may do more than others
ABSENT = "absent"
NAMED = 3  # settings in a message
DERIVED_SEED = 10**8  # hardly anybody chooses a larger one by hand, and a date has eight digits
# Words in the names of the user's settings that say that each rank has a value of its own.
_OF_RANK = re.compile(
    r"(?<![a-z])(rank|ranks|device|devices|gpu|gpus|cuda|host|hostname|node|port|pid|worker|master|main|is_main"
    r"|primary|verbose|quiet)(?![a-z])",
    re.IGNORECASE,
)
_NOTHING = ("None", "False", "''", "", "0", "[]", "{}", ABSENT)


def different_settings(facts: Mapping[int, RankFacts], first_step: int) -> list[Verdict]:
    """One verdict for the ranks whose settings differ in the same way, by rising ranks; see `differences`.

    `first_step`: the step of the verdicts.
    """
    found: dict[int, dict[str, str]] = defaultdict(dict)
    for name, rank, reason in differences(facts):
        found[rank][name] = reason
    alike: dict[object, list[int]] = defaultdict(list)  # ranks that differ in the same way
    for rank, reasons in sorted(found.items()):
        is_pair = len(facts) == 2
        alike[tuple((name, None if is_pair else facts[rank].settings.get(name)) for name in reasons)].append(
            rank
        )
    return [
        Verdict(
            rank=ranks[0],
            cause=CONFIG,
            since_step=first_step,
            until_step=None,
            evidence="; ".join(f"{name} is {reason}" for name, reason in [*found[ranks[0]].items()][:NAMED])
            + (f"; and {more} more settings" if (more := len(found[ranks[0]]) - NAMED) > 0 else ""),
            reported_step=first_step,
            ranks=tuple(ranks) if len(ranks) > 1 else (),
        )
        for ranks in alike.values()
    ]


def usual_settings(facts: Mapping[int, RankFacts]) -> dict[str, str]:
    """The settings that a strict majority of the ranks agree on, by name.

    Args:
        facts: rank -> what it told of itself.
    """
    reported: dict[str, Counter[str | None]] = defaultdict(Counter)
    for of_rank in facts.values():
        for name, value in of_rank.settings.items():
            reported[name][value] += 1
    usual = {name: counts.most_common(1)[0] for name, counts in reported.items()}
    return {name: value for name, (value, n) in usual.items() if value is not None and 2 * n > len(facts)}


def differences(facts: Mapping[int, RankFacts]) -> list[tuple[str, int, str]]:
    """What differs between ranks: setting, rank and value, such as "77 on rank 1, 0 on 3 others".

    A setting that a strict majority of the ranks agrees on is right, and the others are named. Of two ranks
    that differ, both are, unless their seeds look as if each rank were meant to have its own. Without a
    majority, as with a seed for each rank, nobody is.

    What only the first rank of a node has set is left out: it may do more than others, such as writing a log.

    Args:
        facts: rank -> what it told of itself.
    """
    reported: dict[int, Settings] = {
        rank: {name: value for name, value in of_rank.settings.items() if name != LOCAL_RANK}
        for rank, of_rank in facts.items()
    }
    leaders = {0, *(rank for rank, of_rank in facts.items() if of_rank.settings.get(LOCAL_RANK) == "0")}
    found = []
    for name in sorted(set[str]().union(*reported.values())):
        values = {rank: settings.get(name) for rank, settings in reported.items()}
        if name.startswith((CONFIG_PREFIX, ENVIRONMENT_PREFIX)):
            values = {rank: ABSENT if value is None else value for rank, value in values.items()}
        known = {rank: value for rank, value in values.items() if value is not None}
        found += [(name, rank, said) for rank, said in _differing(name, known, leaders).items()]
    return found


def _differing(name: str, values: Mapping[int, str], leaders: set[int]) -> dict[int, str]:
    """Rank -> its value and that of the others, of one setting."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return {}
    if name.startswith(CONFIG_PREFIX):
        if _OF_RANK.search(name.removeprefix(CONFIG_PREFIX)):
            return {}
        if len({_without_rank(value, rank) for rank, value in values.items()}) == 1:
            return {}
    usual, count = counts.most_common(1)[0]
    if 2 * count > len(values):
        others = {rank: value for rank, value in values.items() if value != usual}
        if name.startswith(CONFIG_PREFIX) and usual in _NOTHING and leaders.issuperset(others):
            return {}
        return {rank: f"{value} on rank {rank}, {usual} on {count} others" for rank, value in others.items()}
    if len(values) == 2:
        (one, mine), (other, theirs) = values.items()
        if name.startswith(SEED_PREFIX) and _is_seed_of_each(mine, theirs):
            return {}
        return {
            one: f"{mine} on rank {one}, {theirs} on rank {other}",
            other: f"{theirs} on rank {other}, {mine} on rank {one}",
        }
    return {}


def _is_seed_of_each(one: str, other: str) -> bool:
    """Whether two ranks with two seeds are as they should be, so far as one can tell.

    A seed for each rank is mostly a common one plus the rank, or so many tens, hundreds ... for each rank, or
    times the rank's number from one; or it is made at random or by a digest, and then long.
    """
    if not (one.isdecimal() and other.isdecimal()):
        return True
    less, more = sorted((int(one), int(other)))
    return more >= DERIVED_SEED or more == 2 * less or re.fullmatch("[12]|10+", str(more - less)) is not None


def _without_rank(value: str, rank: int) -> str:
    """A text without the rank in it, as in 'cuda:1' or 'log-1.txt'; numbers stay as they are."""
    try:
        float(value)
        return value
    except ValueError:
        return re.sub(rf"(?<!\d)0*{rank}(?!\d)", "<rank>", value)
