"""The constructor of SummaryCollector refuses what MindSpore's refuses, with the same classes of errors."""

import pytest

from distsummary.collect.summary_collector import SummaryCollector
from distsummary.errors import InvalidTypeError, InvalidValueError, NotADirectoryPathError

TYPE, VALUE = InvalidTypeError, InvalidValueError
ALWAYS = {"intervals": [[1, 2, 3]]}


def landscape(**keys):
    return {"collect_specified_data": {"collect_landscape": ALWAYS | keys}}


BAD = [  # those that MindSpore refuses too are in tests/mindspore_pages.py
    ({"custom_lineage_data": {"\ud800": 1}}, VALUE),
    ({"config": [1]}, TYPE),
    ({"collect_landscape": True}, TYPE),
    (landscape(size=3), VALUE),
    (landscape(unit="batch"), VALUE),
    ({"deal": "ranks"}, VALUE),
    ({"collectors": "threads"}, VALUE),
    ({"formats": "mindspore"}, TYPE),
    ({"formats": ["csv"]}, VALUE),
    ({"mindspore_compat": 1}, TYPE),
    ({"raise_exception": None}, TYPE),
    ({"topology": 3}, TYPE),
    *[({"summary_dir": value}, VALUE) for value in ("  ", "x" * 300, "x/" * 3000)],
]


@pytest.mark.parametrize(("arguments", "error"), BAD, ids=str)
def test_bad_arguments_are_refused_before_anything_is_made(tmp_path, arguments, error):
    [name] = arguments
    with pytest.raises(error, match="dir" if name == "summary_dir" else None):
        SummaryCollector(**{"summary_dir": tmp_path / "run"} | arguments)
    assert not (tmp_path / "run").exists()


def test_a_file_is_no_run_dir(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryPathError):
        SummaryCollector(str(tmp_path / "file"))
    with pytest.raises(NotADirectoryError):
        SummaryCollector(str(tmp_path / "file" / "below"))


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_process": 0}, {"num_process": "a"}, {"export_options": {}}, {"collect_specified_data": {}},
        {"custom_lineage_data": {"i": 2**40, "s": "", "f": 0.5}}, {"collect_tensor_freq": 1},
        {"max_file_size": 1}, landscape(), landscape(num_samples=-1), landscape(intervals=[]),
        landscape(landscape_size=256, unit="epoch", create_landscape={}), {"collect_landscape": {}},
    ],
    ids=str,
)  # fmt: skip
def test_good_arguments_are_taken_and_the_run_dir_is_made(nasty_tmp_path, arguments):
    collector = SummaryCollector(nasty_tmp_path / "a" / "run", **arguments)
    assert collector.run_dir.base == nasty_tmp_path / "a" / "run"
    assert (nasty_tmp_path / "a" / "run").is_dir()
