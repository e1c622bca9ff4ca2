"""The charts of a merged run on TensorBoard's page CUSTOM SCALARS: how scalars vary over the ranks."""

from collections.abc import Set as AbstractSet

from distsummary.format.own_tags import OF_RANKS, PERF_TAGS, RANKS_TAG, SYSTEM_TAGS, statistics_of
from distsummary.format.pb.tensorboard_custom_scalars_pb2 import Category, Chart, Layout, MarginChartContent
from distsummary.format.records import CUSTOM_SCALARS, Value

LAYOUT_TAG = "custom_scalars__config__"
_OTHER = "other"
# Title, and the first parts of the tags in the category; in the order of the page.
_CATEGORIES = (
    ("loss and learning rate", ("loss/", "lr/", "learning_rate/")),
    ("perf", (PERF_TAGS, OF_RANKS)),
    ("system", (SYSTEM_TAGS,)),
)


def charts(statistics: AbstractSet[str]) -> Value | None:
    """The layout of the page; None if there is nothing to show.

    All charts are margin charts: these are drawn as recorded, while TensorBoard smooths every other chart,
    which would turn ranks 0 and 3 into 1.98. A margin chart needs three series with the same steps, and names
    each run that has some of them but not all; so it has only series that the merged run alone has.

    Args:
        statistics: the tags that the merge made. A tag with a min, a median and a max gets a band, and a
            chart of its argmax_rank if it exists; RANKS_TAG gets a chart.
    """
    by_title: dict[str, list[Chart]] = {title: [] for title in (*dict(_CATEGORIES), _OTHER)}
    for name in sorted(statistics):
        tag = name.removeprefix(OF_RANKS).removesuffix("/max")
        low, middle, high, worst = statistics_of(tag)
        if name != high or not {low, middle} <= statistics:
            continue
        found = by_title[_title(tag)]
        found.append(_chart(f"{tag}: median, min to max", middle, low, high))
        if worst in statistics:
            found.append(_chart(f"{tag}: rank of the max", worst, worst, worst))
    if RANKS_TAG in statistics:
        title = f"{RANKS_TAG}: on how many ranks a step stands"
        by_title[_title(RANKS_TAG)].append(_chart(title, RANKS_TAG, RANKS_TAG, RANKS_TAG))
    # TensorBoard 2.21 shows the charts of a category from the last to the first.
    categories = [Category(title=title, chart=found[::-1]) for title, found in by_title.items() if found]
    return Value(CUSTOM_SCALARS, LAYOUT_TAG, Layout(category=categories)) if categories else None


def _chart(title: str, value: str, lower: str, upper: str) -> Chart:
    series = MarginChartContent.Series(value=value, lower=lower, upper=upper)
    return Chart(title=title, margin=MarginChartContent(series=[series]))


def _title(tag: str) -> str:
    """The title of the category for a tag."""
    first = f"{tag.partition('/')[0]}/"
    return next((title for title, firsts in _CATEGORIES if first in firsts), _OTHER)
