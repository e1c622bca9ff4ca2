"""The lines of a start that takes long."""

import re
import threading

from distsummary.launching.stages import Stages
from tests.patience import PATIENCE_S


def test_a_quick_start_says_nothing(capsys):
    with Stages((60.0,)) as stages:
        stages.begin("starting Ray")
        stages.begin("placing")
        stages.done("the training begins")
    assert capsys.readouterr().err == ""
    assert not [one for one in threading.enumerate() if one.name == "distsummary-stages"]


def test_a_slow_stage_is_reported_and_then_the_end(capsys):
    was_reported = threading.Event()
    with Stages((0.0, 60.0)) as stages:
        real = stages._report

        def report(what, ended):
            original = ended.wait

            def wait(timeout):
                if timeout > 1:
                    was_reported.set()
                return original(timeout)

            ended.wait = wait
            real(what, ended)

        stages._report = report
        stages.begin("starting Ray")
        assert was_reported.wait(PATIENCE_S)
        stages.done("the training begins")
    first, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"distsummary: starting Ray \(\d+ s\)", first)
    assert re.fullmatch(r"distsummary: the training begins \(\d+ s after the start\)", last)
