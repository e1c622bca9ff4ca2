"""Which calls of optimizers make one step."""

import gc

import pytest

from distsummary.integrations.step_rounds import StepRounds


class Optimizer:
    """Stands for any object; only its identity counts."""


def marked(calls: str, last: str = "") -> str:
    """`calls` with a | where a step ends; a dot is a backward pass, a letter an optimizer.

    In parentheses after a letter are the passes of its closure.
    """
    known = {name: Optimizer() for name in calls if name.isalpha()}
    rounds, shown, inside = StepRounds(), "", ""
    rounds.set_last(known.get(last))
    for call, then in zip(calls, [*calls[1:], ""], strict=True):
        if call == ".":
            rounds.note_backward()
            shown += call
        elif call.isalpha():
            shown += "|" * rounds.begin(known[call]) + call
            inside = call
        if call != "." and call.isalpha() and then == "(":
            continue
        if call == ")" or call.isalpha():
            shown += "|" * rounds.end(known[inside])
    return shown


@pytest.mark.parametrize(
    ("calls", "last", "expected"),
    [
        (".a.a.a", "a", ".a|.a|.a|"),
        (".a.a.a", "", ".a.|a|.a|"),  # it is learned from the second call that one ends a step
        ("...a...a", "a", "...a|...a|"),  # accumulated
        (".d.g.d.g.d.g", "", ".d.g.|d.g|.d.g|"),
        (".ab.ab.ab", "", ".ab.|ab|.ab|"),  # one pass, two optimizers
        (".ab.ab.ab", "a", ".a|b.ab|.ab|"),  # the second optimizer is made later
        (".aaa.aaa.aaa", "a", ".a|aa.a|aa.a|aa"),  # once for each group of parameters
        ("aaa", "a", "a|a|a|"),  # no pass is ever seen
        ("a(..)a(...)a(.)", "a", "a..|a...|a.|"),  # LBFGS
        (".a(.).a(.)", "a", ".a.|.a.|"),  # the last pass of an accumulated step is in the closure
        ("d(.)g(.)d(.)g(.)d(.)g(.)", "", "d.g.|d.g.|d.g.|"),
        (".d.d.g.d.d.g.d", "", ".d.|d|.g.d|.d|.g.d|"),  # unequally often
    ],
)
def test_a_step_ends_with_its_last_optimizer(calls: str, last: str, expected: str) -> None:
    assert marked(calls, last) == expected


def test_an_optimizer_that_is_made_again_for_each_step_ends_its_step_when_it_is_gone() -> None:
    rounds, ended = StepRounds(), []
    for _ in range(3):
        rounds.note_backward()
        optimizer = Optimizer()
        ended.append(rounds.begin(optimizer))
        rounds.end(optimizer)
        del optimizer
        gc.collect()
    assert ended == [False, True, True]
