"""Reads the file store of MLflow: `<experiment>/<run>/` with meta.yaml, params/, metrics/ and tags/."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from distsummary.base.columns import numbered
from distsummary.errors import DamagedFileError, reason
from distsummary.format.records import Event, Value

META = "meta.yaml"
_STATES = {  # of MLflow, as numbers or words
    "1": "unknown", "2": "unknown", "3": "finished", "4": "failed", "5": "interrupted", "RUNNING": "unknown",
    "SCHEDULED": "unknown", "FINISHED": "finished", "FAILED": "failed", "KILLED": "interrupted",
}  # fmt: skip
_MOST = 1 << 20  # bytes of a file that is no metric
_LARGEST = 1.79e308  # what MLflow writes for infinity in some of its stores
_NOT_READ = ("artifacts", "inputs", "outputs", "traces")
_OWN = "mlflow."  # before the names of its own tags


class MlflowRun(NamedTuple):
    """What the store says of a run, without its metrics.

    `started`, `ended`: seconds since the epoch. `left_out`: what is not read, one text each.
    """

    run_id: str
    name: str
    experiment: str
    state: str
    started: float
    ended: float
    config: dict[str, Any]
    tags: tuple[str, ...]
    notes: str
    commit: str
    left_out: tuple[str, ...]


def is_run(directory: Path) -> bool:
    """Whether a directory is that of a run in a store."""
    return (directory / META).is_file() and (directory / "metrics").is_dir()


def read_run(directory: Path) -> MlflowRun | None:
    """What the store says of a run; None if it was deleted.

    Raises DamagedFileError, or OSError if a file cannot be read.
    """
    meta = _flat_yaml(directory / META)
    if meta.get("lifecycle_stage", "active") != "active":
        return None
    left_out = []
    try:
        experiment = _flat_yaml(directory.parent / META).get("name", "")
    except (OSError, DamagedFileError) as error:
        experiment = ""
        left_out.append(f"the name of the experiment: {_said(error)}")
    tags, params = _texts(directory / "tags", left_out), _texts(directory / "params", left_out)
    for name in _NOT_READ:
        if count := sum(1 for one in (directory / name).rglob("*") if one.is_file()):
            left_out.append(f"{name}: {numbered(count, 'file')}")
    started = _seconds(meta.get("start_time", ""), 0.0)
    return MlflowRun(
        run_id=meta.get("run_id") or meta.get("run_uuid") or directory.name,
        name=meta.get("run_name") or tags.get(f"{_OWN}runName", ""),
        experiment=experiment,
        state=_STATES.get(meta.get("status", ""), "unknown"),
        started=started,
        ended=_seconds(meta.get("end_time", ""), started),
        config={name: _number_or_text(text) for name, text in params.items()},
        tags=tuple(f"{name}={text}" for name, text in tags.items() if not name.startswith(_OWN)),
        notes=tags.get(f"{_OWN}note.content", ""),
        commit=tags.get(f"{_OWN}source.git.commit", ""),
        left_out=tuple(left_out),
    )


def read_metrics(directory: Path, left_out: list[str]) -> Iterator[Event]:
    """The metrics of a run by step, as scalars; `left_out` gets what cannot be read."""
    found: dict[tuple[int, float], dict[str, float]] = {}
    for path in sorted((directory / "metrics").rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        tag, wrong = path.relative_to(directory / "metrics").as_posix(), 0
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    point = _point(line)
                    if point is None:
                        wrong += bool(line.strip())
                    else:
                        found.setdefault(point[:2], {})[tag] = point[2]
        except OSError as error:
            left_out.append(f"metric {tag}: {reason(error)}")
        if wrong:
            left_out.append(f"metric {tag}: {wrong} lines that are no `timestamp value step`")
    for (step, wall_time), values in sorted(found.items()):
        yield Event(step, wall_time, [Value("scalar", tag, value) for tag, value in values.items()])


def _point(line: str) -> tuple[int, float, float] | None:
    """Step, wall time and value of a line `timestamp value step`; what follows is about data sets."""
    fields = line.split()
    try:
        wall_time, value = int(fields[0]) / 1000, float(fields[1])
        step = int(fields[2]) if len(fields) > 2 else 0
    except (ValueError, IndexError, OverflowError):
        return None
    if not (0 <= step < 1 << 63 and 0 <= wall_time < 1e11):
        return None
    return step, wall_time, math.copysign(math.inf, value) if abs(value) >= _LARGEST else value


def _flat_yaml(path: Path) -> dict[str, str]:
    """The keys of the first level whose values are plain; null is an empty text. Raises as `read_run`."""
    if path.stat().st_size > _MOST:
        raise DamagedFileError(f"{path} has more than {_MOST:,} bytes, and is no {META}")
    found: dict[str, str] = {}
    key = ""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line[:1].isspace() and key:
            # A long text continues, a blank in place of its line break.
            found[key] += f" {line.strip()}"
        elif (name := line.partition(":"))[1] and not line.startswith(("#", "-")):
            key = name[0].strip()
            found[key] = name[2].strip()
    if not found:
        raise DamagedFileError(f"{path} is no {META}: it has no `key: value`")
    return {name: _unquoted(text) for name, text in found.items()}


def _unquoted(text: str) -> str:
    if text[:1] == text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if text[:1] == text[-1:] == '"' and len(text) > 1:
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    return "" if text in ("null", "~") else text


def _texts(directory: Path, left_out: list[str]) -> dict[str, str]:
    """Name -> the content of each file below a directory."""
    found = {}
    for path in sorted(directory.rglob("*")) if directory.is_dir() else ():
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() or not path.is_file():
            continue
        try:
            with open(path, "rb") as file:
                found[name] = file.read(_MOST).decode(errors="replace")
        except OSError as error:
            left_out.append(f"{directory.name} {name}: {reason(error)}")
    return found


def _number_or_text(text: str) -> str | int | float | bool:
    """A parameter, which the store has as a text only."""
    if text in ("True", "true", "False", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        # Python also takes 1_000, which is a name.
        if text.isascii() and "_" not in text and text == text.strip():
            try:
                return kind(text)
            except ValueError:
                pass
    return text


def _seconds(text: str, default: float) -> float:
    return int(text) / 1000 if text.isascii() and text.isdigit() and len(text) < 15 else default


def _said(error: Exception) -> str:
    return f"{os.fspath(error.filename)}: {reason(error)}" if isinstance(error, OSError) else str(error)
