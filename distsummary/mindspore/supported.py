"""Which versions of MindSpore are supported."""

import re
from importlib.metadata import PackageNotFoundError, version

from distsummary.base.extras import missing_extra
from distsummary.errors import MissingExtraError

OLDEST = (2, 3)


def require_mindspore() -> None:
    """Raise MissingExtraError unless a supported MindSpore is installed; does not import it."""
    try:
        installed = version("mindspore")
    except PackageNotFoundError:
        raise missing_extra("distsummary.mindspore", "mindspore") from None
    if tuple(map(int, re.findall(r"\d+", installed)[:2])) < OLDEST:
        raise MissingExtraError(
            f"distsummary.mindspore needs MindSpore {'.'.join(map(str, OLDEST))} or newer, got {installed}; "
            f"run: pip install mindspore>={OLDEST[0]}.{OLDEST[1]}",
            name="mindspore",
        )
