"""The data that is recorded: values, events of values, batches of events, and the health of their writers."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.format.own_tags import is_own

NORMS = "norms"  # of every parameter at a step, see `format/norms.py`; not for users
SUMMARY_PLUGINS = ("scalar", "tensor", "histogram", "image", "landscape", "text", "audio", "pr_curve", NORMS)
LINEAGE_PLUGINS = ("dataset_graph", "train_lineage", "eval_lineage", "custom_lineage_data")
PLUGINS = (*SUMMARY_PLUGINS, "graph", *LINEAGE_PLUGINS)
# Kinds that users name -> how they are recorded.
RECORDED_AS = {"figure": "image", "video": "image", "confusion_matrix": "image", "table": "text"}
GIVEN_PLUGINS = (*(plugin for plugin in PLUGINS if plugin != NORMS), *RECORDED_AS)
HPARAMS = "hparams"
CUSTOM_SCALARS = "custom_scalars"
TENSORBOARD_EVENT = "tensorboard_event"  # a whole event that TensorBoard's own code has made
# For the pages of TensorBoard with these names; not for users, and not in MindSpore's dialect.
TENSORBOARD_PLUGINS = (HPARAMS, CUSTOM_SCALARS, TENSORBOARD_EVENT)
MINDSPORE = "mindspore"
TENSORBOARD = "tensorboard"
DIALECTS = (MINDSPORE, TENSORBOARD)

# What the acknowledgement of an event guarantees. QUEUED: only that it is in a queue in memory; if writing it
# fails, it is dropped, not retried. WRITTEN: it survives the death of any process. SYNCED: also a power cut.
QUEUED = "queued"
WRITTEN = "written"
SYNCED = "synced"
DELIVERIES = (QUEUED, WRITTEN, SYNCED)

MAX_TAG_BYTES = 1024
# The rows of a PR curve, float32 (6, T): how many samples are what at each of T thresholds from 0 to 1, and
# what follows of it.
CURVE_ROWS = (
    "true_positives", "false_positives", "true_negatives", "false_negatives", "precision", "recall",
)  # fmt: skip
BULK_PLUGINS = frozenset(("tensor", "histogram", "image", "graph", "landscape", "text", "audio", "pr_curve"))
REMOVABLE_PLUGINS = BULK_PLUGINS - {"graph", "landscape"}  # of which old values may make room for new ones
SIZED_PLUGINS = BULK_PLUGINS | {NORMS, TENSORBOARD_EVENT}  # whose data take more memory than a number

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A slice of a tensor that is split over the mesh; sizes and offsets are in elements along each axis."""

    global_shape: tuple[int, ...]
    offset: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """B bins: `left` and `width` float64 (B,), `counts` int64 (B,). min, max, sum are of the finite values.

    `count` includes the non-finite values. Without finite values B is 0 and min, max and sum are None. If the
    bins are TensorBoard's fixed buckets (`histogram.fixed_edges`), `first_fixed` is the number of the first.
    """

    left: Array
    width: Array
    counts: Array
    count: int
    nan_count: int = 0
    pos_inf_count: int = 0
    neg_inf_count: int = 0
    min: float | None = None
    max: float | None = None
    sum: float | None = None
    first_fixed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An encoded picture; height and width are in pixels, and colorspace 3 is RGB."""

    height: int
    width: int
    encoded: bytes
    colorspace: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """An encoded sound of `frames` samples for each of its channels, `rate` of them a second."""

    rate: float
    channels: int
    frames: int
    encoded: bytes
    content_type: str = "audio/wav"

    @property
    def nbytes(self) -> int:
        """The size of the encoded sound in bytes."""
        return len(self.encoded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """A loss grid: axes `x` (n,) and `y` (m,), losses `z` (m, n); `path_*` (k,) is a path on it, or empty."""

    x: Array
    y: Array
    z: Array
    decomposition: str  # "PCA" or "Random"
    unit: str  # "step" or "epoch"
    step_per_epoch: int
    convergence_point: tuple[float, float, float]
    intervals: tuple[int, ...] = ()
    path_x: Array = field(default_factory=lambda: np.empty(0))
    path_y: Array = field(default_factory=lambda: np.empty(0))
    path_z: Array = field(default_factory=lambda: np.empty(0))


class Value(NamedTuple):
    """One value of one event.

    The plugin determines what `data` is. scalar: a float; tensor: an array; histogram: an array or a
    Histogram; image: an array with one of `png.LAYOUTS`, or an Image; landscape: a Landscape; text: a
    str; audio: an Audio; pr_curve: an array with `CURVE_ROWS`; norms: a `norms.ParameterNorms`; graph: the
    bytes of a GraphProto; tensorboard_event: the bytes of an Event of TensorBoard; lineage plugins and those
    of TensorBoard's pages: their protobuf message. Until a writer thread resolves `data`, it may also be any
    object with `result()` (a device copy in progress).

    `description` is what TensorBoard shows with a histogram or image, that of the first one of a tag. It is
    in no other dialect, and readers of this package leave it out.
    """

    plugin: str
    tag: str
    data: Any
    shard: Shard | None = None
    description: str = ""


def is_part(value: Value) -> bool:
    """Whether a value is a rank's part of a whole, which a merge puts together from all ranks."""
    return value.shard is not None or value.plugin == NORMS


def is_removable(value: Value) -> bool:
    """Whether `keep_bytes` may remove a value; not a text of our own, of which there are few."""
    return value.plugin in REMOVABLE_PLUGINS and not (value.plugin == "text" and is_own(value.tag))


class Event(NamedTuple):
    """The values of one `record()` call; `wall_time` is in seconds since the epoch.

    Before events are written, `split_event` gives each graph, lineage value or value for one of TensorBoard's
    pages an event of its own.
    """

    step: int
    wall_time: float
    values: list[Value]


class Scalars(NamedTuple):
    """Consecutive events that hold only scalars of the same tags; packed, without an object for each value.

    `rows` has one row for each event: f64 wall_time | i64 step | one f64 for each tag; all little-endian.
    """

    tags: tuple[str, ...]
    rows: bytes

    @property
    def size(self) -> int:
        """The number of events."""
        return len(self.rows) // (16 + 8 * len(self.tags))


class EventIds(NamedTuple):
    """The identity of an event: `run_id` has 16 hex digits; `seq` counts from 1, a `seq` of 0 means none."""

    run_id: str
    attempt: int
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Consecutive events of one writer, numbered first_seq, first_seq + 1, ... (seq counts from 1)."""

    run_id: str
    attempt: int
    rank: int
    first_seq: int
    events: Sequence[Event | Scalars]

    @property
    def size(self) -> int:
        """The number of events."""
        return sum(1 if isinstance(item, Event) else item.size for item in self.events)

    @property
    def last_seq(self) -> int:
        """The seq of the last event."""
        return self.first_seq + self.size - 1

    @property
    def first_step(self) -> int:
        """The step of the first event, 0 for an empty batch."""
        for item in self.events[:1]:
            return (
                item.step
                if isinstance(item, Event)
                else int.from_bytes(item.rows[8:16], "little", signed=True)
            )
        return 0

    def plugins(self) -> Counter[str]:
        """The number of values of each plugin."""
        counted: Counter[str] = Counter()
        for item in self.events:
            if isinstance(item, Event):
                counted.update(value.plugin for value in item.values)
            else:
                counted["scalar"] += item.size * len(item.tags)
        return counted


def nbytes_of(data: Any) -> int:
    """The bytes of memory that an array, a device copy, a text or bytes take; 0 for any other data."""
    return sys.getsizeof(data) if isinstance(data, str | bytes) else int(getattr(data, "nbytes", 0))


def split_event(event: Event) -> list[Event]:
    """Split an event into events of one frame each: one per graph or lineage value, one for the rest."""
    alone = [value for value in event.values if value.plugin not in SUMMARY_PLUGINS]
    summary = [value for value in event.values if value.plugin in SUMMARY_PLUGINS]
    singles = [Event(event.step, event.wall_time, [value]) for value in alone]
    return [*singles, Event(event.step, event.wall_time, summary)] if summary else singles
