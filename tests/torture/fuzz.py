"""Hostile event files, read by a child of bounded memory: in time, refused with DamagedFileError or read.

    python -m tests.torture.fuzz CORPUS KEEP --seed 7 --first 0 --count 1000

reads the mutants `first` to `first + count` and prints what is wrong with each as a line of JSON.
"""

import argparse
import contextlib
import json
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from tests.torture.judge import ROOT, Verdict
from tests.torture.mutate import mutate

LARGEST = 60_000  # bytes of a file of the corpus; longer ones are cut
MEMORY = 128 << 20  # bytes that reading may take beside what the interpreter has: the files are small
VERBS = (
    ["fsck"], ["fsck", "--repair"], ["dump"], ["dump", "--full"],
    ["convert", "--to", "tensorboard"], ["convert", "--to", "mindspore"],
)  # fmt: skip
SECONDS = 5.0  # a file of kilobytes that takes longer hangs
AT_A_TIME = 500  # mutants of one child
NAMES = ("events.out.events.summary.1700000000.0.host_MS", "events.out.tfevents.1700000000.host.1.0",
         "events.out.events.summary.1700000000.0.host_lineage")  # fmt: skip


class HangError(BaseException):
    """Reading took too long; no Exception, so that no reader swallows it."""


def fuzz(root: Path, seed: int, seconds: float, count: int | None = None) -> Verdict:
    """Mutants for `seconds`, or `count` of them; what was found is kept in `root`/found."""
    corpus, found = root / "corpus", root / "found"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    collect_corpus(corpus, seed)
    verdict = Verdict()
    kinds: dict[str, list[str]] = defaultdict(list)
    deadline = time.monotonic() + seconds
    while verdict.faults < (count or sys.maxsize) and time.monotonic() < deadline:
        portion = min(AT_A_TIME, (count or sys.maxsize) - verdict.faults)
        for complaint in _child(corpus, found, seed, verdict.faults, portion):
            kinds[complaint.partition(": ")[2]].append(complaint)
        verdict.faults += portion
    for same in kinds.values():  # one is as good as many
        verdict.violations.append(same[0] + f" (and {len(same) - 1} more)" * (len(same) > 1))
    return verdict


def collect_corpus(corpus: Path, seed: int) -> None:
    """The event files of tests/golden, and files of ours with every kind of value."""
    from tests.torture.client import Client

    golden = (ROOT / "tests" / "golden").rglob("events.out.*")
    with tempfile.TemporaryDirectory(prefix="torture-corpus") as place:
        (Path(place) / "events").mkdir()
        Client(Path(place), seed=seed, total=300).run()
        _write_scalars(Path(place) / "scalars", seed)
        ours = sorted(path for path in Path(place).glob("*/events.out.*"))
        for number, path in enumerate([*sorted(golden), *ours]):
            shutil.copy(path, corpus / f"{number:02d}-{path.name}")


def _write_scalars(directory: Path, seed: int) -> None:
    """Stretches of events of scalars alone, which are read in columns."""
    from distsummary.format.records import Batch, Scalars
    from distsummary.format.scalar_rows import row_struct
    from distsummary.writing.spec import WriterSpec
    from distsummary.writing.writer import RankWriter

    generator = random.Random(seed)
    writer = RankWriter(WriterSpec(directory=directory, run_id=f"{seed:016x}"))
    for step in range(0, 600, 50):
        tags = generator.choice((("loss",), ("loss", "lr"), ("a", "b" * 200, "c/d")))
        pack = row_struct(len(tags)).pack
        rows = (pack(1.5 + n, n, *(generator.gauss(0, 1) for _ in tags)) for n in range(step, step + 50))
        batch = Batch(
            run_id=f"{seed:016x}", attempt=0, rank=0, first_seq=writer.last_seq + 1,
            events=[Scalars(tags, b"".join(rows))],
        )  # fmt: skip
        writer.write(batch)
    writer.close()


def _child(corpus: Path, found: Path, seed: int, first: int, count: int) -> list[str]:
    """The complaints of one child; that it died is one, too."""
    command = [sys.executable, "-m", "tests.torture.fuzz", str(corpus), str(found)]
    numbers = ["--seed", str(seed), "--first", str(first), "--count", str(count)]
    done = subprocess.run([*command, *numbers], cwd=ROOT, capture_output=True, text=True, check=False)
    complaints = [json.loads(line)["complaint"] for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0:
        current = (found / "current").read_text() if (found / "current").exists() else "at its start"
        complaints.append(
            f"the reader died with {done.returncode} at {current}: {done.stderr.strip()[-300:]}"
        )
    return complaints


def read_everything(directory: Path, name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every way to read the file `name` of `directory`, by a word for it."""
    from distsummary import cli
    from distsummary.reading import reader

    path = directory / name
    for mode in reader.MODES:
        yield f"read_file {mode}", partial(_exhaust, reader.read_file, path, mode)
    yield "follow", partial(_follow, path)
    for dialect in ("mindspore", "tensorboard"):
        yield (
            f"read_directory {dialect}",
            partial(_exhaust, reader.read_directory, directory, dialect, "skip"),
        )
        yield f"read_values {dialect}", partial(_compare, directory, dialect)
        yield f"read_last_seq {dialect}", partial(reader.read_last_seq, directory, dialect, "0" * 16, 0)
    yield "read_lineage", partial(reader.read_lineage, directory)
    for words in VERBS:
        if words[0] in cli.VERBS:
            yield " ".join(words), partial(cli.main, [words[0], str(directory), *words[1:]])


def _exhaust(read: Callable[..., Iterator[Any]], *arguments: Any) -> None:
    for event in read(*arguments):
        for value in event.values:
            if not isinstance(value.tag, str):
                raise TypeError(f"a tag is {type(value.tag).__name__}")


def _compare(directory: Path, dialect: str) -> None:
    """Values one by one are those of the events, whichever way the reader takes to them."""
    from distsummary.reading import reader

    of_events = [
        (event.attempt, event.seq, event.step, event.wall_time, value.tag, _told(value.data))
        for event in reader.read_directory(directory, dialect, "skip")
        for value in event.values
    ]
    found = [(*value[:5], _told(value.value)) for value in reader.read_values(directory, dialect, "skip")]
    if repr(found) != repr(of_events):  # in words NaN is itself
        raise AssertionError("the values are not those of the events")


def _told(data: Any) -> Any:
    return data if isinstance(data, float) else type(data).__name__


def _follow(path: Path) -> None:
    """A run that is followed while the file grows holds in the end what the whole file does."""
    from distsummary import open_run

    data = path.read_bytes()
    following = open_run(path.parent, index=False)
    for end in (len(data) // 3, 2 * len(data) // 3, len(data)):
        path.write_bytes(data[:end])
        found = following.scalars()
    whole = open_run(path.parent, index=False).scalars()
    if [list(map(repr, found[name])) for name in found.columns] != [
        list(map(repr, whole[name])) for name in whole.columns
    ]:
        raise AssertionError("following gives what the whole file does not")


def complaint_of(call: Callable[[], Any]) -> str | None:
    """What is wrong with a way of reading hostile bytes: all but an end or a DamagedFileError, in time."""
    from distsummary.errors import DamagedFileError

    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            call()
    except DamagedFileError:
        return None
    except HangError:
        return f"takes more than {SECONDS:g} s"
    except BaseException as error:  # a finding like any other
        return f"raises {type(error).__name__}: {str(error)[:200]}"
    return None


def _hang(signum: int, frame: FrameType | None) -> None:
    raise HangError


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def mutant(corpus: list[Path], seed: int, number: int) -> tuple[str, bytes]:
    """Mutant `number` of a seed: its file name, which tells the dialect, and its bytes."""
    generator = random.Random(seed * 1_000_003 + number)
    source, other = generator.choice(corpus), generator.choice(corpus)
    name = generator.choice(NAMES) if generator.random() < 0.1 else source.name.partition("-")[2]
    return name, mutate(source.read_bytes()[:LARGEST], other.read_bytes()[:LARGEST], generator)


def read_mutants(corpus: Path, found: Path, seed: int, first: int, count: int) -> None:
    """Read the mutants in every way; a complaint is printed, and its file kept."""
    logging.getLogger("distsummary").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _hang)
    sources = sorted(corpus.iterdir())
    with tempfile.TemporaryDirectory(prefix="torture-fuzz") as place:
        directory = Path(place) / "run"
        directory.mkdir()
        list(read_everything(directory, "warm"))  # imports, before memory is bounded
        _bound_memory()
        for number in range(first, first + count):
            name, data = mutant(sources, seed, number)
            for way in range(len(list(read_everything(directory, name)))):
                shutil.rmtree(directory)  # the one before may have repaired it
                directory.mkdir()
                (directory / name).write_bytes(data)
                what, call = list(read_everything(directory, name))[way]
                (found / "current").write_text(f"mutant {number} of seed {seed}, {what}")
                signal.setitimer(signal.ITIMER_REAL, SECONDS)
                complaint = complaint_of(call)
                signal.setitimer(signal.ITIMER_REAL, 0)
                if complaint is not None:
                    (found / f"{seed}-{number}-{name}").write_bytes(data)
                    print(json.dumps({"complaint": f"mutant {number} of seed {seed}: {what} {complaint}"}))


def main() -> int:
    """The child."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("found", type=Path)
    for name in ("seed", "first", "count"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    read_mutants(options.corpus, options.found, options.seed, options.first, options.count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
