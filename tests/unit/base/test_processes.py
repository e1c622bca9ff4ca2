"""How old this process is."""

import time

import psutil
import pytest

from distsummary.base.processes import age_s


def test_a_process_is_as_old_as_the_system_says() -> None:
    assert age_s() == pytest.approx(time.time() - psutil.Process().create_time(), abs=1.5)
