"""The golden files: real MindSpore output and what it was decoded to, see tests/golden/ms/README.md."""

import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "ms"
EVENT_FILES = sorted(path.relative_to(GOLDEN).as_posix() for path in GOLDEN.glob("*/summary/events.out.*"))


def decoded(file: str) -> list[dict[str, Any]]:
    """The records of an event file as decoded.json has them."""
    case, _, inner = file.partition("/")
    return json.loads((GOLDEN / case / "decoded.json").read_bytes())["files"][inner]["events"]
