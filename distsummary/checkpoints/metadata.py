"""train_metadata.json: which checkpoint files form the trajectory of one training."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from distsummary.base.checked_json import parse_json
from distsummary.base.checks import check_int
from distsummary.checkpoints.landscape_spec import LandscapeSpec, check_collect_landscape
from distsummary.errors import DamagedFileError, InvalidTypeError, InvalidValueError, MissingFileError

METADATA = "train_metadata.json"
MAX_BYTES = 16 << 20
MAX_INT = (1 << 31) - 1
MAX_SHARDS = 1 << 20

_Number = Annotated[str, Meta(pattern="^-?[0-9]{1,10}$")]  # a step or epoch, as a key


class _Content(TypedDict):
    """The keys of the file that `landscape_spec` does not check."""

    epoch_group: dict[_Number, Any]
    model_params_file_map: dict[_Number, str]
    step_per_epoch: Annotated[int, Meta(ge=0, le=MAX_INT)]
    run_id: NotRequired[str]
    sha256: NotRequired[dict[str, Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")]]]
    shards: NotRequired[dict[str, Annotated[int, Meta(ge=2, le=MAX_SHARDS)]]]


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
    content = parse_json(data, _Content, name="it", most_bytes=MAX_BYTES)
    try:
        return _parse(content)
    except (InvalidTypeError, InvalidValueError, ValueError) as error:
        # The message may quote all of the file.
        raise DamagedFileError(str(error)[:500]) from error


def _parse(content: dict[str, Any]) -> TrainMetadata:
    groups, paths = content["epoch_group"], content["model_params_file_map"]
    optional = ("unit", "num_samples", "landscape_size", "create_landscape")
    given = {key: content[key] for key in optional if key in content}
    spec = check_collect_landscape(given | {"intervals": [groups[key] for key in sorted(groups, key=int)]})
    # Only an empty dict gives None, and this one has intervals.
    assert spec is not None
    for number in (*spec.numbers, spec.num_samples, *map(int, (*groups, *paths))):
        check_int("a step or epoch, or num_samples,", number, low=-MAX_INT, high=MAX_INT)
    digests, shards = content.get("sha256", {}), content.get("shards", {})
    files = {
        int(key): CheckpointFile(path=path, sha256=digests.get(key, ""), shards=shards.get(key, 1))
        for key, path in sorted(paths.items(), key=lambda item: int(item[0]))
    }
    return TrainMetadata(
        spec=spec,
        step_per_epoch=content["step_per_epoch"],
        run_id=content.get("run_id", ""),
        files=files,
    )


def read_metadata(ckpt_dir: Path) -> TrainMetadata:
    """Read and parse the metadata in a directory; raises MissingFileError or DamagedFileError."""
    path = ckpt_dir / METADATA
    if not path.is_file():
        if not ckpt_dir.parent.is_dir():
            raise MissingFileError(f"{ckpt_dir.parent} does not exist; check the path")
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
