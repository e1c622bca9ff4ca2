"""What sets a landscape apart from others that would have its name: words for its tag and files; pure."""

import hashlib
import re
from collections.abc import Sequence

LONGEST = 40  # of what names are shown by: tags become names of files
AND = "-and-"
_DIGEST = 3  # bytes


def label(*, is_given: bool = False, twin: int = 1, parameters: Sequence[str] = (), seed: int = 0) -> str:
    """Nothing for the first landscape of its kind, of all parameters and by seed 0; words for others.

    `is_given`: along the user's own directions, and not in the place of a random plane. `twin` counts those
    of one call that have the kind and the ends in common, from 1.
    """
    words = [
        "given" if is_given else "",
        f"no{twin}" if twin > 1 else "",
        f"only_{readable(parameters)}" if parameters else "",
        f"seed{seed}" if seed else "",
    ]
    return "_".join(word for word in words if word)


def readable(texts: Sequence[str]) -> str:
    """Texts in letters that a file may have in its name; with a hash where others could become the same."""
    plain = AND.join(re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") for text in texts)[:LONGEST]
    if plain.split(AND) == list(texts):
        return plain
    digest = hashlib.blake2b("\0".join(texts).encode(), digest_size=_DIGEST).hexdigest()
    return f"{plain}-{digest}" if plain else digest
