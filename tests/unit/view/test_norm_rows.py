"""Maps of parameters and steps: what is reduced keeps its extremes, what is not finite is named."""

import numpy as np
import pytest

import distsummary as ds
from distsummary.format.norms import ParameterNorms, ParameterTable
from distsummary.format.records import Value
from distsummary.view.norm_rows import module_rows, norms
from distsummary.view.packing import embedded
from tests.unit.runs.recording import record


def of(names, **columns):
    """Norms of parameters: `weight`, `gradient`, `update` and counts, which are 1 or 0 if not given."""
    n = len(names)
    table = ParameterTable(tuple(names), ((4,),) * n, (4,) * n, (0,) * n)
    given = {name: np.asarray(column, np.float64) for name, column in columns.items()}
    weight, gradient, update = (
        given.get(name, np.full(n, default))
        for name, default in (("weight", 1.0), ("gradient", 1.0), ("update", np.nan))
    )
    counts = [given.get(f"{name}_nonfinite", np.zeros(n)).astype(np.int64) for name in ("weight", "gradient")]
    has = ~np.isnan(gradient) | (counts[1] > 0)
    sums = np.where(has, gradient**2, 0.0)
    found = ParameterNorms(table, weight**2, sums, has, *counts, update**2, update.astype(np.float32))
    return [Value("norms", "zz_norms", found)]


def test_a_small_run_has_a_cell_for_each_parameter_and_step(tmp_path):
    def values(step, rank):
        return of(
            ["w", "b"],
            weight=[2, 4],
            gradient=[step, np.nan],
            update=[np.nan, 8] if step == 3 else [1, np.nan],
        )

    record(tmp_path, steps=[1, 2, 3], values=values)
    found = norms(ds.open_run(tmp_path))
    assert (found["labels"], found["first_steps"].tolist(), found["rank"]) == (["w", "b"], [1, 2, 3], None)
    maps = {name: one["values"].tolist() for name, one in found["maps"].items()}
    nan = pytest.approx(np.nan, nan_ok=True)
    assert maps == {
        "gradient": [[1, 2, 3], [nan] * 3],
        "weight": [[2, 2, 2], [4, 4, 4]],
        "update": [[1, 1, nan], [nan, nan, 8]],
        "ratio": [[0.5, 0.5, nan], [nan, nan, 2]],
    }
    assert found["first_bad"] is found["bad"] is None


def test_of_many_parameters_and_steps_each_extreme_is_exact_and_the_first_nan_is_named(tmp_path):
    names = [f"layers.{layer}.{part}.weight" for layer in range(250) for part in ("q", "k", "v", "o")]
    noise = np.random.default_rng(0)

    def values(step, rank):
        gradient = noise.uniform(1, 2, 1000)
        counts = np.zeros(1000)
        if step == 151:
            gradient[402] = 77.123456
        if step == 152:
            gradient[401] = 0.0012345
        if step == 300:
            gradient[601:700], counts[601:700] = np.nan, 3
        return of(names, gradient=gradient, gradient_nonfinite=counts)

    record(tmp_path, steps=range(1, 401), values=values)
    found = norms(ds.open_run(tmp_path))
    rows, columns = len(found["labels"]), found["first_steps"].size
    assert rows * columns <= 28_000
    assert (sum(found["sizes"]), found["parameters"], found["steps"]) == (1000, 1000, 400)
    [row] = [place for place, end in enumerate(np.cumsum(found["sizes"])) if end - 402 in range(1, 9)]
    assert found["labels"][row] == "layers.100.* to layers.101.*"
    gradient = found["maps"]["gradient"]
    for end, value, step, name in (
        ("highest", 77.123456, 151, "layers.100.v.weight"), ("lowest", 0.0012345, 152, "layers.100.k.weight")
    ):  # fmt: skip
        one = gradient[end]
        reported = one["values"][row], one["steps"][row], found["names"][one["names"][row]]
        assert reported == (np.float32(value), step, name)
    column = np.searchsorted(found["first_steps"], 151, "right") - 1
    assert gradient["values"][row, column] == pytest.approx(77.123456, rel=1e-3)
    assert found["first_steps"][column] + gradient["at_step"][row, column] == 151
    assert (
        found["names"][found["first_name"][row] + gradient["at_name"][row, column]] == "layers.100.v.weight"
    )
    assert found["first_bad"] == {
        "step": 300, "name": "layers.150.k.weight", "kind": "gradient", "elements": 3, "others": 98
    }  # fmt: skip
    bad_rows, bad_columns = np.nonzero(found["bad"])
    assert {*bad_columns} == {np.searchsorted(found["first_steps"], 300, "right") - 1}
    assert np.nanmax(found["maps"]["nonfinite"]["values"]) == 3
    assert bad_rows.size == np.isfinite(found["maps"]["nonfinite"]["values"]).sum()
    assert sum(map(len, embedded(found))) < 400_000


def test_cells_have_no_names_if_these_are_too_long_together(tmp_path):
    names = [f"model.decoder.layers.{layer:05d}.self_attention.weight" for layer in range(10_000)]
    noise = np.random.default_rng(0)
    record(tmp_path, steps=range(1, 41), values=lambda *_: of(names, gradient=noise.uniform(1, 2, 10_000)))
    found = norms(ds.open_run(tmp_path))
    gradient = found["maps"]["gradient"]
    assert gradient["at_name"] is None
    assert len(found["names"]) < len(names)
    for row, end in enumerate(np.cumsum(found["sizes"])):
        number = int(found["names"][gradient["highest"]["names"][row]].split(".")[3])
        assert end - found["sizes"][row] <= number < end


def test_parameters_of_a_later_attempt_have_rows_and_names_may_be_anything(tmp_path):
    nasty = "</script><b>\"'&\u2028é" + "x" * 1024
    record(tmp_path, steps=[1, 2], values=lambda step, rank: of(["a"]))
    record(tmp_path, steps=[3, 4], attempt=1, values=lambda step, rank: of(["a", nasty], weight=[1, np.inf]))
    found = norms(ds.open_run(tmp_path))
    assert found["labels"][0] == "a"
    assert found["labels"][1].startswith("</script><b>")
    assert len(found["labels"][1]) <= 300
    assert np.isnan(found["maps"]["gradient"]["values"]).tolist() == [[False] * 4, [True, True, False, False]]
    assert (found["first_bad"]["step"], found["first_bad"]["kind"]) == (3, "weight")


def test_before_a_merge_the_norms_are_those_that_the_lowest_rank_holds(tmp_path):
    for rank in range(2):
        record(tmp_path, rank=rank, ranks=2, values=lambda step, rank: of(["a"], weight=[rank + 5]))
    found = norms(ds.open_run(tmp_path))
    assert (found["rank"], found["maps"]["weight"]["highest"]["values"].tolist()) == (0, [5])


def test_a_run_without_norms_has_no_maps(tmp_path):
    record(tmp_path)
    assert norms(ds.open_run(tmp_path)) is None


def test_rows_are_modules_that_are_divided_alike_as_far_as_there_is_room():
    names = [
        "embed.weight",
        *(f"layers.{n}.{part}.{p}" for n in range(3) for part in ("q", "k") for p in "wb"),
        "head",
    ]

    def labels(limit):
        rows = module_rows(names, limit)
        assert [row.start for row in rows] == [0, *(row.end for row in rows[:-1])]
        assert rows[-1].end == len(names)
        return [row.label for row in rows]

    layers = [f"layers.{n}.*" for n in range(3)]
    assert labels(14) == names
    assert labels(8) == [
        "embed.weight",
        *(f"layers.{n}.{part}.*" for n in range(3) for part in ("q", "k")),
        "head",
    ]
    assert labels(6) == ["embed.weight", *layers, "head"]
    assert len(labels(2)) <= 2
    assert len(module_rows([f"p{n}" for n in range(999)], 100)) <= 100
    assert module_rows(["a.b.c.w", "a.b.c.b"], 1)[0].label == "a.b.c.*"
