import json
import pickle
from typing import Any

import pytest

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.landscapes.engines.engine_choice import (
    COMPILE_S,
    COMPILE_SHARE,
    EngineChoice,
    MemoryTooSmallError,
    Timing,
    budget_s,
    candidates,
    choose,
    chunks,
    close,
    compile_candidate,
    piece,
)
from tests.refusals import refused

ROW, GRAPH, CHUNKED = EngineChoice(), EngineChoice(engine="graph"), EngineChoice(engine="graph", chunk=17)


def test_the_fastest_candidate_within_tolerance_is_chosen() -> None:
    timings = {
        ROW: Timing(point_s=10e-3),
        GRAPH: Timing(point_s=4e-3),
        CHUNKED: Timing(point_s=1e-3, error=1e-3),
    }
    assert choose(timings, 1000) == GRAPH
    assert choose(timings, 1000, tolerance=1e-2) == CHUNKED


def test_what_comes_before_the_first_point_counts() -> None:
    timings = {ROW: Timing(point_s=1e-3), GRAPH: Timing(point_s=0.5e-3, setup_s=2.0)}
    assert choose(timings, 1000) == ROW
    assert choose(timings, 100_000) == GRAPH


def test_a_little_gain_does_not_replace_a_simpler_engine() -> None:
    assert choose({ROW: Timing(point_s=1.0), GRAPH: Timing(point_s=0.93)}, 100) == ROW
    assert choose({ROW: Timing(point_s=1.0), GRAPH: Timing(point_s=0.91)}, 100) == GRAPH


def test_candidates_that_are_close_are_timed_again_but_not_one_alone() -> None:
    assert close({ROW: Timing(point_s=1.0), GRAPH: Timing(point_s=0.8), CHUNKED: Timing(point_s=1.1)}) == [
        ROW,
        GRAPH,
    ]
    assert close({ROW: Timing(point_s=1.0), GRAPH: Timing(point_s=0.5)}) == []


def test_chunks_fill_rows_in_equal_parts() -> None:
    assert chunks(51, on_gpu=False) == [26, 17, 9, 51]
    assert chunks(51, on_gpu=True) == [51, 26]
    assert chunks(200, on_gpu=False) == [25, 17, 9, 50]  # four parts, not one of 200
    assert chunks(64, on_gpu=False) == [32, 22, 11, 64]
    assert chunks(65, on_gpu=False) == [17, 11, 6, 33]
    assert chunks(3, on_gpu=False) == [3]
    assert chunks(2, on_gpu=False) == [2]
    assert chunks(1, on_gpu=False) == []


def test_slow_points_are_not_chunked_on_a_cpu() -> None:
    def found(point_s: float, on_gpu: bool) -> set[int]:
        return {c.chunk for c in candidates(51, point_s, on_gpu=on_gpu, has_pictures=False)}

    assert found(1e-3, False) == {1, 9, 17, 26, 51}
    assert found(0.5, False) == {1}
    assert found(0.5, True) == {1, 26, 51}


def test_candidates_fit_the_model_and_the_machine() -> None:
    plain = candidates(21, 1e-3, on_gpu=False, has_pictures=False)
    assert not any(choice.options for choice in plain)
    pictures = candidates(21, 1e-3, on_gpu=False, has_pictures=True)
    assert pictures[0] == EngineChoice(engine="graph", options=("channels_last",))
    assert {EngineChoice(options=("channels_last",)), EngineChoice(engine="graph")} < set(pictures)
    chunked = [(choice.chunk, choice.options) for choice in pictures if choice.chunk > 1]
    assert chunked == [(n, ()) for n in (11, 7, 4, 21)]
    on_gpu = candidates(21, 1e-3, on_gpu=True, has_pictures=True)
    assert [(c.chunk, c.options) for c in on_gpu if c.chunk > 1] == [(21, ()), (11, ())]
    assert EngineChoice(engine="graph", options=("channels_last", "cuda_graph")) in on_gpu
    gpu = candidates(21, 1e-3, on_gpu=True, has_pictures=False)
    assert EngineChoice(engine="graph", options=("cuda_graph",)) in gpu
    assert not any("compile" in choice.options for choice in [*plain, *pictures, *gpu])
    assert candidates(21, 1.0, parameters=10**9) == []
    assert candidates(21, 1.0, parameters=10**9, has_pictures=True) == [
        EngineChoice(options=("channels_last",))
    ]


def test_compiling_is_tried_where_it_takes_a_small_share_of_the_landscape() -> None:
    def asked(points: int, point_s: float = 1e-3, columns: int = 51, **more: bool) -> EngineChoice | None:
        timings = {ROW: Timing(point_s=point_s), CHUNKED: Timing(point_s=point_s / 2)}
        return compile_candidate(timings, points, columns, **more)

    enough = round(COMPILE_S / COMPILE_SHARE / 5e-4)
    assert asked(enough + 1) == EngineChoice(engine="graph", chunk=17, options=("compile",))
    assert asked(enough + 1, has_pictures=True) == EngineChoice(
        engine="graph", chunk=17, options=("channels_last", "compile")
    )
    assert asked(enough - 1) is None
    assert asked(enough, columns=1) is None
    assert asked(enough, point_s=1.0) is None  # such points are evaluated one by one


def test_a_worker_is_given_whole_chunks() -> None:
    assert [piece(None, 32), piece(ROW, 32), piece(CHUNKED, 32), piece(CHUNKED, 34)] == [32, 32, 34, 34]


def test_short_landscapes_are_not_planned() -> None:
    assert budget_s(999, 1e-3) == 0.0
    assert budget_s(1000, 1e-3) == 0.5
    assert budget_s(2601, 1e-3) == 0.5
    assert budget_s(100_000, 1e-2) == pytest.approx(20.0)


def test_a_choice_survives_a_journal() -> None:
    choice = EngineChoice(engine="graph", chunk=8, options=("channels_last",))
    assert EngineChoice.from_dict(json.loads(json.dumps(choice.to_dict()))) == choice
    assert choice.label == "torch-graph x8 channels_last"
    with pytest.raises(InvalidValueError, match="unknown key 'speed'"):
        EngineChoice.from_dict({"speed": 3})


@pytest.mark.parametrize("more", [{}, {"chunk": 17}, {"options": ("channels_last", "compile")}])
def test_a_choice_is_that_of_its_label(more: dict[str, Any]) -> None:
    choice = EngineChoice(engine="graph", **more)
    assert EngineChoice.from_label(choice.label) == choice
    assert EngineChoice.from_label(choice.label.removeprefix("torch-")) == choice


def test_with_less_memory_the_chunk_is_halved_and_at_last_nothing_is_kept() -> None:
    choice, labels = EngineChoice(engine="graph", chunk=5, options=("channels_last", "cuda_graph")), []
    while (smaller := choice.smaller()) is not None:
        choice = smaller
        labels.append(choice.label)
    assert labels == [
        "torch-graph x2 channels_last cuda_graph",
        "torch-graph channels_last cuda_graph",
        "torch-row channels_last",
        "torch-inference",
    ]
    assert EngineChoice(engine="naive").smaller() is None


def test_the_error_for_too_little_memory_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(MemoryTooSmallError("no room", GRAPH)))
    assert (str(error), error.smaller) == ("no room", GRAPH)


def test_choices_that_cannot_be_are_refused() -> None:
    refused(
        InvalidValueError,
        (lambda: EngineChoice(engine="fast"), "engine must be one of"),
        (lambda: EngineChoice.from_label(" "), "engine must be one of .*, got ' '"),
        (lambda: EngineChoice.from_label("torch-"), "engine must be one of .*, got 'torch-'"),
        (lambda: EngineChoice.from_label("graph xtra"), "options must be one of .*, got 'xtra'"),
        (lambda: EngineChoice(engine="row", chunk=2), "chunk must be 1"),
        (lambda: EngineChoice(engine="graph", options=("compile", "cuda_graph")), "leave out one"),
        (lambda: EngineChoice(engine="inference", options=("channels_last",)), "options must be empty"),
    )
    refused(InvalidTypeError, (lambda: EngineChoice(options="compile"), "options must be tuple"))  # type: ignore[arg-type]  # the point
