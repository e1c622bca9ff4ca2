"""Each thing that is wrong with a run is named with its file; what can be mended is, and nothing is lost."""

import errno
import json
import os
from pathlib import Path

import pytest

import distsummary as ds
from distsummary.base.publish import TEMPORARY
from distsummary.cli import fsck as fsck_module
from distsummary.cli.fsck import FsckReport, fsck
from distsummary.errors import MissingFileError, NotADirectoryPathError
from distsummary.events.segments import segments
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.frames import frame
from distsummary.format.records import Batch, Event, Value
from distsummary.rundir.attempts import note_deaths
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import read_run
from distsummary.rundir.topology import Topology
from tests.event_files import write_events
from tests.refusals import refused
from tests.unit.events.test_reader import MINDSPORE, RUN, TENSORBOARD, flip, scalar_frames, write
from tests.unit.format import samples

STAMP = 1_700_000_000


def kinds(report: FsckReport) -> list[str]:
    return sorted(one.kind for one in report.findings)


def record(
    run: RunDir, run_id: str, rank: int, *, ranks: int, attempt: int = 0, steps: range = range(1, 6)
) -> None:
    """The files of a rank as our writers make them."""
    events = [Event(step, float(step), [Value("scalar", "loss", 0.5)]) for step in steps]
    events.append(Event(0, 9.0, [Value("train_lineage", "", samples.TRAIN)]))
    write_events(run.writer_dir("train", rank, ranks), events, run_id=run_id, attempt=attempt, rank=rank)


def a_run(base: Path, ranks: int = 1, *, attempt: int = 0, steps: range = range(1, 6)) -> RunDir:
    """A clean run as our writers make it, with a manifest."""
    run = RunDir(base).create()
    for rank in range(ranks):
        record(run, RUN, rank, ranks=ranks, attempt=attempt, steps=steps)
    if not run.manifest_path.exists():
        run.update_manifest(lambda manifest: manifest.update({"run_id": RUN}))
        fsck(base, repair=True)  # which enters the attempts
        run.manifest_path.with_name("run.json.0.bak").unlink()
    return run


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_our_writers_make_is_clean(nasty_tmp_path: Path, ranks: int):
    a_run(nasty_tmp_path, ranks)
    report = fsck(nasty_tmp_path)
    assert report.findings == ()
    assert (report.exit_code, report.files, report.events) == (0, 3 * ranks, 11 * ranks)


def test_a_path_relative_to_the_working_directory_is_as_good(nasty_tmp_path, monkeypatch):
    a_run(nasty_tmp_path / "run", 2)
    monkeypatch.chdir(nasty_tmp_path)
    for path in ("run", ".", "run/rank_00000"):
        assert kinds(fsck(path)) == []


def test_a_restart_in_a_new_attempt_is_clean(nasty_tmp_path: Path):
    a_run(nasty_tmp_path)
    a_run(nasty_tmp_path, attempt=1, steps=range(3, 9))
    assert kinds(fsck(nasty_tmp_path)) == ["manifest_stale"]
    assert fsck(nasty_tmp_path, repair=True).findings == ()


# --- the bytes


def test_damage_is_named_with_its_byte(nasty_tmp_path: Path):
    frames = scalar_frames("mindspore", range(1, 4))
    path = write(nasty_tmp_path, MINDSPORE.format(STAMP), frames)
    offset = len(frames[0]) + len(frames[1])
    flip(path, offset + 14)
    (one,) = fsck(nasty_tmp_path).findings
    assert (one.kind, one.file, one.offset, one.severity, one.repairable) == (
        "damaged", path, offset, "error", False,
    )  # fmt: skip


def test_a_torn_tail_is_cut_and_kept(nasty_tmp_path: Path):
    frames = scalar_frames("tensorboard", range(1, 4))
    path = write(nasty_tmp_path, TENSORBOARD.format(STAMP), [*frames, b"torn"])
    report = fsck(nasty_tmp_path)
    assert kinds(report) == ["torn"]
    assert report.exit_code == 1
    assert report.findings[0].offset == sum(map(len, frames))
    repaired = fsck(nasty_tmp_path, repair=True)
    assert (repaired.exit_code, repaired.findings) == (0, ())
    assert repaired.repaired == report.findings
    assert path.read_bytes() == b"".join(frames)
    assert (nasty_tmp_path / "torn-0.bin").read_bytes() == b"torn"


def test_a_torn_tail_behind_damage_is_named_and_not_cut(nasty_tmp_path: Path):
    frames = scalar_frames("mindspore", range(1, 4))
    path = write(nasty_tmp_path, MINDSPORE.format(STAMP), [*frames, b"torn"])
    flip(path, len(frames[0]))
    before = path.read_bytes()
    report = fsck(nasty_tmp_path, repair=True)
    assert kinds(report) == ["damaged", "torn"]
    assert report.repaired == ()
    assert path.read_bytes() == before


def test_a_live_writer_is_left_alone(nasty_tmp_path: Path):
    writer = RankWriter(WriterSpec(directory=nasty_tmp_path, run_id=RUN, formats=("mindspore",)))
    event = Event(1, 1.0, [Value("scalar", "loss", 0.5)])
    writer.write(Batch(run_id=RUN, attempt=0, rank=0, first_seq=1, events=[event]))
    (path,) = segments(nasty_tmp_path, "mindspore")
    with open(path, "ab") as file:
        file.write(b"half a fra")
    before = path.read_bytes()
    report = fsck(nasty_tmp_path, repair=True)
    assert (kinds(report), report.exit_code) == (["live"], 0)
    assert path.read_bytes() == before
    writer.close()
    assert kinds(fsck(nasty_tmp_path)) == ["torn"]


def test_what_a_live_writer_removes_meanwhile_is_no_finding(nasty_tmp_path: Path, monkeypatch):
    a_run(nasty_tmp_path)
    temporary = nasty_tmp_path / f"{TEMPORARY}1"
    temporary.mkdir()
    real = fsck_module.check_files

    def removing(files: list[Path]):
        if temporary.exists():
            temporary.rmdir()  # after it was listed, before it is read
        return real(files)

    monkeypatch.setattr(fsck_module, "check_files", removing)
    assert fsck(nasty_tmp_path).findings == ()


def test_a_file_of_no_bytes_is_named(nasty_tmp_path: Path):
    path = write(nasty_tmp_path, MINDSPORE.format(STAMP), [])
    assert [(one.kind, one.file) for one in fsck(nasty_tmp_path).findings] == [("empty", path)]


def test_countless_findings_of_a_file_are_counted(nasty_tmp_path: Path):
    write(nasty_tmp_path, MINDSPORE.format(STAMP), [frame(b"no event")] * 100)
    found = fsck(nasty_tmp_path).findings
    assert len(found) == 21
    assert found[-1].message.startswith("80 more")


def test_links_are_not_followed(nasty_tmp_path: Path):
    a_run(nasty_tmp_path / "elsewhere")
    run = nasty_tmp_path / "run"
    a_run(run)
    (target,) = segments(nasty_tmp_path / "elsewhere", "mindspore")
    (run / MINDSPORE.format(STAMP + 9)).symlink_to(target)
    (run / "rank").symlink_to(nasty_tmp_path / "elsewhere", target_is_directory=True)
    (run / "loop").symlink_to(run, target_is_directory=True)
    report = fsck(run)
    assert report.findings == ()
    assert report.events == 11


# --- the manifest


def test_a_damaged_manifest_is_made_again_and_the_old_one_kept(nasty_tmp_path: Path):
    run = a_run(nasty_tmp_path, ranks=2)
    run.manifest_path.write_bytes(b"{broken")
    assert kinds(fsck(nasty_tmp_path)) == ["manifest_damaged"]
    report = fsck(nasty_tmp_path, repair=True)
    assert (report.findings, [one.kind for one in report.repaired]) == ((), ["manifest_damaged"])
    assert (nasty_tmp_path / "run.json.0.bak").read_bytes() == b"{broken"
    manifest = run.read_manifest()
    (attempt,) = manifest["attempts"]
    assert (manifest["run_id"], manifest["created"]) == (RUN, 1.0)
    assert (attempt["role"], attempt["attempt"], attempt["world_size"], attempt["started"]) == (
        "train", 0, 2, 1.0,
    )  # fmt: skip
    assert [rank.state for rank in read_run(run).attempts[0].ranks] == ["unknown", "unknown"]
    assert manifest["state"] == "unknown"


@pytest.mark.parametrize("field", ["deep", "world_size", "started", "heartbeat"])
def test_manifests_with_fields_beyond_their_bounds_are_rebuilt(tmp_path: Path, field: str):
    run = a_run(tmp_path / "run", ranks=2)
    good = read_run(run)
    values = {"world_size": 10**12, "started": "noon", "heartbeat": {"time": 1e300}}
    for path in (run.manifest_path, *run.base.glob("*/manifest.json")):
        found = json.loads(path.read_text())
        for attempt in found["attempts"]:
            attempt[field] = values.get(field)
        path.write_text("[" * 100_000 if field == "deep" else json.dumps(found))
    if field == "heartbeat":
        run.manifest_path.write_text("{")
    assert set(kinds(fsck(run.base))) == {"manifest_damaged"}
    assert kinds(fsck(run.base, repair=True)) == []
    again = read_run(run)
    assert (again.run_id, again.state, again.newest.world_size) == (good.run_id, "unknown", 2)
    assert [rank.rank for rank in again.newest.ranks] == [0, 1]


def test_a_rank_directory_beyond_all_worlds_is_no_rank(tmp_path: Path):
    run = a_run(tmp_path / "run", ranks=2)
    (run.base / "rank_99999999999").mkdir()
    (run.base / "rank_2000000").mkdir()
    run.manifest_path.unlink()
    fsck(run.base, repair=True)
    assert read_run(run).newest.world_size == 2


def test_what_the_ranks_report_is_kept_if_run_json_is_lost(nasty_tmp_path: Path):
    run = RunDir(nasty_tmp_path).create()
    for rank in range(2):
        place = Topology(rank=rank, world_size=2, incarnation="start-1", host=f"n{rank}")
        registration = LocalCoordinator(run).register(place)
        record(run, registration.run_id, rank, ranks=2)
        LocalCoordinator(run).finish(place, 0, {"events": 11})
    before = run.read_manifest()
    assert fsck(nasty_tmp_path).findings == ()
    run.manifest_path.unlink()
    assert fsck(nasty_tmp_path, repair=True).findings == ()
    after = run.read_manifest()
    assert after["run_id"] == before["run_id"]
    [attempt] = read_run(run).attempts
    assert attempt.state == "finished"
    assert [(rank.host, rank.health) for rank in attempt.ranks] == [
        ("n0", {"events": 11}),
        ("n1", {"events": 11}),
    ]
    assert after["attempts"][0]["incarnation"] == "start-1"


@pytest.mark.parametrize("damage", [b"{broken", b"", b"[]", b'{"format": 2, "attempts": []}',
                                    b'{"format": 1, "attempts": [{"attempt": 0}]}'])  # fmt: skip
def test_a_damaged_file_of_a_rank_is_made_again_and_the_old_one_kept(nasty_tmp_path: Path, damage: bytes):
    run = a_run(nasty_tmp_path, ranks=2)
    file = run.writer_dir("train", 1, 2) / "manifest.json"
    file.write_bytes(damage)
    [found] = [one for one in fsck(nasty_tmp_path).findings if one.kind == "manifest_damaged"]
    assert (found.file, found.severity) == (file, "error")
    report = fsck(nasty_tmp_path, repair=True)
    assert (report.findings, report.exit_code) == ((), 0)
    assert file.with_name("manifest.json.0.bak").read_bytes() == damage
    assert [rank.state for rank in read_run(run).attempts[0].ranks] == ["unknown", "unknown"]


def test_a_rank_that_recorded_without_reporting_so_is_entered(nasty_tmp_path: Path):
    run = a_run(nasty_tmp_path, ranks=3)
    (run.writer_dir("train", 2, 3) / "manifest.json").unlink()
    [found] = fsck(nasty_tmp_path).findings
    assert (found.kind, found.file) == ("manifest_stale", run.manifest_path)
    assert "rank 2 recorded in attempt 0 of role train" in found.message
    assert fsck(nasty_tmp_path, repair=True).findings == ()
    assert read_run(run).attempts[0].missing == ()


def test_lost_ranks_are_noted_and_no_problem(nasty_tmp_path: Path):
    run = RunDir(nasty_tmp_path).create()
    for rank in range(8):
        gone = Topology(
            rank=rank, world_size=8, incarnation="1", is_incarnation_unique=True, pid_start="0", host="n0",
            pid=1,
        )  # fmt: skip
        LocalCoordinator(run).register(gone)
    report = fsck(nasty_tmp_path)
    [note] = report.findings
    assert (note.kind, note.severity, report.exit_code) == ("lost_ranks", "note", 0)
    assert "ranks 0-7 of attempt 0 of role train died without a word" in note.message
    assert "its process is gone from n0" in note.message
    stopped = dict.fromkeys(range(3), "stopped: it still ran 10 s after the first failure")
    note_deaths(run, "train", 0, stopped | {3: "its node does not answer"})
    [note] = fsck(nasty_tmp_path).findings
    assert "the first: its node does not answer" in note.message


def test_a_manifest_of_another_run_is_made_again(nasty_tmp_path: Path):
    run = a_run(nasty_tmp_path)
    run.update_manifest(lambda manifest: manifest.update({"run_id": "f" * 16}))
    assert kinds(fsck(nasty_tmp_path)) == ["manifest_stale"]
    assert fsck(nasty_tmp_path, repair=True).findings == ()
    assert [entry["attempt"] for entry in run.read_manifest()["attempts"]] == [0]
    assert json.loads((nasty_tmp_path / "run.json.0.bak").read_bytes())["run_id"] == "f" * 16


# --- all together


def test_what_cannot_be_checked_is_an_error(nasty_tmp_path: Path):
    refused(
        MissingFileError,
        (lambda: fsck(nasty_tmp_path / "nowhere"), "nowhere"),
        (lambda: fsck(nasty_tmp_path), "no event file"),
    )
    (nasty_tmp_path / "file").touch()
    refused(NotADirectoryPathError, (lambda: fsck(nasty_tmp_path / "file"), "file"))


def test_a_line_for_the_terminal_holds_no_control_characters(nasty_tmp_path: Path):
    name = "events.out.tfevents.1700000000.\x1b[31mred\n.1.0"
    write(nasty_tmp_path, name, [])
    (one,) = fsck(nasty_tmp_path).findings
    assert one.as_line().isprintable()
    assert str(one.file).endswith(name)


# The command line of a run is its user's alone; another user checks the rest.
@pytest.mark.parametrize(
    ("name", "number", "found"),
    [
        ("command.json", errno.EACCES, []),
        ("command.json", errno.EIO, ["it cannot be read: Input/output error; see what the system says"]),
        ("facts.json", errno.EACCES, ["it cannot be read: Permission denied; fix the permissions"]),
    ],
)
def test_a_small_file_that_cannot_be_read_is_not_called_damaged(tmp_path, monkeypatch, name, number, found):
    with ds.init(tmp_path, rank=0, world_size=2, aggregate=False, quiet=True) as run:
        for _ in run.steps(range(2)):
            run.log(loss=0.5)
    real_open = open

    def refusing(path, *arguments, **options):
        if Path(path).name == name and Path(path).exists():
            raise OSError(number, os.strerror(number), path)
        return real_open(path, *arguments, **options)

    monkeypatch.setattr("builtins.open", refusing)
    findings = [one for one in fsck(tmp_path).findings if one.is_problem]
    assert [one.kind for one in findings] == ["unreadable"] * len(found)
    for one, text in zip(findings, found, strict=True):
        assert text in one.as_line()
