"""The facts of a run by name: what was trained, how, with which code and data, and how it ended."""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

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
DATA_PIPELINE = "data.pipeline"  # a hash of its stages


def facts(run: RecordedRun) -> dict[str, Fact]:
    """All facts that are known, by name; those of the config begin with "config.", as in "config.lr"."""
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
        value: Any = lineage
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None and not isinstance(value, Mapping):
            found[name] = value
    if "dataset_graph" in lineage:
        text = json.dumps(lineage["dataset_graph"], sort_keys=True, default=str)
        found[DATA_PIPELINE] = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    found |= dict(_flat(run.config, "config"))
    return found


def _flat(entries: Mapping[str, Any], name: str) -> Iterator[tuple[str, Fact]]:
    for key, value in entries.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.{key}")
        else:
            is_plain = isinstance(value, (str, int, float, bool)) or value is None
            yield f"{name}.{key}", value if is_plain else json.dumps(value, default=str)
