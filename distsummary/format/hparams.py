"""Values for TensorBoard's page HPARAMS: the settings of a training and how it ended.

TensorBoard finds the names of all settings, and the last values of all scalars, by itself. A description of
the whole experiment is not written: TensorBoard would use the description found in one run, and hide settings
that only other runs have.
"""

from collections.abc import Mapping

from distsummary.format.pb.tensorboard_hparams_pb2 import STATUS_FAILURE, STATUS_SUCCESS, HParamsPluginData
from distsummary.format.records import HPARAMS, Value

START_TAG = "_hparams_/session_start_info"
END_TAG = "_hparams_/session_end_info"


def session_start(settings: Mapping[str, str | float], started_s: float) -> Value:
    """The settings of a training that began at `started_s` (seconds since the epoch)."""
    data = HParamsPluginData()
    data.session_start_info.start_time_secs = started_s
    for name, value in settings.items():
        if isinstance(value, str):
            data.session_start_info.hparams[name].string_value = value
        else:
            data.session_start_info.hparams[name].number_value = value
    return Value(HPARAMS, START_TAG, data)


def session_end(ended_s: float, *, is_success: bool) -> Value:
    """How a training ended, and when: at `ended_s` (seconds since the epoch)."""
    data = HParamsPluginData()
    data.session_end_info.status = STATUS_SUCCESS if is_success else STATUS_FAILURE
    data.session_end_info.end_time_secs = ended_s
    return Value(HPARAMS, END_TAG, data)
