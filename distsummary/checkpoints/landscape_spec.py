"""What to keep of a training for its landscapes: MindSpore's `collect_landscape`, checked."""

from dataclasses import dataclass

from distsummary.checks import check_choice, check_int, check_keys, check_type
from distsummary.errors import InvalidTypeError, InvalidValueError

UNITS = ("step", "epoch")
MIN_SIZE, MAX_SIZE = 3, 256
MIN_INTERVAL = 3

_KEYS = ("landscape_size", "unit", "num_samples", "create_landscape", "intervals", "sketch")


@dataclass(frozen=True, slots=True, kw_only=True)
class LandscapeSpec:
    """Which checkpoints to keep (`intervals`, in `unit`s counted from 1) and what to draw of them.

    `landscape_size` points along each side of the grid, `num_samples` of the data set per point;
    `create_train` draws one landscape per interval, `create_result` one around the last checkpoint.
    `sketch` keeps a sketch (64 kB) of every so many steps: 0 leaves it to the costs, None keeps none.
    """

    intervals: tuple[tuple[int, ...], ...]
    unit: str = "step"
    num_samples: int = 2048
    landscape_size: int = 40
    create_train: bool = True
    create_result: bool = True
    sketch: int | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """The steps or epochs of all intervals, ascending, each once."""
        return tuple(sorted({number for interval in self.intervals for number in interval}))


# MindSpore's default, which costs a training up to 19 checkpoints.
DEFAULT_SPEC = LandscapeSpec(intervals=(tuple(range(1, 10)), tuple(range(10, 20))))


def check_collect_landscape(value: object) -> LandscapeSpec | None:
    """The spec that MindSpore's `collect_landscape` argument asks for; None and {} ask for nothing.

    A missing `create_landscape`, or a missing key in it, means True. Raises InvalidTypeError or
    InvalidValueError where MindSpore raises TypeError or ValueError. The key `sketch` is not one of its own:
    True keeps sketches of as many steps as cost a hundredth of the training's time, a number n one of every
    n-th step. With it `intervals` may be missing: then no whole checkpoint is kept.
    """
    check_type("collect_landscape", value, dict, optional=True)
    if not isinstance(value, dict) or not value:
        return None
    check_keys("collect_landscape", value, _KEYS)
    size = value.get("landscape_size", 40)
    check_int("collect_landscape['landscape_size']", size, low=MIN_SIZE, high=MAX_SIZE)
    unit = value.get("unit", "step")
    check_choice("collect_landscape['unit']", unit, UNITS)
    num_samples = value.get("num_samples", 2048)
    check_int("collect_landscape['num_samples']", num_samples)
    create = _check_create(value.get("create_landscape", {}))
    sketch = _check_sketch(value.get("sketch", False))
    return LandscapeSpec(
        intervals=_check_intervals(value.get("intervals", None if sketch is None else [])),
        sketch=sketch,
        unit=unit,
        num_samples=num_samples,
        landscape_size=size,
        create_train=create.get("train", True),
        create_result=create.get("result", True),
    )


def _check_sketch(value: object) -> int | None:
    """How many steps apart; 0 for as the costs allow, None for no sketches."""
    if isinstance(value, bool):
        return 0 if value else None
    check_int("collect_landscape['sketch'] (or True)", value, low=1)
    assert isinstance(value, int)
    return value


def _check_create(value: object) -> dict[str, bool]:
    field = "collect_landscape['create_landscape']"
    check_type(field, value, dict)
    assert isinstance(value, dict)
    check_keys(field, value, ("train", "result"))
    for key, flag in value.items():
        check_type(f"{field}[{key!r}]", flag, bool)
    return value


def _check_intervals(value: object) -> tuple[tuple[int, ...], ...]:
    field = "collect_landscape['intervals']"
    if value is None:
        raise InvalidTypeError(f"{field} is required: a list of lists of numbers, such as [[1, 2, 3]]")
    check_type(field, value, list)
    assert isinstance(value, list)
    return tuple(_check_interval(f"{field}[{index}]", interval) for index, interval in enumerate(value))


def _check_interval(field: str, value: object) -> tuple[int, ...]:
    check_type(field, value, list)
    assert isinstance(value, list)
    if len(value) < MIN_INTERVAL:
        raise InvalidValueError(
            f"{field} must have at least {MIN_INTERVAL} numbers, got {value!r}; a plane takes three points"
        )
    for item in value:
        check_type(f"an item of {field}", item, (int, bool))  # MindSpore lets a bool pass here, and only here
    return tuple(map(int, value))
