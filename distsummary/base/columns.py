"""Plain text for terminals: aligned columns, durations, and text of others without its control characters."""

import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import TextIO

from distsummary.base.terminal import cleaned

UNLIMITED = sys.maxsize  # the width of a pipe or file, where lines are neither broken nor cut
MIN_WIDTH = 60  # in narrower terminals, lines are broken


def aligned(rows: Sequence[Sequence[str]], *, right: Collection[int] = (), width: int) -> list[str]:
    """Rows of equal length as lines of at most `width` characters; the last column is cut if it must be.

    Args:
        right: the numbers of the columns whose text stands at the right.
    """
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            text.rjust(size) if number in right else text.ljust(size)
            for number, (text, size) in enumerate(zip(row, sizes, strict=True))
        ]
        lines.append(cut("  ".join(cells).rstrip(), width))
    return lines


def wrapped_rows(rows: Sequence[Sequence[str]], *, width: int) -> list[str]:
    """Rows of equal length as aligned lines of at most `width` characters; a cell of any column but the first
    that is longer than its share of the width continues in the lines below, so that nothing is left out.
    """
    # The first column gets at most a third of the width; the others share the rest equally.
    first = min(max(len(row[0]) for row in rows), width // 3)
    share = max(8, (width - first) // (len(rows[0]) - 1) - 2)
    lines: list[tuple[str, ...]] = []
    for name, *texts in rows:
        cells = (textwrap.wrap(text, share, break_on_hyphens=False) for text in texts)
        lines += zip_longest([cut(name, first)], *cells, fillvalue="")
    return aligned(lines, width=width)


def paragraph(text: str, width: int, *, indent: str = "  ", most: int | None = None) -> list[str]:
    """Text in lines of at most `width` characters; without `most`, longer words, such as paths, stay whole.

    Args:
        indent: of the lines after the first. most: how many lines; " ..." stands for the rest.
    """
    return textwrap.wrap(
        text,
        width,
        subsequent_indent=indent,
        break_long_words=most is not None,
        break_on_hyphens=False,
        max_lines=most,
        placeholder=" ...",
    )


def width_of(out: TextIO) -> int:
    """How many characters a line may have: as many as the terminal has, without one any number."""
    return max(MIN_WIDTH, shutil.get_terminal_size().columns) if out.isatty() else UNLIMITED


def cut(text: str, width: int) -> str:
    """The text, or its beginning and "..." if it is longer than `width`."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def without_middle(text: str, most: int) -> str:
    """The text, or its beginning, an ellipsis and its end if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def shortened(path: str, width: int) -> str:
    """The path, or its beginning, "..." and its longer end if it is longer than `width`."""
    if len(path) <= width:
        return path
    head = (width - 3) // 3
    return f"{path[:head]}...{path[head + 3 - width :]}"


def clock(moment: float, now: float) -> str:
    """A local time such as 14:35:00, with the date if it is not that of `now`; both in s since the epoch."""
    then = time.localtime(moment)
    is_today = then[:3] == time.localtime(now)[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", then)


def printable(text: str) -> str:
    """Text of others on one line, see `cleaned`."""
    return cleaned(text.replace("\n", " "))


def quoted(path: str | os.PathLike[str]) -> str:
    """A path in a command that is printed to be copied into a shell."""
    return shlex.quote(printable(os.fspath(path)))


def short_ranges(numbers: Collection[int], width: int = 24) -> str:
    """Ranges such as 0-511,514; if they are longer than `width`, as many as fit and how many numbers."""
    text = as_ranges(numbers)
    if len(text) <= width:
        return text
    count = f"... ({len(numbers)})"
    return text[: text.rfind(",", 0, width - len(count)) + 1] + count


def numbered(count: int, name: str, names: str = "") -> str:
    """Such as 1 rank or 4 ranks; `names`: the plural, if it has no s."""
    return f"{count:,} {name if count == 1 else names or f'{name}s'}"


def named(ranks: Collection[int], word: str = "Rank") -> str:
    """Such as Rank 3 or Ranks 0-2,7."""
    return f"{word}{'' if len(ranks) == 1 else 's'} {short_ranges(ranks, 40)}"


def as_ranges(numbers: Iterable[int], separator: str = ",") -> str:
    """Such as 0-3,8 for the rising numbers 0, 1, 2, 3 and 8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return separator.join("-".join(map(str, part)) for part in parts)
