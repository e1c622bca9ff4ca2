"""Old bulk values make room for new ones; nothing else changes, and whoever follows the files takes it."""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import distsummary as ds
from distsummary.base.publish import TEMPORARY
from distsummary.cli.main import main
from distsummary.errors import DamagedFileError
from distsummary.events.files import Files
from distsummary.events.rank_stream import RankStream
from distsummary.events.reader import events_of, read_directory, read_file
from distsummary.events.recorded import Recorded
from distsummary.events.retention import removed_below
from distsummary.events.segments import segments
from distsummary.format.frames import Part
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.status import read_status
from distsummary.view.page import page
from tests.bounded_files import (
    KEEP,
    RUN,
    STEPS,
    bulk_bytes,
    bulk_steps,
    events,
    histogram,
    kept,
    write,
    writer,
)


@pytest.mark.parametrize("formats", [DIALECTS, (MINDSPORE,), (TENSORBOARD,)])
def test_the_oldest_bulk_values_are_removed_and_all_else_stays(formats, tmp_path):
    whole, bounded = tmp_path / "whole", tmp_path / "bounded"
    for directory, keep in ((whole, None), (bounded, KEEP)):
        target = writer(directory, keep=keep, formats=formats)
        write(target, events())
        target.close()
    for dialect in formats:
        before, after = ([*read_directory(place, dialect)] for place in (whole, bounded))
        assert kept(after) == kept(before)
        steps = bulk_steps(bounded, dialect)
        assert steps == [*range(steps[0], STEPS + 1)]
        assert 1 < steps[0] < STEPS
    assert KEEP // 2 < bulk_bytes(bounded) <= KEEP
    removed = target.health().removed
    assert removed == removed_below(path for one in formats for path in segments(bounded, one))
    assert removed.step + 1 == min(min(bulk_steps(bounded, dialect)) for dialect in formats)
    # In TensorBoard's dialect, a tensor has no place.
    assert removed.values == removed.step * (5 if MINDSPORE in formats else 4)
    assert removed.nbytes + bulk_bytes(bounded) == bulk_bytes(whole)


def test_a_stream_that_is_behind_reads_each_event_once(tmp_path):
    stream, target, read = RankStream(tmp_path, (RUN, 0)), writer(tmp_path), []

    def follow(most: int) -> None:
        read.extend(one for file, piece in stream.read(most) for one in events_of(piece, file))

    found = events()
    for at in range(0, len(found), 8):
        write(target, found[: at + 8])
        # Slower than the writer: what is removed was read in part, or not at all.
        follow(3)
    target.close()
    while not stream.is_at_end:
        follow(50)
    assert sorted(one.seq for one in read) == [*range(1, len(found) + 1)]
    assert sorted(kept(read)) == sorted(kept(read_directory(tmp_path, MINDSPORE)))
    assert not stream.damage


def test_a_reader_that_is_open_finds_what_stayed(tmp_path):
    target, recorded = writer(tmp_path), Recorded(tmp_path)
    write(target, events()[:40])
    recorded.refresh()
    old = recorded.places("histogram", "weight", {})
    write(target, events())
    target.close()
    with pytest.raises(DamagedFileError, match="open the run again"):
        old[0].read()
    recorded.refresh()
    places = recorded.places("histogram", "weight", {})
    assert [place.step for place in places] == bulk_steps(tmp_path)
    assert [place.read().data.count for place in places] == [histogram(place.step).count for place in places]
    assert recorded.scalars("loss", {}).steps.tolist() == [*range(1, STEPS + 1)]
    assert not recorded.damage


@pytest.mark.parametrize("damage", [b"\xff" * 40, b""])
def test_of_a_file_that_cannot_be_read_all_is_left_as_it_is(damage, tmp_path):
    target = writer(tmp_path, formats=(MINDSPORE,))
    write(target, events()[:12])
    oldest = segments(tmp_path, MINDSPORE)[0]
    data = oldest.read_bytes()
    oldest.write_bytes(data[:2000] + damage + data[2000 + len(damage) :] if damage else data[:-3])
    before = oldest.read_bytes()
    write(target, events())
    target.close()
    assert oldest.read_bytes() == before
    assert any("stay in it" in reason for reason in target.health().errors)
    assert target.health().removed.values


def test_a_full_disk_delays_it(tmp_path):
    class Full(Files):
        is_full = True

        def create(self, path: Path) -> int:
            if self.is_full and path.name.startswith(TEMPORARY):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().create(path)

        def now(self) -> float:
            return super().now() + (0 if self.is_full else 60)

    target = writer(tmp_path, files := Full())
    write(target, events()[:80])
    assert not target.health().removed.values
    assert any("no bulk values are removed now" in reason for reason in target.health().errors)
    files.is_full = False
    write(target, events())
    target.close()
    assert target.health().removed.values
    assert bulk_bytes(tmp_path) <= KEEP


def test_the_next_writer_continues_the_count(tmp_path):
    found = events()
    for end in (60, len(found)):
        target = writer(tmp_path)
        write(target, found[:end])
        target.close()
    assert bulk_bytes(tmp_path) <= KEEP
    first = bulk_steps(tmp_path)[0]
    assert target.health().removed[::2] == (5 * (first - 1), first - 1)


def test_a_training_keeps_its_newest_bulk_values_and_exports(tmp_path):
    record = ds.Record(keep_bytes=16 << 20, export_npy=True, collectors="process")
    with ds.init(tmp_path / "run", record=record, system_metrics=False) as run:
        for step in run.steps(range(100)):
            run.log(loss=step / 3)
            run.tensor("taken", np.full(1 << 17, step, np.float32))
    health, found = run.health(), ds.open_run(tmp_path / "run")
    kept_steps = found.tensors("taken")["step"].tolist()
    assert kept_steps == [*range(kept_steps[0], 101)]
    assert 20 < len(kept_steps) <= 32
    assert len(found.scalars("loss")) == 100
    exported = [*tmp_path.glob("run/export_*/tensor/*.npy")]
    assert sum(path.stat().st_size for path in exported) <= 16 << 20 < (len(exported) + 1) * 530_000
    # Of the event files, and of the exports.
    assert health.removed.values == kept_steps[0] - 1 + 100 - len(exported)
    assert health.removed.step == max(kept_steps[0] - 1, 100 - len(exported))
    status = read_status(tmp_path / "run")
    assert status.removed[::2] == (kept_steps[0] - 1, kept_steps[0] - 1)
    assert RunDir(tmp_path / "run").read_manifest()["keep_bytes"] == 16 << 20
    assert status.is_healthy
    assert main(["fsck", str(tmp_path / "run")]) == 0
    assert f"bulk values up to step {kept_steps[0] - 1} (" in page(found)["overview"]["removed"]


class Dying(Files):
    """Is killed before operation number `at` that changes something on the disk; 0: never."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.done = at, 0
        self.opened = set[int]()
        self.replacements: list[int] = []  # the operations that each began with

    def _step(self) -> None:
        self.done += 1
        if self.done == self.at:
            raise KeyboardInterrupt  # not an OSError: nothing is taken back, as after SIGKILL

    def create(self, path: Path) -> int:
        self._step()
        if path.name.startswith(TEMPORARY):
            self.replacements.append(self.done)
        self.opened.add(found := super().create(path))
        return found

    def open_dead(self, path: Path) -> int | None:
        if (found := super().open_dead(path)) is not None:
            self.opened.add(found)
        return found

    def write(self, descriptor: int, parts: Sequence[Part]) -> int:
        self._step()
        return super().write(descriptor, parts)

    def sync(self, descriptor: int) -> None:
        self._step()

    def close(self, descriptor: int) -> None:
        self.opened.discard(descriptor)
        super().close(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        self._step()
        source.replace(target)
        self._step()

    def end_process(self) -> None:
        """What the kernel does for a killed process."""
        for descriptor in self.opened:
            with suppress(OSError):
                os.close(descriptor)


def test_a_kill_at_any_operation_loses_and_doubles_nothing(tmp_path):
    found = events()
    whole, counted = writer(tmp_path / "whole", keep=None), Dying()
    bounded = writer(tmp_path / "bounded", counted)
    for target in (whole, bounded):
        write(target, found)
        target.close()
    expected = {dialect: kept(read_directory(tmp_path / "whole", dialect)) for dialect in DIALECTS}
    # All operations that replace the first file of either dialect, and some after them.
    first, _, last = counted.replacements[:3]
    assert last - first > 10
    for at in range(first, last + 1):
        directory, files = tmp_path / str(at), Dying(at)
        with pytest.raises(KeyboardInterrupt):
            write(writer(directory, files), found)
        files.end_process()
        for dialect in DIALECTS:
            there = kept(read_directory(directory, dialect))
            assert there == expected[dialect][: len(there)]
            # No event is in two files.
            seqs = [one.seq for path in segments(directory, dialect) for one in read_file(path) if one.seq]
            assert len(seqs) == len({*seqs})
        target = writer(directory)
        write(target, found)
        target.close()
        assert {dialect: kept(read_directory(directory, dialect)) for dialect in DIALECTS} == expected
        assert 0 < bulk_bytes(directory) <= KEEP
        # A process that was killed removes nothing: this one still lives, so its temporary file stays.
        assert len([one for one in directory.iterdir() if one.name.startswith(TEMPORARY)]) <= 1
