"""Which charts the page CUSTOM SCALARS has for the statistics of a merged run."""

from distsummary.aggregate.charts import charts

NAMES = ("min", "median", "max", "argmax_rank")


def titles(*statistics: str) -> dict[str, list[str]]:
    """The titles of the charts by the title of their category, in TensorBoard's order: from the last one."""
    value = charts(set(statistics))
    return {
        category.title: [chart.title for chart in reversed(category.chart)]
        for category in value.data.category
    }


def test_bands_are_grouped_in_categories() -> None:
    tags = ("val/lr", "zz_system/process/memory_gib", "zz_perf/step_ms", "lr", "loss/auto")
    found = titles("zz_ranks/count", *(f"zz_ranks/{tag}/{name}" for tag in tags for name in NAMES))
    assert found == {
        "loss and learning rate": [
            "loss/auto: median, min to max",
            "loss/auto: rank of the max",
            "lr: median, min to max",
            "lr: rank of the max",
        ],
        "perf": [
            "zz_perf/step_ms: median, min to max",
            "zz_perf/step_ms: rank of the max",
            "zz_ranks/count: on how many ranks a step stands",
        ],
        "system": [
            "zz_system/process/memory_gib: median, min to max",
            "zz_system/process/memory_gib: rank of the max",
        ],
        "other": ["val/lr: median, min to max", "val/lr: rank of the max"],
    }
    assert list(found) == ["loss and learning rate", "perf", "system", "other"]  # as on the page


def test_a_tag_without_all_its_statistics_has_only_the_charts_that_can_be_drawn() -> None:
    names = (
        "zz_ranks/a/min", "zz_ranks/a/median", "zz_ranks/a/max", "zz_ranks/b/max", "zz_ranks/b/argmax_rank",
        "zz_ranks/c/min", "zz_ranks/d/min", "zz_ranks/d/max",
    )  # fmt: skip
    found = titles(*names)
    assert found == {"other": ["a: median, min to max"]}
    assert charts({"zz_ranks/b/max", "zz_ranks/b/argmax_rank"}) is None
    assert charts(set()) is None


def test_charts_are_margin_charts_as_tensorboard_smooths_all_others() -> None:
    value = charts({f"zz_ranks/a/{name}" for name in NAMES})
    [category] = value.data.category
    assert not any(chart.HasField("multiline") for chart in category.chart)
    worst, band = (series for chart in category.chart for series in chart.margin.series)
    assert (band.value, band.lower, band.upper) == ("zz_ranks/a/median", "zz_ranks/a/min", "zz_ranks/a/max")
    assert worst.value == worst.lower == worst.upper == "zz_ranks/a/argmax_rank"
