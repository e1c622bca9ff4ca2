"""The records in the small files of a run, with the bounds of their fields: only these pass `checked_json`.

A reader of a file can rely on every field of its record. Keys that a record does not name are kept: a newer
version may have written them.
"""

from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

from msgspec import Meta

MOST_RANKS = 1 << 20
MOST_WHOLE = (1 << 63) - 1
MOST_S = 253_402_300_799  # seconds since the epoch: the end of the year 9999

Whole = Annotated[int, Meta(ge=0, le=MOST_WHOLE)]
Positive = Annotated[int, Meta(ge=1, le=MOST_WHOLE)]
Rank = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
WorldSize = Annotated[int, Meta(ge=1, le=MOST_RANKS)]
Time = Annotated[float, Meta(ge=0, le=MOST_S)]  # in seconds since the epoch
Span = Annotated[float, Meta(ge=0, le=MOST_S)]  # in seconds or milliseconds
Role = Annotated[str, Meta(pattern="^[a-z_]{1,32}$")]  # a part of paths
AttemptKey = Annotated[str, Meta(pattern="^[0-9]{1,18}$")]  # of a dict by attempts
Counter = int | float | str | bool | None


class ProcessRecord(TypedDict):
    """A process, for `processes.is_alive`."""

    pid: Whole
    pid_space: str
    pid_start: str


class FirstRecord(ProcessRecord):
    """The rank that began an attempt."""

    rank: Rank
    host: NotRequired[str]
    session: NotRequired[str]
    source: NotRequired[str]


class AggregatorRecord(ProcessRecord):
    """The process that merges the run."""

    host: NotRequired[str]


class ReservationRecord(ProcessRecord):
    """The job that will train in the run, and the first of its processes that asked."""

    job: str
    host: NotRequired[str]


class NoteRecord(TypedDict):
    """The rank whose own a directory is, of how many, and a hash of what names their job."""

    rank: Rank
    world_size: WorldSize
    job: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class DeathRecord(TypedDict):
    """Why a rank died, as its launcher saw it."""

    reason: str
    time: Time
    state: NotRequired[str]


class FailureRecord(TypedDict):
    """A failure that the launcher saw."""

    rank: Rank
    error: str
    time: NotRequired[Time]


class ProvenanceRecord(TypedDict, total=False):
    """Where the code of an attempt came from."""

    git: dict[str, Any] | None
    versions: dict[str, Any] | None
    python: str | None
    platform: str | None


class DealRecord(TypedDict):
    """See `deal.Deal`."""

    version: Whole
    total: Whole | None
    groups: list[list[Rank]]
    since: Whole


class AttemptRecord(TypedDict):
    """An attempt in run.json."""

    role: Role
    attempt: Whole
    incarnation: str
    world_size: WorldSize
    started: NotRequired[Time]
    first: NotRequired[FirstRecord]
    deaths: NotRequired[dict[str, DeathRecord]]
    failure: NotRequired[FailureRecord | None]
    evaluated: NotRequired[list[Rank]]
    deals: NotRequired[list[DealRecord]]
    merged: NotRequired[dict[str, Any]]
    provenance: NotRequired[ProvenanceRecord | None]
    config: NotRequired[dict[str, Any] | None]


class DefinitionRecord(TypedDict):
    """See `definitions.Definition`."""

    across: NotRequired[Annotated[str, Meta(pattern="^(mean|sum|min|max|mean:.+)$")] | None]
    best: NotRequired[Literal["min", "max"] | None]
    unit: NotRequired[str | None]


class RunRecord(TypedDict):
    """run.json."""

    format: int
    run_id: str
    attempts: list[AttemptRecord]
    created: NotRequired[Time]
    state: NotRequired[str]
    nonce: NotRequired[str]
    claimed_by: NotRequired[ReservationRecord]
    name: NotRequired[str]
    group: NotRequired[str | None]
    tags: NotRequired[list[str]]
    notes: NotRequired[str]
    define: NotRequired[dict[str, DefinitionRecord]]
    keep_bytes: NotRequired[Whole | None]
    key_tags: NotRequired[list[str]]
    aggregator: NotRequired[AggregatorRecord]
    merged: NotRequired[dict[str, Any]]


class LabelsRecord(TypedDict, total=False):
    """labels.json: what of a run's labels was changed after it had begun."""

    name: str
    group: str | None
    tags: list[str]
    notes: str


class HeartbeatRecord(TypedDict, total=False):
    """See `deal.Heartbeat`; `time` is that of the file system."""

    time: Time
    step: Whole | None
    phase: str
    step_s: Span
    total: Whole | None
    dropped: Whole
    own_ms: Span | None
    wait_ms: Span | None
    spent_ms: dict[str, Whole]
    memory_gib: Span
    seen: list[tuple[Whole, str, str]]


class RankEntry(ProcessRecord):
    """A rank's entry of an attempt in its manifest.json; with the fields of a Topology."""

    attempt: Whole
    role: Role
    rank: Rank
    world_size: WorldSize
    incarnation: str
    state: str
    host: str
    health: dict[str, Counter]
    heartbeat: HeartbeatRecord
    started: NotRequired[Time | None]
    ended: NotRequired[Time | None]
    error: NotRequired[str | None]
    session: NotRequired[str]
    source: NotRequired[str]
    mesh: NotRequired[dict[str, tuple[Whole, Positive]]]


class RankRecord(TypedDict):
    """The manifest.json of a rank."""

    format: int
    attempts: list[RankEntry]


class FactsRecord(TypedDict):
    """What facts.json holds of an attempt; see `rank_facts.RankFacts`."""

    settings: dict[str, str | None]
    names: list[str]
    groups: dict[str, list[Whole]]
    layouts: dict[str, Whole]


class StepsRecord(TypedDict):
    """See `deal.Steps`."""

    every: Positive
    stop: NotRequired[Whole | None]
    doubling: NotRequired[bool]


class TurnRecord(TypedDict):
    """See `deal.Group`."""

    index: Annotated[int, Meta(ge=-1, lt=MOST_RANKS)]  # -1: a rank that the deal leaves out
    size: Positive


class ShareRecord(TypedDict):
    """See `deal.Share`."""

    values: str
    parameters: list[str]
    steps: StepsRecord
    turn: NotRequired[TurnRecord]


class PartRecord(TypedDict):
    """What parts.json holds of a deal; see `deal.Part`."""

    deal: Whole
    since: Whole
    total: Whole | None
    shares: list[ShareRecord]


class AlertRecord(TypedDict):
    """A line of alerts.jsonl; see `diagnosis.verdict.Verdict`."""

    rank: Rank
    cause: str
    since_step: Whole
    until_step: Whole | None
    evidence: NotRequired[str]
    reported_step: NotRequired[Whole]
    attempt: NotRequired[Whole]
    time: NotRequired[Time]
    lost_s: NotRequired[Span]
    ranks: NotRequired[list[Rank]]
    intervals: NotRequired[list[tuple[Whole, Whole | None]]]
    level: NotRequired[str]
    held: NotRequired[str | None]


class CollectiveRecord(NamedTuple):
    """See `diagnosis.stuck.Collective`."""

    number: Whole
    what: str
    sizes: list[list[Whole]]
    is_pending: bool


class StuckRecord(TypedDict):
    """The stuck.json of a rank; see `diagnosis.stuck.RankReport`."""

    format: int
    is_over: bool
    attempt: NotRequired[Whole]
    rank: NotRequired[Rank]
    step: NotRequired[Whole]
    phase: NotRequired[str]
    late_s: NotRequired[Span | None]
    limit_s: NotRequired[Span | None]
    groups: NotRequired[list[tuple[str, list[Rank], list[CollectiveRecord]]]]
    line: NotRequired[str]
    stack: NotRequired[list[str]]
    recorder: NotRequired[str]
    root: NotRequired[Rank | None]
    is_moving: NotRequired[bool]
    is_cut_off: NotRequired[bool]
