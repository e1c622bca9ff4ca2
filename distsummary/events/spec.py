"""WriterSpec: all settings for writing the event files of one rank."""

import os
import uuid
from dataclasses import dataclass, field

from distsummary.base.at_exit import refuse_greenlets
from distsummary.format.compatibility import OURS, Compatibility
from distsummary.format.records import DIALECTS, WRITTEN

# What happens when a rank gives more values than its writer can write.
WAIT, DROP = "wait", "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large and how old the files of a directory may become; None means no limit.

    `max_file_size` (bytes) is MindSpore's option: after the first event that does not fit, the file accepts
    no more events. With `rotate_bytes` and `rotate_s` (seconds), the writer instead begins new files before
    it writes a batch that would exceed these limits. Of bulk values, the newest `keep_bytes` stay.
    """

    max_file_size: int | None = None
    rotate_bytes: int | None = None
    rotate_s: float | None = None
    keep_bytes: int | None = None

    @property
    def rotates(self) -> bool:
        """Whether new files may become due at all."""
        return any(limit is not None for limit in (self.rotate_bytes, self.rotate_s, self.keep_bytes))

    def is_due(self, length: int, age_s: float, incoming: int) -> bool:
        """Whether new files must begin before `incoming` bytes are written."""
        is_large = self.rotate_bytes is not None and length + incoming > self.rotate_bytes
        return is_large or (self.rotate_s is not None and age_s >= self.rotate_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSpec:
    """The settings of a rank's writers, built once when a run or record is opened; can be pickled.

    Attributes:
        directory: the directory of the files; created if absent.
        run_id: 16 hex digits, by default random. attempt: counts from 0. role, rank: the rank that recorded
            the events, and what it does ("train" or "eval").
        begun: the time (seconds since the epoch) in the first record of each file; by default the time at
            which it is made. TensorBoard sorts runs by it, then by name: ranks of one run share it.
        formats: the kinds of files to write: "mindspore", "tensorboard" or both.
        prefix, suffix: parts of the file names. source: the part that distinguishes the writers of one run,
            by default the rank.
        hides_lineage: for one of several ranks: give the lineage file a name that MindInsight does not see,
            as it takes each directory with lineage for a training of its own.
        shows_norms: for the only rank of a run: in addition to norms, write the scalars that viewers show of
            them (see `norm_totals`); of several ranks, a merge writes them.
        limits: how large and how old the files may become.
        delivery: the guarantee for an acknowledged event. "written": it survives the death of any process;
            "synced": it is durable about a second later, or when a flush returns True; "queued": as
            "written", but an AsyncWriter drops and counts events that its writer does not accept at once.
        compatibility: in what the record follows MindSpore.
        budget_bytes: how many bytes may wait in an AsyncWriter. When the budget is full, bulk values are
            dropped and counted. Other values wait, and with them the caller, as long as the writer gets
            something done; after 2 s without, whole events are dropped and counted until it does. An event
            counts with at most 15/16 of the budget: even one larger than the budget is taken if hardly
            anything else waits, and scalars still find room while it is written.
        overload: "wait", as above; "drop": the caller never waits.
        interval_s: how long an AsyncWriter collects events before it writes them.
        batch_bytes: a batch that reaches this size is written without waiting for `interval_s`.
        retry_s: the pause before a failed write is tried again; it doubles up to five times `retry_s`.
        raise_exception: after a failure in the background, the next call raises it as WriteError.

    Raises UsageError where threads are greenlets, as a writer has a thread of its own.
    """

    directory: str | os.PathLike[str]
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    attempt: int = 0
    role: str = "train"
    rank: int = 0
    begun: float | None = None
    formats: tuple[str, ...] = DIALECTS
    prefix: str = "events"
    suffix: str = "_MS"
    source: str | None = None
    hides_lineage: bool = False
    shows_norms: bool = False
    limits: Limits = Limits()
    delivery: str = WRITTEN
    compatibility: Compatibility = OURS
    budget_bytes: int = 256 << 20
    overload: str = WAIT
    interval_s: float = 0.1
    batch_bytes: int = 1 << 20
    retry_s: float = 0.2
    raise_exception: bool = False

    def __post_init__(self) -> None:
        refuse_greenlets()

    @property
    def writer_name(self) -> str:
        """The part of the file names that distinguishes the writers of one run."""
        return str(self.rank) if self.source is None else self.source
