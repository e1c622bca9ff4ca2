"""Hostile files, read by a child of bounded memory: in time, refused with an error of ours, or read.

    python -m tests.torture.fuzz CORPUS KEEP --kind events --seed 7 --first 0 --count 1000 --seconds 60

reads the mutants `first` to `first + count` and prints what is wrong with each as a line of JSON, then how
many it read. The kinds: event files, and those of `small_files`.
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
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from tests.torture.judge import ROOT, Verdict
from tests.torture.mutate import mutate
from tests.torture.small_files import CHANGING, KINDS, lay_out, write_base
from tests.torture.small_files import mutant as small_mutant

EVENTS = "events"
LARGEST = 60_000  # bytes of a file of the corpus; longer ones are cut
MEMORY = 128 << 20  # bytes that reading may take in addition to the interpreter's: the files are small
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


def fuzz(root: Path, seed: int, seconds: float, count: int | None = None, only: str = "") -> Verdict:
    """Mutants of each kind for `seconds`, or `count` of each; what was found is kept in `root`/found."""
    verdict = Verdict()
    for kind in only.split(",") if only else (EVENTS, *KINDS):
        corpus, found = root / kind / "corpus", root / kind / "found"
        corpus.mkdir(parents=True, exist_ok=True)
        found.mkdir(exist_ok=True)
        (collect_corpus if kind == EVENTS else write_base)(corpus, seed)
        same: dict[str, list[str]] = defaultdict(list)
        done, most, deadline = 0, count or sys.maxsize, time.monotonic() + seconds
        while done < most and (left := deadline - time.monotonic()) > 0:
            portion = min(AT_A_TIME, most - done)
            number, complaints = _child(corpus, found, kind, seed, done, portion, left)
            done += number
            for complaint in complaints:
                same[complaint.partition(": ")[2]].append(f"{kind}: {complaint}")
        print(f"fuzz of {kind}: {done} files of seed {seed}, {len(same)} kinds of complaints", flush=True)
        verdict.faults += done
        for first, *others in same.values():  # one is as good as many
            verdict.violations.append(first + f" (and {len(others)} more)" * bool(others))
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
    from distsummary.events.spec import WriterSpec
    from distsummary.events.writer import RankWriter
    from distsummary.format.records import Batch, Scalars
    from distsummary.format.scalar_rows import row_struct

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


def _child(
    corpus: Path, found: Path, kind: str, seed: int, first: int, count: int, seconds: float
) -> tuple[int, list[str]]:
    """How many mutants a child read, and its complaints; that it died is one, too."""
    command = [sys.executable, "-m", "tests.torture.fuzz", str(corpus), str(found), "--kind", kind]
    numbers = ["--seed", str(seed), "--first", str(first), "--count", str(count), "--seconds", str(seconds)]
    done = subprocess.run([*command, *numbers], cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    complaints = [line["complaint"] for line in lines if "complaint" in line]
    if done.returncode == 0:
        return lines[-1]["read"], complaints
    current = (found / "current").read_text() if (found / "current").exists() else "mutant ? at its start"
    text = f"{current}: the reader died with {done.returncode}: {done.stderr.strip()[-300:]}"
    return count, [*complaints, text]


def read_everything(directory: Path, name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every way to read the file `name` of `directory`, by a word for it."""
    from distsummary.cli import main as cli
    from distsummary.events import reader

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
    from distsummary.events import reader

    of_events = [
        (event.attempt, event.seq, event.step, event.wall_time, value.tag, _reported(value.data))
        for event in reader.read_directory(directory, dialect, "skip")
        for value in event.values
    ]
    found = [(*value[:5], _reported(value.value)) for value in reader.read_values(directory, dialect, "skip")]
    if repr(found) != repr(of_events):  # in words NaN is itself
        raise AssertionError("the values are not those of the events")


def _reported(data: Any) -> Any:
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


def complaint_of(call: Callable[[], Any], *refusals: type[Exception]) -> str | None:
    """What is wrong with a way of reading hostile bytes: all but an end or a refusal, in time."""
    from distsummary.errors import DamagedFileError

    try:
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            call()
    except (DamagedFileError, *refusals):
        return None
    except HangError:
        return "takes too long"
    except BaseException as error:  # a finding like any other
        at = [one for one in traceback.extract_tb(error.__traceback__) if "/distsummary/" in one.filename]
        place = f" at {Path(at[-1].filename).name}:{at[-1].lineno}" if at else ""
        return f"raises {type(error).__name__}{place}: {str(error)[:200]}"
    return None


def _hang(signum: int, frame: FrameType | None) -> None:
    raise HangError


def _bound_memory(most: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + most
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def mutant(corpus: list[Path], seed: int, number: int) -> tuple[str, bytes]:
    """Mutant `number` of a seed: its file name, which shows the dialect, and its bytes."""
    generator = random.Random(seed * 1_000_003 + number)
    source, other = generator.choice(corpus), generator.choice(corpus)
    name = generator.choice(NAMES) if generator.random() < 0.1 else source.name.partition("-")[2]
    return name, mutate(source.read_bytes()[:LARGEST], other.read_bytes()[:LARGEST], generator)


def read_mutants(corpus: Path, found: Path, options: argparse.Namespace) -> int:
    """Read the mutants in every way; complaints are printed, and their files kept. Returns their number."""
    from distsummary.errors import DistSummaryError

    logging.getLogger("distsummary").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _hang)
    deadline = time.monotonic() + options.seconds
    kind, sources = KINDS.get(options.kind), sorted(corpus.iterdir())
    ways = read_everything if kind is None else kind.ways
    refusals = () if kind is None else (DistSummaryError,)
    most_s = SECONDS if kind is None else 3 * SECONDS
    with tempfile.TemporaryDirectory(prefix="torture-fuzz") as place:
        directory = Path(place) / "run"

        def lay_out_again() -> None:  # the way before may have repaired it
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir() if kind is None else lay_out(corpus, directory)

        def read(name: str, data: bytes, number: int) -> None:
            is_changed = True
            for way in range(len(list(ways(directory, name)))):
                if is_changed:
                    lay_out_again()
                (directory / name).write_bytes(data)
                what, call = list(ways(directory, name))[way]
                is_changed = kind is None or what in CHANGING
                (found / "current").write_text(f"mutant {number} of seed {options.seed}, {what}")
                signal.setitimer(signal.ITIMER_REAL, most_s)
                complaint = complaint_of(call, *refusals)
                signal.setitimer(signal.ITIMER_REAL, 0)
                if complaint is not None:
                    kept = f"{options.seed}-{number}-{name.replace('/', '_')}"
                    (found / kept).write_bytes(data)
                    text = f"mutant {number} of seed {options.seed}: {what} {complaint}"
                    print(json.dumps({"complaint": text}))

        lay_out_again()
        if kind is None:
            list(ways(directory, "warm"))  # imports, before memory is bounded
        else:
            for path in sorted({*kind.patterns}):
                for file in sorted((corpus / "base").glob(path)):  # they can be read as they are
                    read(str(file.relative_to(corpus / "base")), file.read_bytes(), -1)
        _bound_memory(MEMORY if kind is None else 8 * MEMORY)
        for number in range(options.first, options.first + options.count):
            if time.monotonic() > deadline:
                return number - options.first
            if kind is None:
                name, data = mutant(sources, options.seed, number)
            else:
                name, data = small_mutant(corpus, kind, random.Random(options.seed * 1_000_003 + number))
            read(name, data, number)
    return int(options.count)


def main() -> int:
    """The child."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("found", type=Path)
    parser.add_argument("--kind", default=EVENTS, choices=(EVENTS, *KINDS))
    for name in ("seed", "first", "count"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    print(json.dumps({"read": read_mutants(options.corpus, options.found, options)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
