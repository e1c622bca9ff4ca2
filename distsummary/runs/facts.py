"""The facts of a run by name: what was trained, how, with which code and data, and how it ended."""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from distsummary.base.many_files import read_each
from distsummary.diagnosis.settings import CONFIG_PREFIX, HOST, LOCAL_RANK, differences, usual_settings
from distsummary.rundir.rank_facts import read_facts
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.recorded_run import RecordedRun

Fact: TypeAlias = str | int | float | bool | None

_LINEAGE = {  # the path in the lineage -> the name of the fact
    ("train", "algorithm", "network"): "network",
    ("train", "algorithm", "loss"): "final loss",
    ("train", "hyper_parameters", "optimizer"): "optimizer",
    ("train", "hyper_parameters", "loss_function"): "loss function",
    ("train", "hyper_parameters", "learning_rate"): "learning rate",
    ("train", "hyper_parameters", "epoch"): "epochs",
    ("train", "hyper_parameters", "batch_size"): "batch size",
    ("train", "hyper_parameters", "device_num"): "devices",
    ("train", "hyper_parameters", "parallel_mode"): "parallel mode",
    ("train", "train_dataset", "train_dataset_path"): "data.path",
    ("train", "train_dataset", "train_dataset_size"): "data.size",
    ("evaluation", "valid_dataset", "valid_dataset_path"): "data.validation path",
    ("evaluation", "valid_dataset", "valid_dataset_size"): "data.validation size",
    ("evaluation", "metric"): "metrics",
}
# Settings of ranks that are facts of the run anyway, or of none.
_KNOWN = (CONFIG_PREFIX, "version ", LOCAL_RANK, HOST)
DIFFERENCES = 16  # between ranks of a run
DATA_PIPELINE = "data.pipeline"  # a hash of its stages


def facts(run: RecordedRun) -> dict[str, Fact]:
    """All facts that are known, by name; those of the config begin with "config.", as in "config.lr".

    Of a run of several ranks, also the seeds and the other settings that most of its ranks have, such as
    "seed torch"; in which a rank differs from the others begins with the rank, as in "rank 1: seed torch".
    """
    found: dict[str, Fact] = {"state": run.state}
    attempts = [attempt for attempt in run.attempts if attempt.role == run.role]
    if attempts:
        found |= {"ranks": attempts[-1].world_size, "attempts": len(attempts)}
    provenance = run.provenance
    git: Mapping[str, Any] = provenance.get("git") or {}
    if git:
        found["code.commit"] = f"{git.get('commit', '')}{' with changes' if git.get('dirty') else ''}"
    if provenance.get("argv"):
        found["code.command"] = shlex.join(map(str, provenance["argv"]))
    for name in ("python", "platform"):
        if provenance.get(name):
            found[f"code.{name}"] = str(provenance[name])
    versions: Mapping[str, Any] = provenance.get("versions") or {}
    found |= {f"code.{name}": str(version) for name, version in sorted(versions.items())}
    lineage = run.lineage
    for path, name in _LINEAGE.items():
        # Lineages of other programs may have any shape: a path is only followed through mappings.
        value: Any = lineage
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None and not isinstance(value, Mapping):
            found[name] = value
    # A hash of the stages is enough to see whether two runs prepared their data alike.
    if "dataset_graph" in lineage:
        text = json.dumps(lineage["dataset_graph"], sort_keys=True, default=str)
        found[DATA_PIPELINE] = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    found |= dict(flat(run.config, "config"))
    if attempts and attempts[-1].world_size > 1:
        found |= _of_ranks(run, int(attempts[-1].attempt))
    return found


def _of_ranks(run: RecordedRun, attempt: int) -> dict[str, Fact]:
    """The settings that most ranks agree on, and in which ranks differ, such as "rank 1: seed torch"."""
    directories = RunDir(run.path).rank_dirs(run.role)
    reported = read_each(lambda directory: read_facts(directory, attempt), [*directories.values()])
    known = {rank: one for rank, one in zip(directories, reported, strict=True) if one is not None}
    found: dict[str, Fact] = {
        name: value for name, value in usual_settings(known).items() if not name.startswith(_KNOWN)
    }
    differ = differences(known)
    found |= {f"rank {rank}: {name}": value for name, rank, value in differ[:DIFFERENCES]}
    if len(differ) > DIFFERENCES:
        found["more differences between ranks"] = len(differ) - DIFFERENCES
    return found


def flat(entries: Mapping[str, Any], name: str) -> Iterator[tuple[str, Fact]]:
    """Nested settings as names and values, such as "config.model.depth"; a list is one value, as JSON."""
    for key, value in entries.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.{key}")
        else:
            is_plain = isinstance(value, (str, int, float, bool)) or value is None
            yield f"{name}.{key}", value if is_plain else json.dumps(value, default=str)
