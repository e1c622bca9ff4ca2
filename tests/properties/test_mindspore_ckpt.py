"""Checkpoints of MindSpore with a wrong byte."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distsummary.checkpoints.mindspore_ckpt import map_ckpt
from distsummary.errors import DamagedFileError, InvalidValueError
from tests.unit.checkpoints.test_mindspore_ckpt import GOLDEN, ckpt_file


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255), data=st.data())
def test_a_checkpoint_with_one_wrong_byte_is_read_or_refused(position, byte, data, tmp_path):
    content = bytearray(data.draw(st.sampled_from(GOLDEN)).read_bytes())
    content[position % len(content)] = byte
    path = ckpt_file(tmp_path, bytes(content))
    try:
        state = map_ckpt(path).own()
    except (DamagedFileError, InvalidValueError):
        return
    assert sum(array.nbytes for array in state.values()) <= 2 * len(content)
