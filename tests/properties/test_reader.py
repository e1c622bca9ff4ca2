"""Files that were mutated at random, and one that would fill the memory: reading, checking and repairing."""

import json
import shutil
from pathlib import Path
from random import Random

from distsummary.cli.fsck import fsck
from distsummary.events.reader import Damage, read_file, read_values
from distsummary.format import wire
from distsummary.format.frames import frame, read_frames
from tests.unit.events.test_reader import MINDSPORE, TENSORBOARD, scalar_frames, write

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "ms"
GOLDEN_FILES = sorted(GOLDEN.glob("*/summary/events.out.*"))


def mutated(data: bytes, random: Random) -> bytes:
    """The bytes with one to three of: a flipped byte, a cut, zeros, a doubled or a lost piece."""
    damaged = bytearray(data)
    for _ in range(random.randint(1, 3)):
        place, other = sorted(random.randrange(len(damaged) + 1) for _ in range(2))
        match random.randrange(6):
            case 0:
                del damaged[place:]
            case 1:
                damaged[place:other] = bytes(other - place)
            case 2:
                damaged[place:place] = damaged[place:other]
            case 3:
                del damaged[place:other]
            case _:
                for _ in range(random.randint(1, 8)):
                    if damaged:
                        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
    return bytes(damaged)


def test_skip_reads_any_mutation_and_only_what_was_written(nasty_tmp_path: Path):
    written = {file: [(e.step, e.wall_time) for e in read_file(file)] for file in GOLDEN_FILES}
    for seed in range(200):
        random = Random(seed)
        original = random.choice(GOLDEN_FILES)
        path = nasty_tmp_path / original.name
        path.write_bytes(mutated(original.read_bytes(), random))
        skipped: list[Damage] = []
        found = [(event.step, event.wall_time) for event in read_file(path, "skip", skipped=skipped)]
        assert set(found) <= set(written[original]), f"seed {seed}"
        assert all(0 <= damage.offset < path.stat().st_size for damage in skipped), f"seed {seed}"
        if not skipped:
            assert [(e.step, e.wall_time) for e in read_file(path, "strict")] == found, f"seed {seed}"


def test_any_mutation_is_checked_and_repaired_without_a_crash(nasty_tmp_path: Path):
    for seed in range(200):
        random = Random(seed)
        original = random.choice(GOLDEN_FILES)
        directory = nasty_tmp_path / str(seed)
        directory.mkdir()
        path = directory / original.name
        path.write_bytes(mutated(original.read_bytes(), random))
        before = path.read_bytes()
        whole = [one for one in read_frames(path) if one.damage is None]
        report = fsck(directory, repair=True)
        after = path.read_bytes()
        assert before.startswith(after), f"seed {seed}"
        assert [one for one in read_frames(path) if one.damage is None] == whole, f"seed {seed}"
        assert not any(one.kind == "torn" and one.repairable for one in report.findings), f"seed {seed}"
        json.dumps(report.as_json(), allow_nan=False)
        if before != original.read_bytes() and path.name.endswith("_MS") and report.exit_code == 0:
            list(read_values(path, mode="strict"))
        shutil.rmtree(directory)


def test_an_event_that_would_fill_the_memory_is_damage(nasty_tmp_path: Path):
    bomb = wire.double(1, 1.0) + wire.delimited(5, b"\n\x00" * (wire.MAX_OBJECTS + 1))
    for dialect, name in (("mindspore", MINDSPORE), ("tensorboard", TENSORBOARD)):
        frames = [frame(bomb), *scalar_frames(dialect, range(1, 2))]
        path = write(nasty_tmp_path, name.format(17), frames)
        skipped: list[Damage] = []
        assert [event.seq for event in read_file(path, "skip", skipped=skipped)] == [1]
        assert [damage.offset for damage in skipped] == [0]
        assert "objects" in skipped[0].reason
