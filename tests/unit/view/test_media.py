"""What a page has of images, texts, sounds and PR curves: newest and first kept, within their budget."""

import numpy as np
import pytest

import distsummary as ds
from distsummary.format.records import Audio, Image, Value
from distsummary.view.media import evenly, media
from tests.unit.runs.recording import record


def noise(step, rank, side=16):
    """A picture whose PNG is about as large as its pixels, 3 * side**2 bytes."""
    pixels = np.random.default_rng([step, rank]).integers(0, 256, (side, side, 3), np.uint8)
    return Value("image", "noise", pixels)


def size(found):
    items = [item for one in found["tags"] for items in one["items"] for item in items if item]
    return sum(map(len, {item["bytes"].tobytes() for item in items}))


def test_ranks_stand_side_by_side_at_the_steps_that_they_recorded(tmp_path):
    for rank, steps in ((0, [1, 2]), (1, [2, 3])):
        record(tmp_path, rank=rank, ranks=2, steps=steps, values=lambda step, rank: [noise(step, rank)])
    run = ds.open_run(tmp_path)
    found = media(run)
    assert found["texts"] is None
    [one] = found["images"]["tags"]
    assert (one["tag"], one["ranks"], one["all_ranks"], one["recorded"]) == ("noise", [0, 1], 2, 3)
    assert one["steps"].tolist() == [1, 2, 3]
    assert [[item is not None for item in items] for items in one["items"]] == [[1, 0], [1, 1], [0, 1]]
    item = one["items"][1][1]
    assert (item["kind"], item["height"], item["width"]) == ("png", 16, 16)
    [row] = [row for row in run.images("noise", 1) if row.step == 2]
    assert item["bytes"].tobytes() == row.value.encoded


def test_in_a_budget_the_newest_and_the_first_stay_and_the_rest_is_spread_evenly(tmp_path):
    record(tmp_path, steps=range(1, 201), values=lambda step, rank: [noise(step, rank)])
    found = media(ds.open_run(tmp_path), image_bytes=17_000)["images"]
    [one] = found["tags"]
    assert one["recorded"] == 200
    assert 15_500 < size(found) <= 17_000
    steps = one["steps"].tolist()
    assert (steps[0], steps[-1]) == (1, 200)
    gaps = np.diff(steps)
    assert gaps.max() <= 2 * gaps[:-1].min() + 1


def test_what_is_too_large_is_named_and_leaves_room_for_other_tags_and_ranks(tmp_path):
    def values(step, rank):
        large = noise(step, rank, side=100)
        return [
            large._replace(tag="large"),
            noise(step, rank),
            Value("image", "same", np.zeros((4, 4, 3), np.uint8)),
        ]

    for rank in range(20):
        record(tmp_path, rank=rank, ranks=20, steps=[1, 2, 3], values=values)
    found = media(ds.open_run(tmp_path), image_bytes=20_000)["images"]
    large, small, same = found["tags"]
    assert (large["steps"].size, large["items"], large["all_ranks"]) == (0, [], 20)
    assert large["size"] > 30_000
    assert (small["ranks"], small["steps"].tolist()) == ([0, 1, 2], [1, 2, 3])
    assert (same["ranks"], same["steps"].tolist()) == (
        [*range(16)],
        [1, 2, 3],
    )  # what is the same counts once
    assert size(found) <= 20_000


def test_what_no_browser_shows_is_said(tmp_path):
    def values(step, rank):
        return [
            Value("image", "svg", Image(height=1, width=1, encoded=b"<svg onload='alert(1)'/>")),
            Value("image", "huge", Image(height=100_000, width=1000, encoded=b"\x89PNG\r\n\x1a\n")),
            Value("image", "jpeg", Image(height=1, width=1, encoded=b"\xff\xd8\xff\xe0")),
        ]

    record(tmp_path, steps=[1], values=values)
    found = [one["items"][0][0] for one in media(ds.open_run(tmp_path))["images"]["tags"]]
    assert [item.get("error", item.get("kind")) for item in found] == [
        "it is no PNG, JPEG, GIF, BMP or WebP", "1000 x 100000 pixels are too many for a page", "jpeg"
    ]  # fmt: skip


def test_texts_are_cut_and_those_of_the_run_itself_are_in_the_overview(tmp_path):
    long = "é<b>" * 5000

    def values(step, rank):
        return [Value("text", "note", f"{step} {long}"), Value("text", "zz_run", "| a |")]

    record(tmp_path, values=values)
    found = media(ds.open_run(tmp_path), text_bytes=40_000)
    assert found["images"] is None
    [one] = found["texts"]["tags"]
    assert one["steps"].tolist() == [1, 3, 5]
    [item] = one["items"][-1]
    assert item["bytes"].tobytes().decode() == f"5 {long}"[:10_000]
    assert item["cut"] == 10_002
    record(tmp_path / "none")
    assert media(ds.open_run(tmp_path / "none")) is None


@pytest.mark.parametrize("count", [0, 1, 2, 7, 64, 65])
def test_evenly_gives_each_place_once(count):
    found = [*evenly(count)]
    assert sorted(found) == [*range(count)]
    if count == 64:
        assert sorted(found[:8]) == [0, 8, 16, 24, 32, 40, 48, 56]


def test_sounds_and_pr_curves_are_there_as_a_browser_takes_them(tmp_path):
    curve = np.arange(18, dtype=np.float32).reshape(6, 3)

    def values(step, rank):
        return [
            Value("audio", "voice", Audio(rate=8000, channels=1, frames=400, encoded=b"RIFF...")),
            Value("audio", "other", Audio(rate=0, channels=1, frames=1, encoded=b"OggS")),
            Value("pr_curve", "cats", curve),
        ]

    record(tmp_path, steps=[1], values=values)
    found = media(ds.open_run(tmp_path))
    sounds = {one["tag"]: one["items"][0][0] for one in found["sounds"]["tags"]}
    assert sounds["voice"]["bytes"].tobytes() == b"RIFF..."
    assert sounds["voice"]["seconds"] == 0.05
    assert sounds["other"] == {"error": "it is no WAV file"}
    [cats] = found["curves"]["tags"]
    assert cats["items"][0][0]["bytes"].tobytes() == curve[4:].tobytes()
