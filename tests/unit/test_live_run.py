"""A live run says what it is, and names of W&B, MLflow and TensorBoard lead to what is here."""

import inspect
from pathlib import Path

import pytest

import distsummary as ds
from distsummary.base.names_elsewhere import ARGUMENTS, ATTRIBUTES, PACKAGE
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.integrations.door_options import read_options
from tests.refusals import refused
from tests.unit.collect.doubles import Model


def test_a_run_knows_its_name_directory_and_settings(nasty_tmp_path: Path) -> None:
    place = nasty_tmp_path / "a"
    with ds.init(place, name="first", config={"net": {"lr": 0.1}, "api_key": "abc"}) as run:
        assert (run.name, run.dir, run.rank, run.world_size) == ("first", place.resolve(), 0, 1)
        assert run.config == {"net": {"lr": 0.1}, "api_key": "***"}
        assert Path.from_uri(run.url) == place.resolve() if hasattr(Path, "from_uri") else run.url
        assert repr(run) == f"<Run {str(place.resolve())!r}: step 0, open>"
        with pytest.raises(InvalidValueError, match="gets its id with its first step"):
            _ = run.id
        for _ in run.steps(range(2)):
            run.log(loss=1.0)
        assert run.id == ds.open_run(place).id
    assert repr(run).endswith("step 2, closed>")
    # A later attempt is called as the run is, and one without a name as its directory.
    with ds.init(place, on_existing="attempt") as again:
        assert (again.name, again.id) == ("first", run.id)
    with ds.init(nasty_tmp_path / "b", rank=1, world_size=3, aggregate=False) as other:
        assert (other.name, other.world_size) == ("b", 3)
        assert ": rank 1 of 3, step 0, open>" in repr(other)


def test_a_run_that_no_one_records_has_no_name() -> None:
    run = ds.Run()
    assert repr(run) == "<Run not recorded: step 0, open>"
    refused(
        InvalidValueError,
        *(
            (lambda name=name: getattr(run, name), "no callback records")
            for name in ("name", "id", "dir", "summary")
        ),
    )
    run.close()


def test_the_summary_has_the_newest_number_of_each_tag(tmp_path: Path) -> None:
    with ds.init(tmp_path, watch=Model(), histograms=".*") as run:
        assert run.summary == {}
        for step in run.steps(range(4)):
            run.log(loss=1.0 - step / 4)
            if step == 1:
                run.log(early=2.0)
            if step == 2:
                run.text("note", "x")
                run.log(odd=3)
        with run.eval() as evaluation:
            evaluation.log(accuracy=0.5)
        found = {"early": 2.0, "eval/accuracy": 0.5, "loss": 0.25, "odd": 3.0}
        assert run.summary == found
        with pytest.raises(TypeError):
            run.summary["best"] = 1.0  # type: ignore[index]
    assert run.summary == found


def test_the_summary_has_rows_of_many_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distsummary.collect.session.MAX_PACKERS", 3)
    with ds.init(tmp_path, system_metrics=False) as run:
        for step in run.steps(range(20)):
            run.log({f"t{step % 7}": float(step), "all": float(step)})
        assert run.summary == {"all": 19.0} | {f"t{step % 7}": float(step) for step in range(20)}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_of_another_library_gets_what_it_is_here(name: str, tmp_path: Path) -> None:
    assert name not in inspect.signature(ds.init).parameters
    with pytest.raises(InvalidTypeError) as caught:
        ds.init(tmp_path, **{name: 1})
    assert f"init has no argument {name!r}; {ARGUMENTS[name]} (docs/coming-from.md)" == str(caught.value)


def test_other_arguments_get_the_nearest_name() -> None:
    refused(
        InvalidTypeError,
        (lambda: ds.init("a", nam="x"), "did you mean name?"),
        (lambda: ds.init("a", xyz=1), "its arguments are run_dir, watch"),
        (lambda: ds.init(config={}), 'init needs run_dir, the directory of the run; write init\\("runs/a"'),
    )


def test_a_name_of_another_library_gets_what_it_is_here() -> None:
    run = ds.Run()
    assert not {*ATTRIBUTES}.intersection(dir(run))
    assert not {*PACKAGE}.intersection(dir(ds))
    refused(
        AttributeError,
        (lambda: run.finish, r"Run has no attribute 'finish'; here it is run.close\(\)"),
        (lambda: run.log_metric, r"here it is run.log\(loss=loss\)"),
        (lambda: run.summry, "did you mean summary?"),
        (lambda: run.qqq, "Run has no attribute 'qqq'$"),
        (lambda: run._nothing, "Run has no attribute '_nothing'$"),
        (lambda: ds.finish, r"has no attribute 'finish'; here it is run.close\(\)"),
        (lambda: ds.qqq, "has no attribute 'qqq'$"),
    )
    run.close()


def test_the_doors_of_unmodified_scripts_take_names_and_definitions() -> None:
    chosen = read_options('{"name": "a", "tags": ["b"], "define": {"loss": {"best": "min"}}}')
    assert chosen == {"name": "a", "tags": ["b"], "define": {"loss": {"best": "min"}}}
