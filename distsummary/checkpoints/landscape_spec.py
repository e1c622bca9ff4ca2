"""MindSpore's `collect_landscape` argument: which checkpoints a training saves for its landscapes."""

from dataclasses import dataclass

from distsummary.base.checks import check_choice, check_int, check_keys, check_type
from distsummary.errors import InvalidTypeError, InvalidValueError

UNITS = ("step", "epoch")
MIN_SIZE, MAX_SIZE = 3, 256
MIN_INTERVAL = 3

_KEYS = ("landscape_size", "unit", "num_samples", "create_landscape", "intervals")


@dataclass(frozen=True, slots=True, kw_only=True)
class LandscapeSpec:
    """Which checkpoints a training saves, and which landscapes are drawn from them.

    Checkpoints are saved at the steps or epochs (see `unit`) in `intervals`. `create_train` requests one
    landscape per interval, `create_result` one around the last checkpoint. A landscape has `landscape_size`
    points along each side; each point is evaluated on `num_samples` samples of the data set.
    """

    intervals: tuple[tuple[int, ...], ...]
    unit: str = "step"
    num_samples: int = 2048
    landscape_size: int = 40
    create_train: bool = True
    create_result: bool = True

    @property
    def numbers(self) -> tuple[int, ...]:
        """The steps or epochs of all intervals, ascending, without duplicates."""
        return tuple(sorted({number for interval in self.intervals for number in interval}))


# MindSpore's default: up to 19 checkpoints.
DEFAULT_SPEC = LandscapeSpec(intervals=(tuple(range(1, 10)), tuple(range(10, 20))))


def check_collect_landscape(value: object) -> LandscapeSpec | None:
    """Check MindSpore's `collect_landscape` argument; None and {} mean that nothing is saved.

    A missing `create_landscape`, or a missing key in it, means True. Raises InvalidTypeError or
    InvalidValueError where MindSpore raises TypeError or ValueError.
    """
    check_type("collect_landscape", value, dict, optional=True)
    if not isinstance(value, dict) or not value:
        return None
    check_keys("collect_landscape", value, _KEYS)
    size, unit = value.get("landscape_size", 40), value.get("unit", "step")
    num_samples, create = value.get("num_samples", 2048), value.get("create_landscape", {})
    size = check_int("collect_landscape['landscape_size']", size, low=MIN_SIZE, high=MAX_SIZE)
    check_type("collect_landscape['unit']", unit, str)
    check_choice("collect_landscape['unit']", unit, UNITS)
    num_samples = check_int("collect_landscape['num_samples']", num_samples)

    field = "collect_landscape['create_landscape']"
    check_type(field, create, dict)
    check_keys(field, create, ("train", "result"))
    for key, flag in create.items():
        check_type(f"{field}[{key!r}]", flag, bool)

    field, intervals = "collect_landscape['intervals']", value.get("intervals")
    if intervals is None:
        raise InvalidTypeError(f"{field} is required: a list of lists of {unit}s, such as [[1, 2, 3]]")
    check_type(field, intervals, list)
    for index, interval in enumerate(intervals):
        check_type(f"{field}[{index}]", interval, list)
        if len(interval) < MIN_INTERVAL:
            raise InvalidValueError(
                f"{field}[{index}] must have at least {MIN_INTERVAL} {unit}s, because three checkpoints "
                f"determine a plane, got {interval!r}"
            )
        # MindSpore accepts a bool here, but nowhere else.
        for item in interval:
            check_int(f"an item of {field}[{index}]", int(item) if isinstance(item, bool) else item)

    return LandscapeSpec(
        intervals=tuple(tuple(map(int, interval)) for interval in intervals),
        unit=unit,
        num_samples=num_samples,
        landscape_size=size,
        create_train=create.get("train", True),
        create_result=create.get("result", True),
    )
