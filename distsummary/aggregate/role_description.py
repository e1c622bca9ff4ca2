"""What a merged run says about itself apart from its steps: lineage, settings and their end, and a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from distsummary.aggregate.merge_lineage import Conflict, merge_lineage
from distsummary.base.checks import as_unicode
from distsummary.base.guard import guarded_log
from distsummary.base.many_files import read_each
from distsummary.events.reader import read_lineage
from distsummary.format.hparams import session_end, session_start
from distsummary.format.lineage import Lineage, custom_values
from distsummary.format.own_tags import RUN_TEXT
from distsummary.format.records import Value
from distsummary.rundir.run_dir import Manifest, RunDir
from distsummary.rundir.run_text import run_text
from distsummary.rundir.states import AttemptState, read_run

_NAMED = 10  # settings named in a message

logger = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleDescription:
    """What a role of a run says about itself.

    Attributes:
        lineage: that of all ranks. conflicts: fields on which the ranks disagree.
        ranks: how many ranks have a lineage of their training.
        attempt: the newest one; None if it is unknown.
        text: the run as a table in Markdown; empty if there is no such lineage.
    """

    lineage: Lineage
    conflicts: Sequence[Conflict]
    ranks: int
    attempt: AttemptState | None
    text: str

    def values(self, last_s: float) -> list[Value]:
        """The settings for TensorBoard's page HPARAMS, and the text.

        Args:
            last_s: when the last step was recorded, in seconds since the epoch.
        """
        values = []
        if self.lineage.custom is not None and (self.attempt is None or self.attempt.role == "train"):
            values += settings_values(custom_values(self.lineage.custom), self.attempt, last_s)
        return [*values, Value("text", RUN_TEXT, as_unicode(self.text))] if self.text else values


def describe(
    run_dir: RunDir, role: str, manifest: Manifest, directories: Mapping[int, Path]
) -> RoleDescription:
    """Read what the ranks of a role, and the manifest, say about the run.

    Args:
        directories: rank -> its directory.
    """
    run = read_run(run_dir)
    attempts = [attempt for attempt in run.attempts if attempt.role == role]
    newest = attempts[-1] if attempts else None
    world_size = newest.world_size if newest else max(directories, default=0) + 1
    # A rank beyond the world size belongs to an earlier attempt with more ranks, and so does its lineage.
    places = {rank: path for rank, path in directories.items() if rank < world_size}
    lineages = _lineages(places, newest.attempt if newest else 0)
    # If the newest attempt has not recorded any lineage yet, that of earlier attempts counts.
    if all(one == Lineage() for one in lineages.values()):
        lineages = _lineages(places, 0)
    lineage, conflicts = merge_lineage(lineages, world_size)
    has_text = newest is not None and lineage.train is not None
    return RoleDescription(
        lineage=lineage,
        conflicts=conflicts,
        ranks=sum(one.train is not None for one in lineages.values()),
        attempt=newest,
        text=run_text(manifest, run, role) if has_text else "",
    )


def _lineages(places: Mapping[int, Path], attempt: int) -> dict[int, Lineage]:
    """Rank -> its lineage since an attempt."""
    read = partial(read_lineage, attempt=attempt)
    return dict(zip(places, read_each(read, [*places.values()]), strict=True))


def log_conflicts(conflicts: Sequence[Conflict], target: Path) -> None:
    """Say on which settings the ranks disagree."""
    found = [conflict for conflict in conflicts if conflict.is_setting]
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        logger.warning(
            "%s: the config of the ranks differs: %s%s; the merged run has of each entry the value of the "
            "lowest rank that has it",
            target,
            ", ".join(conflict.as_text() for conflict in found[:_NAMED]),
            more,
        )


def settings_values(
    settings: Mapping[str, str | float], attempt: AttemptState | None, last_s: float
) -> list[Value]:
    """The settings and the end of a training for TensorBoard's page HPARAMS.

    Args:
        settings: by name.
        attempt: the newest attempt, None if it is unknown. A failure of one rank is the end; otherwise it is
            left out while a rank runs, is unknown or was interrupted.
        last_s: when the last step was recorded, in seconds since the epoch.
    """
    values = [session_start(settings, attempt.started if attempt else 0.0)]
    states = {rank.state for rank in attempt.ranks} if attempt else set()
    is_over = bool(states) and not {"running", "unknown", "interrupted"} & states
    if is_over or "failed" in states:
        values.append(session_end(last_s, is_success=states == {"finished"}))
    return values
