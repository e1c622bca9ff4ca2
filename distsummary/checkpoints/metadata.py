"""train_metadata.json: which checkpoint files form the trajectory of one training."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distsummary.base.checks import check_int, check_type
from distsummary.base.json_door import parse_json
from distsummary.checkpoints.landscape_spec import LandscapeSpec, check_collect_landscape
from distsummary.errors import DamagedFileError, InvalidTypeError, InvalidValueError, MissingFileError

METADATA = "train_metadata.json"
MAX_BYTES = 16 << 20
MAX_INT = (1 << 31) - 1
MAX_SHARDS = 1 << 20

_NUMBER = re.compile(r"-?\d{1,10}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """A checkpoint file in the metadata; `sha256` is empty if MindSpore wrote the metadata.

    If the model is saved as `shards` files, `path` is rank 0's file, and `sha256` is empty because each file
    contains its own digest.
    """

    path: str
    sha256: str = ""
    shards: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainMetadata:
    """The content of train_metadata.json: MindSpore's keys, and our own (`run_id`, `sha256`, `shards`).

    `files` maps the number (step or epoch, see `spec.unit`) of each saved checkpoint to its file;
    `spec.intervals` holds the numbers at which checkpoints were to be saved. `step_per_epoch` is 0 if it was
    unknown in the training. `run_id` is empty if MindSpore wrote the file.
    """

    spec: LandscapeSpec
    step_per_epoch: int = 0
    run_id: str = ""
    files: Mapping[int, CheckpointFile] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The content of the file as JSON, MindSpore's keys first."""
        spec = self.spec
        shards = {str(n): file.shards for n, file in self.files.items() if file.shards > 1}
        return json.dumps(
            {
                "epoch_group": {str(index): group for index, group in enumerate(spec.intervals)},
                "model_params_file_map": {str(n): file.path for n, file in self.files.items()},
                "step_per_epoch": self.step_per_epoch,
                "unit": spec.unit,
                "num_samples": spec.num_samples,
                "landscape_size": spec.landscape_size,
                "create_landscape": {"train": spec.create_train, "result": spec.create_result},
                "run_id": self.run_id,
                "sha256": {str(n): file.sha256 for n, file in self.files.items()},
                **({"shards": shards} if shards else {}),
            }
        ).encode()


def parse_metadata(data: bytes) -> TrainMetadata:
    """Parse what MindSpore or `TrainMetadata.to_bytes` wrote; raises DamagedFileError for anything else.

    Size, nesting depth and integers are limited. The paths are not checked and must not be trusted.
    """
    content = parse_json(data, dict[str, Any], name="it", most_bytes=MAX_BYTES)
    try:
        return _parse(content)
    except (InvalidTypeError, InvalidValueError, ValueError) as error:
        raise DamagedFileError(str(error)[:500]) from error  # the message may quote 16 MiB


def _parse(content: dict[str, Any]) -> TrainMetadata:
    for key in ("epoch_group", "model_params_file_map", "step_per_epoch"):
        if key not in content:
            raise InvalidValueError(f"the key {key!r} is missing")
    check_int("step_per_epoch", content["step_per_epoch"], low=0, high=MAX_INT)
    check_type("run_id", content.get("run_id", ""), str)

    groups = content["epoch_group"]
    check_type("epoch_group", groups, dict)
    optional = ("unit", "num_samples", "landscape_size", "create_landscape")
    given = {key: content[key] for key in optional if key in content}
    spec = check_collect_landscape(
        given | {"intervals": [groups[key] for key in sorted(groups, key=_number)]}
    )
    assert spec is not None  # the dict is not empty
    for number in (*spec.numbers, spec.num_samples):
        check_int("a number of epoch_group, or num_samples,", number, low=-MAX_INT, high=MAX_INT)

    paths, digests = content["model_params_file_map"], content.get("sha256", {})
    shards = content.get("shards", {})
    check_type("model_params_file_map", paths, dict)
    check_type("sha256", digests, dict)
    check_type("shards", shards, dict)
    for key, count in shards.items():
        check_int(f"shards[{key[:40]!r}]", count, low=2, high=MAX_SHARDS)
    files = {}
    for key in sorted(paths, key=_number):
        path, digest = paths[key], digests.get(key, "")
        check_type(f"model_params_file_map[{key!r}]", path, str)
        check_type(f"sha256[{key!r}]", digest, str)
        if digest and not _SHA256.fullmatch(digest):
            raise InvalidValueError(f"sha256[{key!r}] must be 64 hexadecimal digits, got {digest[:80]!r}")
        files[_number(key)] = CheckpointFile(path=path, sha256=digest, shards=shards.get(key, 1))
    return TrainMetadata(
        spec=spec,
        step_per_epoch=content["step_per_epoch"],
        run_id=content.get("run_id", ""),
        files=files,
    )


def _number(key: str) -> int:
    if not _NUMBER.fullmatch(key) or abs(int(key)) > MAX_INT:
        raise InvalidValueError(f"the key {key[:40]!r} must be a number in [-{MAX_INT}, {MAX_INT}]")
    return int(key)


def read_metadata(ckpt_dir: Path) -> TrainMetadata:
    """Read and parse the metadata in a directory; raises MissingFileError or DamagedFileError."""
    path = ckpt_dir / METADATA
    if not path.is_file():
        refuse_absent_run(ckpt_dir)
        raise MissingFileError(
            f"{path} does not exist; train with collect_landscape={{'intervals': [[...]]}} at least until "
            "the first step or epoch in intervals; to draw a landscape from checkpoints that were saved in "
            "another way, pass each under its step or epoch: around={100: file, ...}"
        )
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    try:
        return parse_metadata(data)
    except DamagedFileError as error:
        raise DamagedFileError(f"{path} is not the metadata of a trajectory: {error}") from error


def file_digest(path: Path) -> str:
    """The sha256 of a checkpoint file, as `CheckpointFile` holds it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_absent_run(ckpt_dir: Path) -> None:
    """Raise MissingFileError if the run dir does not exist, which means that the path is wrong."""
    if not ckpt_dir.parent.is_dir():
        raise MissingFileError(f"{ckpt_dir.parent} does not exist; check the path")
