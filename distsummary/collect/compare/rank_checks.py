"""Checks: what a rank records so that like ranks can be compared, and others distinguished."""

import math
import platform
import random
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from distsummary.collect.compare.batch_digest import batch_digest
from distsummary.collect.provenance import versions
from distsummary.collect.values.sources import Source
from distsummary.diagnosis.settings import HOST, LOCAL_RANK
from distsummary.format.own_tags import BATCH_TAGS, OWN_MS, STEP_MS
from distsummary.format.records import Value
from distsummary.rundir.rank_facts import RankFacts
from distsummary.rundir.topology import Topology, environment
from distsummary.training.callbacks import CallbackParams
from distsummary.training.step_context import StepContext
from distsummary.training.timing.affordable import affordable_every

if TYPE_CHECKING:
    from distsummary.collect.compare.torch_checksums import Checksums

BATCHES = 32  # the first steps, whose batches get digests
MEASURED = 8  # the first steps, at all of which parameters are summed up, to know what it costs
SKIPPED = 3  # of these, in which caches are filled
SHARE = 0.003  # of a rank's own time in a step, which the sums may cost on average
# A step at which something is due costs so much more, because the caches then hold other data.
DUE_S = 100e-6
DEVICE_BYTES_PER_S = 1e12  # at which a device reads parameters
MAX_SHOWN = 80  # characters of a setting
_FRESH = 624  # the place in a Mersenne Twister's state from which nothing was drawn since it was seeded
_SEEDED_BY_ARRAY = 0x80000000  # its first word if it was not seeded by one number


class Checks(Source):
    """Records the bit sums of replicated parameters and digests of the first batches.

    At its first step it also reports the facts of the rank: its settings as they are when this object is
    made, and the names of the model's parameters.

    Args:
        every: as `checksums` in `ds.init`. False: neither parameters nor batches are looked at.
        config: the user's settings by dotted names.
        checksums: sums up the parameters; None: there is no model of torch.
        report: takes the facts.
        clock: the seconds that this thread has computed.
    """

    what = "checks"

    def __init__(
        self,
        every: bool | int,
        config: Mapping[str, object],
        *,
        topology: Topology,
        checksums: "Checksums | None",
        report: Callable[[RankFacts], None],
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._checksums = checksums if every is not False else None
        self._report = report
        place: dict[str, str | None] = {LOCAL_RANK: str(topology.local_rank), HOST: topology.host}
        self._settings = own_settings(config) | place
        self._first: int | None = None
        self._every = every if type(every) is int else 1
        self._is_chosen = type(every) is int  # else, when it is known what it costs
        self._costs: list[float] = []  # seconds
        self._step_ms: list[float] = []
        self._looked_s = math.nan
        self._epoch: object = None
        self._has_batches = every is not False

    def plan(self, last: int) -> None:
        """See `Source`."""
        if self._first is None:
            return
        self.at = math.inf
        if self._has_batches:
            self.at = last + 1
        elif self._checksums is not None:
            self.at = last - last % self._every + self._every

    def values(self, params: CallbackParams, step: int, context: StepContext) -> list[Value]:
        """See `Source`."""
        if self._first is None:
            self._first, self._epoch = step, params.get("cur_epoch_num")
            self._send_facts()
        values = self._batch(params, step)
        if self._checksums is None or context.ended_late:
            return values
        if step % self._every and step > self._first:
            return values
        began_s = self._clock()
        values += self._checksums.measure()
        if not self._is_chosen:
            self._costs.append(self._clock() - began_s)
            self._choose(context.logged)
        return values

    def _send_facts(self) -> None:
        # List them only now, because lazy parameters may have got their shapes since this object was made.
        if self._checksums is not None:
            self._checksums.list_parameters()
            made = self._checksums
            self._report(RankFacts(self._settings, made.names, made.groups, made.layouts))
        else:
            self._report(RankFacts(self._settings))

    def _choose(self, logged: Mapping[str, object]) -> None:
        """Choose how many steps lie between two sums: a power of two, so that ranks have steps in common."""
        now_s, before_s = time.perf_counter(), self._looked_s
        self._looked_s = now_s
        # the own time has no waiting for a busy host or for other ranks
        measured = logged.get(OWN_MS, logged.get(STEP_MS))
        self._step_ms.append(measured if isinstance(measured, float) else 1e3 * (now_s - before_s))
        if len(self._costs) < MEASURED:
            return
        cost_s = statistics.median(self._costs[SKIPPED:]) + DUE_S
        if self._checksums is not None:
            cost_s += self._checksums.device_bytes / DEVICE_BYTES_PER_S
        step_s = 1e-3 * statistics.median(self._step_ms[SKIPPED:])
        self._every = affordable_every(cost_s, step_s, SHARE)
        self._is_chosen = True

    def _batch(self, params: CallbackParams, step: int) -> list[Value]:
        """The digest of one of the first batches of the first epoch.

        The last batch of an epoch has none: samplers fill it up with samples of other ranks.
        """
        if not self._has_batches or self._first is None:
            return []
        if step >= self._first + BATCHES - 1 or params.get("cur_epoch_num") != self._epoch:
            self._has_batches = False
        if params.get("cur_epoch_num") != self._epoch:
            return []
        length = params.get("batch_num") or 0
        if length > 0 and int(params.get("step_in_epoch") or 0) >= length:
            return []
        digest = batch_digest(params.get("train_dataset_element"))
        if digest is None:
            self._has_batches = False
            return []
        return [Value("scalar", tag, part) for tag, part in zip(BATCH_TAGS, digest, strict=True)]


def own_settings(config: Mapping[str, object]) -> dict[str, str | None]:
    """Name -> text; None: not known.

    Args:
        config: the user's settings by dotted names.
    """
    found: dict[str, str | None] = {f"config {name}": _shown(value) for name, value in config.items()}
    found["seed python"], found["seed numpy"] = _python_seed(), _numpy_seed()
    found["version python"] = platform.python_version()
    found |= {f"version {package}": version for package, version in versions().items()}
    found |= {f"environment {name}": value for name, value in environment().items()}
    found["digest of the script"] = _script()
    if "torch" in sys.modules:
        # This module imports torch, which is imported already.
        from distsummary.collect.compare.torch_checksums import torch_settings

        found |= torch_settings()
    return found


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) <= MAX_SHOWN:
        return text
    return f"{text[:MAX_SHOWN]}... ({len(text)} characters, digest {zlib.crc32(text.encode()):08x})"


def _python_seed() -> str | None:
    """A digest of the state of Python's generator, if nothing was drawn since it was seeded."""
    words = random.getstate()[1]
    return f"state {zlib.crc32(repr(words).encode()):08x}" if words[-1] == _FRESH else None


def _numpy_seed() -> str | None:
    """The seed of NumPy's generator, if nothing was drawn since; a digest of its state if it is no number."""
    state = np.random.get_state(legacy=False)
    inner = state["state"]
    if state["bit_generator"] != "MT19937" or inner["pos"] != _FRESH:
        return None
    first = int(inner["key"][0])
    return str(first) if first != _SEEDED_BY_ARRAY else f"state {zlib.crc32(inner['key'].tobytes()):08x}"


def _script() -> str | None:
    """A digest of the program's file; None if it has none."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return None if path is None else f"{zlib.crc32(Path(path).read_bytes()):08x}"
    except OSError:
        return None
