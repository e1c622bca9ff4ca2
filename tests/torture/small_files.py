"""Hostile files next to the event files: how each kind of them is made, changed and read.

A corpus holds in `base` a run with files of every kind, and a healthy run in `healthy`.
"""

import io
import json
import random
import re
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c

from tests.torture.mutate import framed, mutate
from tests.torture.reader import records

KEY = b"0123456789abcdef"
PLAN = {"model": "0" * 16, "data": "1" * 16}
BAD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**53, 2**63, 10**30, -(10**30), 1.5, 1e308, float("inf"),
    float("-inf"), float("nan"), "", "0", "x", "NaN", "\ud800", "\0", "../../x", "/etc", "A" * 100_000,
    [], {}, [1], {"a": 1}, [[]],
)  # fmt: skip
IN_TEXT = (b"-1", b"1e999", b"9" * 20, b"[" * 50_000, b"null", b'"x"', b"{}", b"true", b"4611686018427387904")
HEAD = struct.Struct("<8sII")  # of an index

CHANGING = ("merge", "fsck --repair")  # ways that change other files than the one

Call = Callable[[], Any]
Change = Callable[[bytes, random.Random], bytes]


class SmallFiles(NamedTuple):
    """One kind: which files of the base are changed, how, and how the run in a directory is read then."""

    patterns: tuple[str, ...]
    change: Change
    ways: Callable[[Path, str], Iterator[tuple[str, Call]]]


def write_base(corpus: Path, seed: int) -> None:
    """A run of two ranks with everything that lies next to event files, and a healthy one."""
    import numpy as np

    import distsummary as ds
    from distsummary.checkpoints.landscape_spec import LandscapeSpec
    from distsummary.checkpoints.metadata import CheckpointFile, TrainMetadata
    from distsummary.checkpoints.model_file import write_model
    from distsummary.checkpoints.shard_file import ShardHeader, write_shards
    from distsummary.diagnosis.stuck import Collective, ProcessGroup, RankReport
    from distsummary.diagnosis.verdict import Verdict
    from distsummary.events.contents import scan
    from distsummary.events.index import write_index
    from distsummary.events.segments import segments
    from distsummary.format.records import MINDSPORE, Shard
    from distsummary.landscapes.engines.chunks import Chunk
    from distsummary.landscapes.run.journal import Journal
    from distsummary.rundir.rank_facts import RankFacts, write_facts
    from distsummary.rundir.run_dir import RunDir
    from tests.unit.landscapes.test_grid import make_grid

    base = corpus / "base"
    for place, ranks in ((base, 2), (corpus / "healthy", 1)):
        for rank in range(ranks):
            with ds.init(
                place, quiet=True, rank=rank, world_size=ranks, aggregate=False, config={"lr": 0.1},
                system_metrics=False,
            ) as run:  # fmt: skip
                for step in run.steps(range(40)):
                    run.log(loss=1 / (step + 1), lr=0.1)
                    if not step % 10:
                        run.text("note", f"step {step}")
    reported = Verdict(
        rank=1, cause="data", since_step=3, until_step=None, evidence="20 ms", reported_step=9, ranks=(0, 1)
    )
    (base / "alerts.jsonl").write_text(json.dumps({"time": 1.7e9, "attempt": 0, **reported.as_json()}))
    reporting = RankReport(
        rank=1, step=4, phase="data", late_s=3.0, groups=(ProcessGroup("0", (0, 1), (Collective(1, "a"),)),)
    )
    stuck = {"format": 1, "attempt": 0, "rank": 1, "time": 1.7e9, "is_over": False, **reporting.as_json()}
    (base / "rank_00001" / "stuck.json").write_text(json.dumps(stuck))
    for directory in (base / "rank_00000", base / "rank_00001"):
        write_facts(directory, 0, RankFacts({"seed": "1"}, ["a", "b"], {"whole": [0, 1]}))
        for file in segments(directory, MINDSPORE):
            write_index(file, scan(file))
    run_dir, numbers = RunDir(base), np.random.default_rng(seed)
    run_dir.landscape_dir.mkdir()
    make_grid().save(run_dir.landscape_file("landscape_[1, 9]", ".npz"))
    with Journal(run_dir.landscape_journal(PLAN), PLAN) as journal:
        journal.enter_choice({"engine": "row", "chunk": 1})
        for row in range(2):
            journal.enter(
                Chunk(plane=0, kind="grid", row=row, columns=(0, 1, 2)), numbers.normal(size=(3, 2))
            )
    checkpoints = run_dir.ckpt_dir
    checkpoints.mkdir()
    state = {
        "a.weight": numbers.normal(size=(3, 4)).astype("f4"),
        "c": np.array([True]),
        "epoch_num": np.array(3),
    }
    for name, more in {"m.ckpt": {}, "m.safetensors": {}, "g.ckpt": {"key": KEY},
                       "k.ckpt": {"key": KEY, "mode": "AES-CBC"}}.items():  # fmt: skip
        write_model(checkpoints / name, {**state, "t": "text value"}, **more)
    header = ShardHeader(
        run_id="0" * 16, attempt=0, number=1, unit="step", rank=0, ranks=1,
        slices={"a.weight": Shard(global_shape=(3, 4), offset=(0, 0))},
    )  # fmt: skip
    shards = checkpoints / "m_1_step_rank_00000_of_00001.safetensors"
    write_shards(shards, header, {"a.weight": state["a.weight"]})
    files = {1: CheckpointFile(path="m.safetensors"), 2: CheckpointFile(path="m.ckpt")}
    spec = LandscapeSpec(intervals=((1, 2),))
    (checkpoints / "train_metadata.json").write_bytes(
        TrainMetadata(spec=spec, step_per_epoch=2, run_id="0" * 16, files=files).to_bytes()
    )


def mutant(corpus: Path, kind: SmallFiles, generator: random.Random) -> tuple[str, bytes]:
    """A file of the base, by its path in it, and other bytes for it."""
    base = corpus / "base"
    files = sorted(path for pattern in kind.patterns for path in base.glob(pattern))
    path = generator.choice(files)
    return str(path.relative_to(base)), kind.change(path.read_bytes(), generator)


def lay_out(corpus: Path, directory: Path) -> None:
    """The base in a directory, and the healthy run next to it."""
    shutil.copytree(corpus / "base", directory)
    if not (healthy := directory.with_name("healthy")).exists():
        shutil.copytree(corpus / "healthy", healthy)


# --- changes


def _bytes(data: bytes, generator: random.Random) -> bytes:
    """Bits, cuts, splices; numbers in texts of the beginning become others."""
    if generator.random() < 0.7:
        return mutate(data, data, generator)
    found = [*re.finditer(rb"\d+", data[:4000])]
    if not found:
        return data[: generator.randint(0, len(data))]
    place = generator.choice(found)
    return data[: place.start()] + generator.choice(IN_TEXT) + data[place.end() :]


def _json(data: bytes, generator: random.Random) -> bytes:
    """Fields of JSON set, removed or doubled; sometimes no JSON any more."""
    if generator.random() < 0.1:
        return generator.choice((b"[" * 100_000, data[: len(data) // 2], b"\xef\xbb\xbf" + data, b"", b"[]"))
    content = json.loads(data)
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        holder: Any = content
        while isinstance(holder, (dict, list)) and holder:
            key = generator.choice([*holder] if isinstance(holder, dict) else range(len(holder)))
            inner = holder[key]
            if not (isinstance(inner, (dict, list)) and inner) or generator.random() < 0.2:
                if generator.random() < 0.2:
                    del holder[key]
                elif isinstance(holder, list) and generator.random() < 0.2:
                    holder.append(deepcopy(inner))
                else:
                    holder[key] = deepcopy(generator.choice(BAD))
                break
            holder = inner
    text = json.dumps(content)
    return text.replace("Infinity", generator.choice(("1e999", "Infinity"))).encode()


def _index(data: bytes, generator: random.Random) -> bytes:
    """An index whose header or columns are others, with CRCs that are right again."""
    if generator.random() < 0.3:
        return mutate(data, data, generator)
    magic, length, _ = HEAD.unpack_from(data)
    text, columns = data[HEAD.size : HEAD.size + length], data[HEAD.size + length :]
    if generator.random() < 0.8:
        text = _json(text, generator)
    else:
        header = json.loads(text)
        columns = mutate(columns, columns, generator)[: len(columns)].ljust(len(columns), b"\0")
        tables = [*header["events"].values(), *(c for row in header["scalars"] for c in row[1:]),
                  *(c for row in header["others"] for c in row[2:])]  # fmt: skip
        for column in (one for one in tables if one[0] == "a"):
            size = column[3] * int(column[1][2:])
            column[4] = google_crc32c.value(columns[column[2] : column[2] + size])
        text = json.dumps(header).encode()
    return HEAD.pack(magic, len(text), google_crc32c.value(text)) + text + columns


def _npz(data: bytes, generator: random.Random) -> bytes:
    """An archive in which one array is another."""
    if generator.random() < 0.3:
        return mutate(data, data, generator)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    victim = generator.choice([*members])
    if victim == "meta.npy" and generator.random() < 0.7:
        import numpy as np

        text = io.BytesIO()
        np.save(text, np.array(_json(str(np.load(io.BytesIO(members[victim]))).encode(), generator).decode()))
        members[victim] = text.getvalue()
    else:
        members[victim] = _bytes(members[victim], generator)
    file = io.BytesIO()
    how = generator.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return file.getvalue()


def _checkpoint(data: bytes, generator: random.Random) -> bytes:
    """Bytes; a header of safetensors with the right length; a frame with the right CRC; a field of JSON."""
    if data[:1] == b"{" and data.isascii():  # one that is encrypted may begin so, too
        return _json(data, generator)
    size = int.from_bytes(data[:8], "little")
    if data[8:9] == b"{" and generator.random() < 0.6:
        header = (_json if generator.random() < 0.5 else _bytes)(data[8 : 8 + size], generator)
        return len(header).to_bytes(8, "little") + header + data[8 + size :]
    payloads = [record.payload for record in records(data) if record.payload]
    if payloads and generator.random() < 0.6:
        number = generator.randrange(len(payloads))
        payloads[number] = _bytes(payloads[number], generator)
        return b"".join(map(framed, payloads))
    return _bytes(data, generator)


# --- ways to read


def _verb(*words: str) -> Call:
    from distsummary.cli import main as cli

    return partial(cli.main, [*words])


def _run_ways(directory: Path, name: str) -> Iterator[tuple[str, Call]]:
    """The verbs on a run, the list of runs, and the page."""
    from distsummary.runs.run_rows import RunRows
    from distsummary.view.served import Served

    run = str(directory)

    def listed() -> None:
        """The healthy run is in both lists, whatever the other one is."""
        found = {row.path: row.state for row in RunRows(directory.parent).read()}
        if found.get("healthy") != "finished" or directory.name not in found:
            raise AssertionError(f"the runs are {found}")
        Served(directory.parent).runs()

    yield "runs", listed
    yield "status", _verb("status", "--json", run)
    yield "why", _verb("why", run)
    yield "show", _verb("show", run)
    yield "open_run", partial(_exhaust, directory)
    yield "fsck", _verb("fsck", run)
    yield "merge", _verb("merge", run)
    yield "fsck --repair", partial(_repaired, directory)


def _repaired(directory: Path) -> None:
    """What fsck --repair has repaired can be read, if it says that it did."""
    from distsummary.cli.fsck import fsck
    from distsummary.runs.status import read_status

    report = fsck(directory, repair=True)
    if any(one.kind.startswith("manifest_") and one.repairable for one in report.findings):
        raise AssertionError(f"the repair left {[one.message for one in report.findings]}")
    read_status(directory)


def _exhaust(directory: Path) -> None:
    import distsummary as ds

    run = ds.open_run(directory)
    for rank in (None, 0, 1):
        table = run.scalars(rank=rank)
        for tag in [*dict.fromkeys(table["tag"].tolist())][:5]:
            run.matrix(tag)
    run.text()
    for what in (
        "attempts",
        "health",
        "verdicts",
        "tags",
        "deals",
        "config",
        "provenance",
        "landscapes",
        "steps",
    ):
        getattr(run, what)
    if not isinstance(run.problems, list):
        raise TypeError("problems is no list")


def _index_ways(directory: Path, name: str) -> Iterator[tuple[str, Call]]:
    yield "open_run", partial(_exhaust, directory)
    yield "show", _verb("show", str(directory))


def _npz_ways(directory: Path, name: str) -> Iterator[tuple[str, Call]]:
    from distsummary import LossGrid

    def load() -> None:
        grid = LossGrid.load(directory / name)
        for what in ("tag", "stderr", "explained", "missing", "parts"):
            getattr(grid, what)

    def drawn() -> None:
        import distsummary as ds
        from distsummary.view.page import page

        page(ds.open_run(directory))

    yield "load", load
    yield "page", drawn


def _checkpoint_ways(directory: Path, name: str) -> Iterator[tuple[str, Call]]:
    from distsummary.checkpoints.load import load_checkpoint
    from distsummary.checkpoints.shard_file import read_shards
    from distsummary.checkpoints.trajectory import read
    from distsummary.landscapes.run.journal import Journal

    path = directory / name
    if path.suffix in (".ckpt", ".safetensors"):
        yield "load", partial(load_checkpoint, str(path))
        yield "load GCM", partial(load_checkpoint, str(path), dec_key=KEY)
        yield "load CBC", partial(load_checkpoint, str(path), dec_key=KEY, dec_mode="AES-CBC")
        yield "shards", partial(read_shards, path)
    elif path.suffix == ".bin":
        yield "journal", lambda: Journal(path, PLAN).close()
        yield "fsck", _verb("fsck", str(directory))
    else:
        yield "trajectory", partial(read, path.parent)


KINDS = {
    "sidecars": SmallFiles(
        ("*.json", "alerts.jsonl", "*/manifest.json", "*/facts.json", "*/stuck.json"), _json, _run_ways
    ),
    "indexes": SmallFiles(("*/seg-*.idx",), _index, _index_ways),
    "npz": SmallFiles(("landscape/*.npz",), _npz, _npz_ways),
    "checkpoints": SmallFiles(("ckpt_dir/*", "landscape/journal-*.bin"), _checkpoint, _checkpoint_ways),
}
