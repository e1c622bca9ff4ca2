"""Images, texts and sounds within a budget of bytes: of each tag the newest, the first, and some between."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from distsummary.base.columns import without_middle
from distsummary.errors import DistSummaryError
from distsummary.format.own_tags import RUN_TEXT
from distsummary.format.records import CURVE_ROWS
from distsummary.runs.recorded_run import RecordedRun
from distsummary.runs.table import ValueTable
from distsummary.view.packing import small

Item: TypeAlias = dict[str, Any]

IMAGE_BYTES = 750_000  # of all images together: a megabyte of the file, in base64
TEXT_BYTES = 100_000
SOUND_BYTES = 750_000
CURVE_BYTES = 100_000
_TAGS = 60  # of each kind
_RANKS = 16  # side by side
_STEPS = 100  # of a tag
_TEXT = 10_000  # characters of a text
PRECISION, RECALL = map(CURVE_ROWS.index, ("precision", "recall"))
_PIXELS = 40_000_000  # more would take a browser's memory
_KINDS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"BM": "bmp"}


def media(run: RecordedRun, *, image_bytes: int = IMAGE_BYTES, text_bytes: int = TEXT_BYTES) -> Item | None:
    """What to show of `images`, `texts`, `sounds` and `curves`; None if there is nothing.

    Each is None, or has `left_out`, the number of further tags, and `tags`, of which each has

    - `tag`; `ranks`: those that stand side by side, and `all_ranks`: how many recorded it;
    - `steps` (N,), rising, and `recorded`: how many there are. The newest step and the first are taken first,
      then those between in an order that is evenly spread wherever it ends; all tags in turns, as long as the
      bytes last. `size`: the bytes of the newest step if it alone is too large, else 0;
    - `items`: for each step a list with an item for each rank, None if it recorded nothing there: `bytes`
      uint8, of an image `kind` ("png", "jpeg", ...), `height` and `width`; of a text, which is UTF-8, `cut`:
      how many characters are left out; of a sound, which is a WAV file, `seconds`; of a PR curve, precision
      and recall, float32 (2, T). Or only `error`, why it cannot be shown.

    Args:
        run: the run.
        image_bytes, text_bytes: budgets of all images and all texts; what is the same counts once.
    """
    found = {
        "images": _within(run, "image", run.images, _image, image_bytes),
        "texts": _within(run, "text", run.text, _text, text_bytes),
        "sounds": _within(run, "audio", run.audio, _sound, SOUND_BYTES),
        "curves": _within(run, "pr_curve", run.pr_curves, _curve, CURVE_BYTES),
    }
    return found if any(found.values()) else None


class _Tag:
    """One tag: where each of its ranks has which step, and what is taken of it."""

    def __init__(self, tag: str, tables: dict[int, ValueTable], all_ranks: int, item: Callable[[Any], Item]):
        self.tag, self.all_ranks, self.size = tag, all_ranks, 0
        self._tables, self._item = tables, item
        # If a step was recorded twice, its last row counts.
        self._rows = {
            rank: dict(zip(one["step"].tolist(), range(len(one)), strict=True))
            for rank, one in tables.items()
        }
        self.ranks = [*tables]
        self.items: dict[int, list[Item | None]] = {}

    @property
    def all_steps(self) -> list[int]:
        """The steps at which any of its ranks recorded it."""
        return sorted({step for rank in self.ranks for step in self._rows[rank]})

    def read(self, step: int) -> list[Item | None]:
        """The items of the ranks at a step."""
        items: list[Item | None] = []
        for rank in self.ranks:
            row = self._rows[rank].get(step)
            try:
                items.append(None if row is None else self._item(self._tables[rank].value(row)))
            except (DistSummaryError, OSError):
                items.append({"error": "it could not be read: distsummary fsck"})
        return items

    def as_dict(self) -> Item:
        """The tag as `media` returns it."""
        steps = sorted(self.items)
        return {
            "tag": without_middle(self.tag, 1024), "ranks": self.ranks, "all_ranks": self.all_ranks,
            "steps": small(np.array(steps, np.int64)), "recorded": len(self.all_steps), "size": self.size,
            "items": [self.items[step] for step in steps],
        }  # fmt: skip


def _within(
    run: RecordedRun, plugin: str, read: Callable[..., ValueTable], item: Callable[[Any], Item], budget: int
) -> Item | None:
    tags: list[_Tag] = []
    with run.held():
        known = {tag: ranks for tag, ranks in run.ranks_of(plugin).items() if tag != RUN_TEXT}
        for name, having in [*known.items()][:_TAGS]:
            tables = {rank: read(name, rank) for rank in having[:_RANKS]}
            tags.append(_Tag(name, tables, len(having), item))
    tags = [one for one in tags if one.all_steps]
    if not tags:
        return None
    # Items that are on the page already, such as the same picture of another rank, cost nothing.
    taken: set[bytes] = set()
    left = budget

    def cost(items: list[Item | None]) -> int:
        return sum(map(len, {one["bytes"].tobytes() for one in items if one and "bytes" in one} - taken))

    def take(one: _Tag, step: int, items: list[Item | None]) -> bool:
        nonlocal left
        if (price := cost(items)) > left:
            return False
        left -= price
        taken.update(found["bytes"].tobytes() for found in items if found and "bytes" in found)
        one.items[step] = items
        return True

    # First the newest step of each tag: if that takes too large a share, fewer ranks stand side by side.
    newest = []
    for one in tags:
        items = one.read(one.all_steps[-1])
        while len(one.ranks) > 1 and cost(items) > budget / (2 * len(tags)):
            one.ranks.pop()
            items = one.read(one.all_steps[-1])
        newest.append((cost(items), one, items))
    # Small ones come first, so that as many tags as possible are there.
    newest.sort(key=lambda entry: entry[0])
    turns = []
    for price, one, items in newest:
        *earlier, last = one.all_steps
        if take(one, last, items):
            turns.append((one, (earlier[place] for place in evenly(len(earlier)))))
        else:
            one.size = price
    # Then all tags take one step each in turns, until they have enough or their next step does not fit.
    while turns:
        turns = [
            (one, steps)
            for one, steps in turns
            if len(one.items) < _STEPS
            and (step := next(steps, None)) is not None
            and take(one, step, one.read(step))
        ]
    return {"tags": [one.as_dict() for one in tags], "left_out": max(0, len(known) - _TAGS)}


def evenly(count: int) -> Iterator[int]:
    """The places 0 to count - 1, each once, 0 first; evenly spread, wherever one stops taking them."""
    seen = set[int]()
    size = 1 << max(0, count - 1).bit_length()
    bits = size.bit_length() - 1
    # Counting with the bits in reverse order halves the widest gaps first.
    for number in range(size):
        place = int(f"{number:0{bits}b}"[::-1], 2) if bits else 0
        if place < count and place not in seen:
            seen.add(place)
            yield place


def _image(image: Any) -> Item:
    kind = next((kind for magic, kind in _KINDS.items() if image.encoded.startswith(magic)), None)
    if image.encoded[8:12] == b"WEBP":
        kind = "webp"
    if kind is None:
        return {"error": "it is no PNG, JPEG, GIF, BMP or WebP"}
    if image.height * image.width > _PIXELS:
        return {"error": f"{image.width} x {image.height} pixels are too many for a page"}
    return {
        "kind": kind, "height": image.height, "width": image.width,
        "bytes": np.frombuffer(image.encoded, np.uint8),
    }  # fmt: skip


def _text(text: str) -> Item:
    data = text[:_TEXT].encode("utf-8", "replace")
    return {"bytes": np.frombuffer(data, np.uint8), "cut": max(0, len(text) - _TEXT)}


def _sound(audio: Any) -> Item:
    if not audio.encoded.startswith(b"RIFF"):
        return {"error": "it is no WAV file"}
    seconds = audio.frames / audio.rate if audio.rate > 0 else None
    return {"bytes": np.frombuffer(audio.encoded, np.uint8), "seconds": seconds}


def _curve(curve: Any) -> Item:
    precision_and_recall = np.ascontiguousarray(curve[PRECISION : RECALL + 1], "<f4")
    return {"bytes": precision_and_recall.reshape(-1).view(np.uint8)}
