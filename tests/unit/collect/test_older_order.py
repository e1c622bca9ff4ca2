"""Scripts of older versions of MindSpore pass arguments by position, in an order without num_process."""

import pytest

from distsummary.collect.older_order import is_older_record, without_num_process
from distsummary.collect.record import SummaryRecord
from distsummary.collect.summary_collector import SummaryCollector
from distsummary.errors import InvalidTypeError
from distsummary.events.reader import read_directory
from tests.refusals import refused
from tests.unit.collect.doubles import ListWriter, Model, train

SAID = "in the order of older versions of MindSpore, without num_process"


def tags(directory):
    return {value.tag for event in read_directory(directory) for value in event.values}


@pytest.mark.parametrize(
    "arguments",
    [
        ({"histogram_regular": "layer1"}, False),
        ({"histogram_regular": "layer1"}, False, None, None, None, {"tensor_format": "npy"}),
    ],
)
def test_a_collector_takes_the_older_order_and_says_so(tmp_path, caplog, arguments):
    train(SummaryCollector(str(tmp_path), 2, *arguments))
    assert SAID in caplog.text
    assert {tag for tag in tags(tmp_path) if tag.endswith("/auto")} == {"layer1.weight/auto"}


def test_nothing_specified_in_the_older_order(tmp_path, caplog):
    train(SummaryCollector(str(tmp_path), 2, None, False))
    assert SAID in caplog.text
    assert not {tag for tag in tags(tmp_path) if tag.endswith("/auto")}


@pytest.mark.parametrize(
    "arguments",
    [
        (), (2,), (2, 32), (2, 1, {"collect_metric": False}), (2, None), (2, None, {"collect_metric": True}),
        (2, 8, None, False), (2, "many"), (2, None, None, True),
    ],
    ids=str,
)  # fmt: skip
def test_a_collector_takes_the_newer_order_silently(tmp_path, caplog, arguments):
    SummaryCollector(str(tmp_path), *arguments)
    assert SAID not in caplog.text


class Constructed:
    @without_num_process(4, is_older_record)
    def __init__(
        self, log_dir, file_prefix="events", file_suffix="_MS", num_process=32, network=None,
        max_file_size=None, raise_exception=False, export_options=None,
    ):  # fmt: skip
        self.given = [num_process, network, max_file_size, raise_exception, export_options]


NETWORK = Model()


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ((NETWORK,), [32, NETWORK, None, False, None]), ((NETWORK, 600), [32, NETWORK, 600, False, None]),
        ((None, 600), [32, None, 600, False, None]), ((None, 600, True), [32, None, 600, True, None]),
        ((None, None, True), [32, None, None, True, None]),
        ((None, None, True, {}), [32, None, None, True, {}]), ((8,), [8, None, None, False, None]),
        ((8, NETWORK, 600), [8, NETWORK, 600, False, None]),
        ((8, None, 600, True), [8, None, 600, True, None]),
        ((None, NETWORK), [None, NETWORK, None, False, None]),
        ((None, None, 600), [None, None, 600, False, None]),
        ((None, None, None, True), [None, None, None, True, None]),
        ((None,), [None, None, None, False, None]),
    ],
)  # fmt: skip
def test_the_arguments_of_a_record_are_distinguished_by_their_types(caplog, arguments, meant):
    assert Constructed("dir", "events", "_MS", *arguments).given == meant
    assert (SAID in caplog.text) == (len(arguments) > 0 and meant[0] == 32)


def test_a_record_in_the_older_order_is_limited(tmp_path, caplog):
    with SummaryRecord(str(tmp_path), "events", "_MS", None, 600) as record:
        for step in range(100):
            record.add_value("scalar", "loss", float(step))
            record.record(step)
        record.flush()
    assert SAID in caplog.text
    assert all(path.stat().st_size <= 600 for path in tmp_path.glob("events.*"))
    assert record.health().dropped["scalar"]


def test_what_is_no_network_or_name_is_refused(tmp_path):
    record, wrong = SummaryRecord(tmp_path, writer=ListWriter()), "network must be a network or None, got "
    text = "the name of a scalar must be text that is not empty, got"
    refused(
        InvalidTypeError,
        (lambda: record.record(1, "x"), f"train_{wrong}"),
        (lambda: record.record(1, True), f"train_{wrong}"),
        (lambda: record.record(1, [NETWORK]), f"train_{wrong}"),
        (lambda: SummaryRecord(tmp_path, network={"net": NETWORK}), wrong),
    )
    for error in (TypeError, ValueError):  # MindSpore documents the first and raises the second
        refused(error, (lambda: record.add_value("scalar", 3, 1.0), text))
    assert record.record(1, NETWORK)
    record.close()
