"""The charts of a merged run on TensorBoard's page CUSTOM SCALARS: how scalars vary over the ranks."""

import re
from collections.abc import Set as AbstractSet

from distsummary.format.records import CUSTOM_SCALARS, Value
from distsummary.pb.tensorboard_custom_scalars_pb2 import Category, Chart, Layout, MarginChartContent

LAYOUT_TAG = "custom_scalars__config__"
_OTHER = "other"
_CATEGORIES = (  # title, and the beginnings of the tags in it; in the order of the page
    ("loss and learning rate", ("loss", "lr", "learning_rate")),
    ("perf", ("perf",)),
    ("system", ("system",)),
)


def charts(statistics: AbstractSet[str]) -> Value | None:
    """The layout of the page; None if there is nothing to show.

    Args:
        statistics: the tags that the merge made (`<tag>/min`, `<tag>/max`, `<tag>/argmax_rank`). A tag with a
            minimum and a maximum gets a band around its mean, and a chart of its `argmax_rank` if it exists.
    """
    by_title: dict[str, list[Chart]] = {title: [] for title in (*dict(_CATEGORIES), _OTHER)}
    maxima = (name.removesuffix("/max") for name in sorted(statistics) if name.endswith("/max"))
    for tag in (tag for tag in maxima if f"{tag}/min" in statistics):
        found = by_title[_title(tag)]
        series = MarginChartContent.Series(value=tag, lower=f"{tag}/min", upper=f"{tag}/max")
        found.append(Chart(title=f"{tag}: mean, min to max", margin=MarginChartContent(series=[series])))
        if (argmax := f"{tag}/argmax_rank") in statistics:
            chart = Chart(title=f"{tag}: rank of the max")
            chart.multiline.tag.append(f"^{re.escape(argmax)}$")  # a regular expression, unlike the others
            found.append(chart)
    categories = [Category(title=title, chart=found) for title, found in by_title.items() if found]
    return Value(CUSTOM_SCALARS, LAYOUT_TAG, Layout(category=categories)) if categories else None


def _title(tag: str) -> str:
    """The title of the category for a tag."""
    root = tag.partition("/")[0]
    return next((title for title, roots in _CATEGORIES if root in roots), _OTHER)
