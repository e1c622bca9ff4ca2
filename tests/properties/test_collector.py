"""The recorded steps of trainings of up to a thousand steps."""

import pytest

from tests.unit.collect.conftest import writers
from tests.unit.collect.test_collector import GOLDEN, record_the_steps_of, total_steps

__all__ = ["writers"]  # a fixture


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("case", [c for c in GOLDEN if 21 < c["total_steps"] <= 1001], ids=total_steps)
def test_the_recorded_steps_are_mindspores(tmp_path, writers, case, compat):
    record_the_steps_of(case, tmp_path, writers, compat)
