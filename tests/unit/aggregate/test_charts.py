"""Which charts the page CUSTOM SCALARS has for the statistics of a merged run."""

import re

from distsummary.aggregate.charts import charts

NAMES = ("min", "median", "max", "argmax_rank")


def titles(*statistics: str) -> dict[str, list[str]]:
    """The titles of the charts by the title of their category."""
    value = charts(set(statistics))
    assert value is not None
    return {category.title: [chart.title for chart in category.chart] for category in value.data.category}


def test_bands_are_grouped_in_categories() -> None:
    tags = ("val/lr", "system/process/memory_gib", "perf/step_ms", "lr", "loss/auto")
    found = titles(*(f"{tag}/{name}" for tag in tags for name in NAMES))
    assert found == {
        "loss and learning rate": [
            "loss/auto: mean, min to max",
            "loss/auto: rank of the max",
            "lr: mean, min to max",
            "lr: rank of the max",
        ],
        "perf": ["perf/step_ms: mean, min to max", "perf/step_ms: rank of the max"],
        "system": [
            "system/process/memory_gib: mean, min to max",
            "system/process/memory_gib: rank of the max",
        ],
        "other": ["val/lr: mean, min to max", "val/lr: rank of the max"],
    }
    assert list(found) == ["loss and learning rate", "perf", "system", "other"]  # as on the page


def test_a_tag_without_all_its_statistics_has_only_the_charts_that_can_be_drawn() -> None:
    assert titles("a/min", "a/max", "b/max", "b/argmax_rank", "c/min") == {"other": ["a: mean, min to max"]}
    assert charts({"b/max", "b/argmax_rank"}) is None
    assert charts(set()) is None


def test_a_rank_chart_matches_only_its_own_tag() -> None:
    value = charts({"a+[b/min", "a+[b/max", "a+[b/argmax_rank"})
    assert value is not None
    [pattern] = value.data.category[0].chart[1].multiline.tag
    assert re.match(pattern, "a+[b/argmax_rank")
    assert not re.match(pattern, "a+[b/argmax_rank/mine")
