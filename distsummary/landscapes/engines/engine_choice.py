"""Lists the engines (ways to evaluate losses) worth timing, and picks one by the timings. Pure functions."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from distsummary.base.checks import check_choice, check_keys, check_type, set_ints
from distsummary.errors import InvalidValueError, LandscapeError

ENGINES = ("naive", "row", "graph", "inference")
OPTIONS = ("channels_last", "compile", "cuda_graph")
EXACT = 5e-6  # the relative error that an engine may have
LOOSE = 1e-2  # the same if the user requests reduced precision, such as bf16
MAX_CHUNK = 64
MAX_CHUNKED_S = 0.02  # on a CPU, evaluating points together gains nothing if a point takes longer
# Elements of the varied parameters; with more of them, the graph engine saves little time, and it needs some
# 40 bytes of memory per element.
MAX_RECORDED = 100_000_000
LEAST_GAIN = 0.08  # the share of time that a candidate must save to replace a simpler one
NOISE = 0.3  # relative difference of two timings of equal work, seconds apart, on a shared machine
LEAST_PLAN_S = 1.0  # for landscapes shorter than this, timing engines does not pay
PLAN_SHARE = 0.02  # timing may take this share of the landscape's time
LEAST_BUDGET_S = 0.5  # timing may always take this long
COMPILE_S = 7.0  # CPU time of torch.compile: 2 to 7 measured, and 15 to 37 the first time on a machine
COMPILE_SHARE = 0.1  # compiling may take this share of the landscape's time


class MemoryTooSmallError(LandscapeError):
    """Internal: an engine ran out of memory; the runner catches this error and continues with `smaller`."""

    def __init__(self, message: str, smaller: "EngineChoice") -> None:
        # Both arguments are passed on, so that the error can be pickled.
        super().__init__(message, smaller)
        self.smaller = smaller

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """An engine and its settings. On equal hardware, equal choices give the same results, bit for bit.

    Attributes:
        engine: "naive", "row", "graph" or "inference", see `torch_engines`.
        chunk: points evaluated together; a row may be divided only at multiples of this number.
        options: some of OPTIONS, in that order.
        precision_error: the measured relative error of the losses if reduced precision was requested, else 0.
    """

    engine: str = "row"
    chunk: int = 1
    options: tuple[str, ...] = ()
    precision_error: float = 0.0

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ENGINES)
        set_ints(self, chunk={"low": 1})
        check_type("options", self.options, tuple)
        for option in self.options:
            check_choice("options", option, OPTIONS)
        if self.chunk > 1 and self.engine != "graph":
            raise InvalidValueError(f"chunk must be 1 for the engine {self.engine!r}, got {self.chunk}")
        if self.options and self.engine == "inference":
            raise InvalidValueError(f"options must be empty for the engine 'inference', got {self.options}")
        if {"compile", "cuda_graph"} <= set(self.options):
            raise InvalidValueError(
                "options must not hold both compile and cuda_graph; leave out one of them"
            )

    @property
    def label(self) -> str:
        """The name of the engine in a grid, such as "torch-graph x16 channels_last"."""
        chunk = [f"x{self.chunk}"] if self.chunk > 1 else []
        return " ".join([f"torch-{self.engine}", *chunk, *self.options])

    @classmethod
    def from_label(cls, label: str) -> "EngineChoice":
        """The choice with this label, such as a grid's `engine`; "row" is short for "torch-row".

        Raises InvalidValueError for a label that names no engine.
        """
        engine, *more = label.removeprefix("torch-").split() or [label]
        chunk = 1
        if more and more[0].startswith("x") and more[0][1:].isdecimal():
            chunk = int(more.pop(0)[1:])
        return cls(engine=engine, chunk=chunk, options=tuple(more))

    def smaller(self) -> "EngineChoice | None":
        """The choice to try after memory ran out; None if no engine needs less memory.

        The chunk is halved as long as possible; then come the row engine and the inference engine.
        """
        if self.chunk > 1:
            return replace(self, chunk=self.chunk // 2)
        if self.engine == "graph":
            # The row engine has no graph that could be compiled or captured.
            kept = tuple(option for option in self.options if option == "channels_last")
            return replace(self, engine="row", options=kept)
        return replace(self, engine="inference", options=()) if self.engine == "row" else None

    def to_dict(self) -> dict[str, Any]:
        """The fields as a dict, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "EngineChoice":
        """The choice that `to_dict` saved; raises InvalidTypeError or InvalidValueError for anything else."""
        check_keys("the engine choice", saved, list(cls.__dataclass_fields__))
        return cls(**{**saved, "options": tuple(saved.get("options", ()))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The seconds that a candidate takes per point and for its setup; CPU time if it computes on a CPU.

    `error` is the largest relative difference of its losses from the row engine's.
    """

    point_s: float
    setup_s: float = 0.0
    error: float = 0.0


def candidates(
    columns: int,
    point_s: float,
    *,
    parameters: int = 0,
    on_gpu: bool = False,
    has_pictures: bool = False,
) -> list[EngineChoice]:
    """The engines worth timing besides the row engine, for rows of `columns` points; most promising first.

    `point_s` is the row engine's time per point, `parameters` the number of elements that vary. Engines with
    chunk > 1 do not get channels_last: vmap makes grouped convolutions, which are slower in that layout.
    """
    layout = ("channels_last",) if has_pictures else ()
    if parameters > MAX_RECORDED:
        return [EngineChoice(options=layout)] if layout else []
    found = [EngineChoice(engine="graph", options=layout)]
    if on_gpu:
        found.append(EngineChoice(engine="graph", options=(*layout, "cuda_graph")))
    if on_gpu or point_s <= MAX_CHUNKED_S:
        found += [EngineChoice(engine="graph", chunk=n) for n in chunks(columns, on_gpu=on_gpu)]
    if has_pictures:
        found += [EngineChoice(engine="row", options=layout), EngineChoice(engine="graph")]
    return found


def compile_candidate(
    timings: Mapping["EngineChoice", "Timing"], points: int, columns: int, *, has_pictures: bool = False
) -> EngineChoice | None:
    """The engine to compile on a CPU, given the timings of other engines; None if compiling cannot pay.

    The compiled engine evaluates several points at once: torch.compile fuses the operations that vmap makes
    of the recorded loss.
    """
    row_s = next(iter(timings.values())).point_s
    best_s = min(timing.point_s for timing in timings.values())
    sizes = chunks(columns, on_gpu=False)[:2]
    if not sizes or row_s > MAX_CHUNKED_S or COMPILE_SHARE * points * best_s < COMPILE_S:
        return None
    return EngineChoice(
        engine="graph",
        chunk=sizes[-1],
        options=("channels_last", "compile") if has_pictures else ("compile",),
    )


def chunks(columns: int, *, on_gpu: bool) -> list[int]:
    """The chunk sizes worth timing: each divides a row of `columns` points evenly and is at most MAX_CHUNK.

    The most promising size is first. On a CPU this is not the whole row, since the intermediate results of so
    many points often exceed the caches.
    """
    parts = (1, 2) if on_gpu else (2, 3, 6, 1)
    least = math.ceil(columns / MAX_CHUNK)
    return [math.ceil(columns / (least * n)) for n in parts if columns >= 2 * least * n]


def choose(timings: Mapping[EngineChoice, Timing], points: int, *, tolerance: float = EXACT) -> EngineChoice:
    """The fastest candidate for `points` points, among those with an error of at most `tolerance`.

    A later candidate must save the share LEAST_GAIN to replace an earlier one. The first is the row engine,
    whose error is 0.
    """
    best, best_s = next(iter(timings)), math.inf
    for choice, timing in timings.items():
        total_s = timing.setup_s + points * timing.point_s
        if timing.error <= tolerance and total_s < best_s * (1 - LEAST_GAIN):
            best, best_s = choice, total_s
    return best


def close(timings: Mapping[EngineChoice, Timing]) -> list[EngineChoice]:
    """The candidates to time again: they are slower than the fastest by no more than noise can explain."""
    best_s = min(timing.point_s for timing in timings.values())
    found = [choice for choice, timing in timings.items() if timing.point_s <= best_s * (1 + NOISE)]
    return found if len(found) > 1 else []


def piece(choice: EngineChoice | None, least: int) -> int:
    """How many points of a row a worker gets per call: at least `least`, and a multiple of the chunk."""
    chunk = choice.chunk if choice else 1
    return -(-least // chunk) * chunk


def budget_s(points: int, point_s: float) -> float:
    """The seconds that timing may take; 0 if the landscape is too short for timing to pay."""
    total_s = points * point_s
    return max(LEAST_BUDGET_S, PLAN_SHARE * total_s) if total_s >= LEAST_PLAN_S else 0.0
