import io
import json
import signal
import threading
import time
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import distsummary as ds
from distsummary.base import terminal
from distsummary.cli.landscape_command import grid_line
from distsummary.cli.main import FIELDS, in_options, main
from distsummary.events.reader import read_directory
from distsummary.format.records import Event, Value
from distsummary.rundir.run_dir import RunDir
from tests.event_files import write_events
from tests.interrupts import Dropping, sigint
from tests.patience import PATIENCE_S
from tests.unit.landscapes.test_grid import make_grid


def two_ranks(path) -> RunDir:
    run_dir = RunDir(path).create()
    for rank in range(2):
        events = [Event(step, 0.0, [Value("scalar", "acc", float(rank))]) for step in (1, 2)]
        write_events(run_dir.writer_dir("train", rank, 2), events, run_id="00000000000000ab", rank=rank)
    return run_dir


def test_merge_makes_one_run_and_reports_it_as_json(tmp_path, capsys):
    run_dir = two_ranks(tmp_path / "run")
    assert main(["merge", str(run_dir.base), "--json", "--tag", "acc"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == [0, 1]
    merged = {v.tag: v.data for e in read_directory(run_dir.base) for v in e.values}
    assert (merged["acc"], merged["zz_ranks/acc/max"], merged["zz_ranks/acc/argmax_rank"]) == (0.5, 1.0, 1.0)
    events = [Event(2, 0.0, [Value("scalar", "acc", 1.0)])]
    write_events(run_dir.writer_dir("train", 2, 3), events, run_id="00000000000000ab", rank=2)
    assert main(["merge", str(run_dir.base)]) == 0
    assert (
        "steps that the merged run missed or had of fewer ranks: 1, now completed" in capsys.readouterr().out
    )


class Mse: ...


class Mae: ...


def test_what_the_ranks_disagree_on_is_printed_once_in_words(tmp_path, capsys, caplog):
    for rank, loss_fn in enumerate([Mse(), Mae()]):
        given = {"loss_fn": loss_fn, "config": {"seed": 7 + rank}}
        with ds.init(tmp_path, rank=rank, world_size=2, aggregate=False, quiet=True, **given) as run:
            list(run.steps(range(3)))
    caplog.clear()
    assert main(["merge", str(tmp_path)]) == 0
    reported = capsys.readouterr().out + caplog.text
    assert reported.count("seed (7 on rank 0; 8 on rank 1)") == 1
    assert "  conflicts: hyper_parameters.loss_function (Mse on rank 0; Mae on rank 1)\n" in reported
    assert not any(word in reported for word in ("Conflict(", "by_rank", "custom"))


@pytest.mark.parametrize("verb", ["merge", "dump", "fsck", "convert", "status", "watch", "runs"])
def test_a_name_that_is_too_long_is_one_line(verb, capsys):
    assert main([verb, "a" * 300]) == (2 if verb in ("fsck", "status", "watch") else 1)
    message = capsys.readouterr().err
    assert message.startswith(f"distsummary {verb}: ")
    assert "File name too long" in message
    assert message.count("\n") == 1


SAID = {
    "a.bin is of engine='torch-row', got 'a'; leave engine= out, or use resume=False to start again": (
        "a.bin is of --engine 'torch-row', got 'a'; leave --engine out, or use --fresh to start again"
    ),
    "change gpus_per_worker, or use workers=0": "change --gpus-per-worker, or use --workers 0",
    "gpus_per_worker must be a number": "--gpus-per-worker must be a number",
    "directions with runs= must be one of": "--directions with --runs must be one of",
    "name an engine (engine='row')": "name an engine (--engine 'row')",
    "the same call goes on": "the same command goes on",
}
OF_OTHERS = (
    "ValueError: num_workers=2, /runs/engine=row",
    "give around=torch.load(path)",
    "by their numbers: around={100: file, ...}",
    "runs of others",
)


@pytest.mark.parametrize(("message", "said"), [*SAID.items(), *zip(OF_OTHERS, OF_OTHERS, strict=True)])
def test_messages_are_in_the_words_of_the_command_line(message, said):
    assert in_options(message) == said


def test_every_argument_that_messages_have_is_an_option(capsys):
    for verb in ("landscape", "demo", "dump"):
        with pytest.raises(SystemExit, match="0"):
            main([verb, "--help"])
    reported = capsys.readouterr().out
    assert [name for name in FIELDS if f"--{name.replace('_', '-')} " not in reported] == []


def test_an_interrupt_that_python_drops_ends_a_verb_too(monkeypatch, capsys):
    def drop(*arguments, **options):
        Dropping()
        time.sleep(60)

    monkeypatch.setattr("distsummary.aggregate.merge.merge_run", drop)
    with sigint(signal.default_int_handler):
        assert main(["merge", "anything"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["x", "-1"])
def test_workers_that_are_no_number_are_argparses(capsys, workers):
    with pytest.raises(SystemExit, match="2"):
        main(["landscape", "run", "module:factory", f"--workers={workers}"])
    assert f"--workers: must be auto or a whole number from 0 on, got {workers!r}" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["merge", "dump", "fsck", "convert", "status", "runs"])
def test_a_path_that_is_missing_is_one_line_with_the_exit_code_of_wrong_arguments(verb, tmp_path, capsys):
    assert main([verb, str(tmp_path / "absent")]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"distsummary {verb}: ")
    assert str(tmp_path / "absent") in message
    assert message.count("\n") == 1
    with pytest.raises(SystemExit, match="0"):
        main([verb, "--help"])
    assert "2 wrong arguments, or a path that is missing" in " ".join(capsys.readouterr().out.split())


def test_a_dump_reports_what_it_reads_while_it_prints_nothing(tmp_path, monkeypatch, capsys):
    reported = threading.Event()

    class Stderr(io.StringIO):
        def flush(self) -> None:
            if " 4 of 4" in self.getvalue():
                reported.set()

    def reading(*what) -> None:
        terminal.doing(*what)
        if what[1] == 4:
            assert reported.wait(PATIENCE_S)

    run_dir = two_ranks(tmp_path / "run")
    monkeypatch.setattr(terminal, "PLAIN_S", (0.01, 0.01))
    monkeypatch.setattr("distsummary.cli.dump.doing", reading)
    with redirect_stderr(Stderr()):
        assert main(["dump", str(run_dir.base), "--tag", "acc"]) == 0
    assert reported.is_set()
    lines = capsys.readouterr().out.splitlines()
    assert {json.loads(line)["tag"] for line in lines} == {"acc"}


def test_a_file_of_another_kind_is_not_dumped(tmp_path, capsys):
    file = tmp_path / "notes.txt"
    for text in ("", "some words\n"):
        file.write_text(text)
        assert main(["dump", str(file)]) == 1
        reported = capsys.readouterr()
        assert reported.out == ""
        assert f"{file} is no event file: it has neither the name of one nor an intact event" in reported.err
    run_dir = two_ranks(tmp_path / "run")
    [events] = [path for path in run_dir.writer_dir("train", 0, 2).iterdir() if path.name.endswith("_MS")]
    file.write_bytes(b"damage" + events.read_bytes())  # an event file by another name
    assert main(["dump", str(file)]) == 0
    assert "acc" in capsys.readouterr().out


def test_sigterm_ends_watch_with_its_own_exit_code(tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(
        "distsummary.cli.watch.watch", lambda *given, **options: signal.raise_signal(signal.SIGTERM)
    )
    with pytest.raises(SystemExit, match="143"):
        main(["watch", str(tmp_path)])
    assert signal.getsignal(signal.SIGTERM) is before


def test_fsck_reports_scripts_by_its_exit_code(tmp_path, capsys):
    run_dir = two_ranks(tmp_path / "run")
    assert main(["fsck", str(run_dir.base)]) == 1  # a run of several ranks without a manifest
    assert "manifest_missing" in capsys.readouterr().out
    assert main(["fsck", str(run_dir.base), "--repair"]) == 0
    assert "repaired: " in capsys.readouterr().out
    assert main(["fsck", str(run_dir.base), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["findings"], report["files"]) == ([], 4)


def test_convert_writes_the_other_dialect_once(tmp_path, capsys):
    run_dir = two_ranks(tmp_path / "run")
    for path in run_dir.base.rglob("*tfevents*"):
        path.unlink()
    assert main(["convert", str(run_dir.base), "--out", str(tmp_path / "tb"), "--json"]) == 0
    converted = json.loads(capsys.readouterr().out)["converted"]
    assert [one["events"] for one in converted] == [2, 2]
    assert {Path(one["file"]).parent for one in converted} == {
        tmp_path / "tb" / f"rank_0000{rank}" for rank in (0, 1)
    }
    assert main(["convert", str(run_dir.base)]) == 0
    assert "2 events in events.out.tfevents." in capsys.readouterr().out
    assert main(["convert", str(run_dir.base)]) == 1
    assert "double" in capsys.readouterr().err
    assert len(list(read_directory(run_dir.base / "rank_00001", "tensorboard"))) == 2


def test_a_landscape_says_how_far_its_checkpoints_are_out_of_the_plane_where_they_are():
    assert "up to 20% of a checkpoint's offset from the centre lies outside the plane" in grid_line(
        "pca", make_grid()
    )
    assert "outside the plane" not in grid_line("triangle", make_grid(residuals=np.array([1e-8, 2e-8, 0.0])))


def test_a_landscape_in_a_line_says_what_was_computed_and_the_barrier_of_a_line() -> None:
    grid = make_grid()
    some = np.arange(grid.z.size).reshape(grid.z.shape) < 3
    assert f"points by {grid.engine}, 3 of {grid.z.size} computed, loss" in grid_line(
        "pca", replace(grid, computed=some)
    )
    ends = {"path": np.array([[-1.0, 0.0], [0.0, 0.0]]), "path_loss": np.array([2.0, 1.0])}
    line = make_grid(
        kind="line", y=np.zeros(1), z=np.array([[2.0, 4.0, 3.0, 1.0]]), numbers=(1, 9), residuals=np.zeros(2),
        true_loss=np.array([2.0, 1.0]), **ends,
    )  # fmt: skip
    assert "loss 2 and 1 at its ends, barrier 2.333" in grid_line("line", line)


def test_status_of_a_run_and_of_none(tmp_path, capsys):
    with ds.init(tmp_path / "run", quiet=True) as run:
        for _ in run.steps(range(3)):
            run.log(loss=0.5)
    assert main(["status", str(tmp_path / "run")]) == 0
    assert "The run is fine: it has finished." in capsys.readouterr().out
    assert main(["status", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "finished"
    assert main(["status", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"distsummary status: {tmp_path} is not a run, for it has no run.json; it holds runs: "
        f"distsummary runs {tmp_path}\n"
    )


def test_runs_are_listed(tmp_path, capsys):
    with ds.init(tmp_path / "run", quiet=True) as run:
        list(run.steps(range(1)))
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["run", "finished", "1"]
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["runs"]] == ["run"]
    assert main(["runs", str(tmp_path), "--where", "step > 1", "--columns", "name,step"]) == 0
    assert capsys.readouterr().out.split() == ["name", "step"]
    assert main(["runs", str(tmp_path), "--where", "step = 1"]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == ["  step = 1", "       ^"]
    assert main(["runs", str(tmp_path), "--columns", "nme"]) == 2
    assert "a column must be one of" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["runs", str(tmp_path / "empty")]) == 2
    assert "holds no runs" in capsys.readouterr().err


def test_a_run_is_labelled(tmp_path, capsys):
    with ds.init(tmp_path / "run", quiet=True) as run:
        list(run.steps(range(1)))
    path = str(tmp_path / "run")
    assert main(["tag", path]) == 0
    assert capsys.readouterr().out == f"{path}: no name, group, tags or notes\n"
    assert (
        main(["tag", path, "+baseline", "-draft", "+hard", "--name", "best", "--notes", "lr of the paper"])
        == 0
    )
    assert main(["tag", path, "-hard", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == {"name": "best", "group": None, "tags": ["baseline"], "notes": "lr of the paper"}
    assert main(["tag", path, "baseline"]) == 2
    assert "a tag must begin with + (add it) or - (remove it), got 'baseline'" in capsys.readouterr().err
    assert main(["tag", str(tmp_path / "absent"), "+x"]) == 2


@pytest.mark.parametrize("every", ["0", "nan", "x"])
def test_seconds_between_looks_that_make_no_sense_are_argparses(every, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["watch", "run", f"--every={every}"])
    assert f"--every: must be a number of seconds from 0.1 to 3600, got {every!r}" in capsys.readouterr().err


def test_ctrl_c_ends_watch_quietly(tmp_path, monkeypatch, capsys):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("distsummary.cli.watch.watch", interrupt)
    assert main(["watch", str(tmp_path)]) == 130
    assert capsys.readouterr() == ("", "")


def fail_in_colours(path, value):
    """A run in which all names and texts have escapes, and which fails."""
    config = {"k\x1b[31mRED": value, "text": f"\x9b31m\u202e{value}"}
    with ds.init(path, quiet=True, config=config, system_metrics=False) as run:
        for _ in run.steps(range(2)):
            run.log(**{"tag\x1b[2J": 1.0})
        run.alert("ring\x07")
        raise RuntimeError("no \x1b]0;title\x07")


def test_no_verb_prints_what_controls_a_terminal(tmp_path, capsys):
    place, other = tmp_path / "a\x1b[31m", tmp_path / "b"
    for path, value in ((place, 1), (other, 2)):
        with pytest.raises(RuntimeError):
            fail_in_colours(path, value)
    capsys.readouterr()
    verbs = [
        ["show", place], ["compare", place, other], ["status", place], ["why", place], ["runs", tmp_path],
        ["fsck", place], ["merge", place], ["merge", tmp_path / "\x1b[1mno"], ["watch", place],
        ["dump", place], ["export", place, "--to", "csv", "--out", tmp_path / "out\x1b.csv"],
        ["report", place, "--out", tmp_path / "out\x1b.html"], ["report", place, "--tag", "no\x1b[1m"],
    ]  # fmt: skip
    for verb in verbs:
        main([str(one) for one in verb])
        printed = "".join(capsys.readouterr())
        assert len(printed) > 5, verb
        assert not {one for one in printed if one in "\x07\x1b\x9b\u202e"}, verb
