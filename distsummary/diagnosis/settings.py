"""different_settings: finds ranks whose settings, seeds or versions are not those of the others."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from distsummary.diagnosis.sentence import named_ranks
from distsummary.diagnosis.verdict import CONFIG, Verdict
from distsummary.rundir.rank_facts import RankFacts

Settings = Mapping[str, str | None]  # what a rank reports, by name; None or absent: not known

CONFIG_PREFIX = "config "  # of the names of the user's own settings
ENVIRONMENT_PREFIX = "environment "
SEED_PREFIX = "seed "
LOCAL_RANK = "local rank"  # among the settings, but not compared: the first rank of a host may do more
HOST = "host"  # not compared either: where it is
ABSENT = "absent"
NAMED = 3  # settings in a message
DERIVED_SEED = 10**8  # hardly anybody chooses a larger one by hand, and a date has eight digits
# Words in the names of the user's settings that say that each rank has a value of its own.
_OF_RANK = re.compile(
    r"(?<![a-z])(rank|ranks|device|devices|gpu|gpus|cuda|host|hostname|node|port|pid|worker|master|main|is_main"
    r"|primary|verbose|quiet)(?![a-z])",
    re.IGNORECASE,
)
_OF_GROUP = re.compile(
    r"(?<![a-z])(stage|stages|pipeline|group|role|shard|split|pp|tp|dp|ep)(?![a-z])", re.IGNORECASE
)
_NOTHING = ("None", "False", "''", "", "0", "[]", "{}", ABSENT)


def different_settings(facts: Mapping[int, RankFacts], first_step: int) -> list[Verdict]:
    """One verdict for the ranks whose settings differ in the same way, by rising ranks; see `differences`.

    `first_step`: the step of the verdicts.
    """
    found: dict[int, dict[str, str]] = defaultdict(dict)
    for name, rank, reason in differences(facts):
        found[rank][name] = reason
    # If all ranks are named, as of two that differ, the value distinguishes none: one verdict names all.
    both = (
        {name for name in found[min(found)] if all(name in found.get(rank, ()) for rank in facts)}
        if found
        else set()
    )
    alike: dict[object, list[int]] = defaultdict(list)  # ranks that differ in the same way
    for rank, reasons in sorted(found.items()):
        alike[
            tuple((name, None if name in both else facts[rank].settings.get(name)) for name in reasons)
        ].append(rank)
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
        facts: rank -> what it reported of itself.
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
    that differ, both are, unless their seeds look as if each rank were meant to have its own. If one half of
    the hosts has one value and the other half another one, all are. Otherwise no rank is named without a
    majority, as with a seed for each rank.

    What only the first rank of a node has set is left out: it may do more than others, such as writing a log.

    Args:
        facts: rank -> what it reported of itself.
    """
    reported: dict[int, Settings] = {
        rank: {name: value for name, value in of_rank.settings.items() if name not in (LOCAL_RANK, HOST)}
        for rank, of_rank in facts.items()
    }
    leaders = {0, *(rank for rank, of_rank in facts.items() if of_rank.settings.get(LOCAL_RANK) == "0")}
    found = []
    for name in sorted(set[str]().union(*reported.values())):
        values = {rank: settings.get(name) for rank, settings in reported.items()}
        # A user's setting that only some ranks have differs; other facts are unknown where they are absent.
        if name.startswith((CONFIG_PREFIX, ENVIRONMENT_PREFIX)):
            values = {rank: ABSENT if value is None else value for rank, value in values.items()}
        known = {rank: value for rank, value in values.items() if value is not None}
        found += [(name, rank, said) for rank, said in _differing(name, known, leaders).items()]
        if len(known) == len(facts) and (halves := _halves(name, known, facts)):
            found += [(name, rank, halves) for rank in known]
    return found


def _differing(name: str, values: Mapping[int, str], leaders: set[int]) -> dict[int, str]:
    """Rank -> its value and that of the others, of one setting."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return {}
    # A setting that is called after ranks or hosts, or whose value holds the rank, differs by design.
    if name.startswith(CONFIG_PREFIX):
        if _OF_RANK.search(name.removeprefix(CONFIG_PREFIX)):
            return {}
        if len({_without_rank(value, rank) for rank, value in values.items()}) == 1:
            return {}
    usual, count = counts.most_common(1)[0]
    if 2 * count > len(values):
        others = {rank: value for rank, value in values.items() if value != usual}
        # What only the first ranks of the hosts have set, and others leave empty, is meant for them.
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


def _halves(name: str, values: Mapping[int, str], facts: Mapping[int, RankFacts]) -> str:
    """The two values of a setting that two sets of hosts have, of as many ranks each; empty if it is not so.

    Seeds may differ by design, and the settings of groups of ranks, such as those of a pipeline's stage.
    """
    sides: dict[str, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        sides[value].append(rank)
    hosts = [{facts[rank].settings.get(HOST) for rank in side} for side in sides.values()]
    if len(sides) != 2 or len(values) < 4 or len({*map(len, sides.values())}) != 1:
        return ""
    if None in hosts[0] | hosts[1] or hosts[0] & hosts[1]:
        return ""
    # A value that holds the name of its host differs by design, as seeds do.
    is_of_host = any(str(host) in value for value, its in zip(sides, hosts, strict=True) for host in its)
    if is_of_host or name.startswith(SEED_PREFIX):
        return ""
    if name.startswith((CONFIG_PREFIX, ENVIRONMENT_PREFIX)) and (
        _OF_GROUP.search(name) or _OF_RANK.search(name)
    ):
        return ""
    return ", ".join(
        f"{value} on {', '.join(sorted(map(str, its)))} ({named_ranks(side)})"
        for (value, side), its in zip(sides.items(), hosts, strict=True)
    )


def _is_seed_of_each(one: str, other: str) -> bool:
    """Whether two ranks with two seeds are as they should be, as far as the seeds show.

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
