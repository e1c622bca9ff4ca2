"""The windows of the rank files compared with a plain loop over all events."""

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from distsummary.aggregate import ended_ranks, rank_columns, receiver
from distsummary.aggregate.ended_ranks import EndedRanks
from distsummary.aggregate.rank_columns import by_event, values_at
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD, Event, Value
from tests.event_files import write_events

RUN_ID = "0123456789abcdef"

values = st.one_of(
    st.tuples(st.just("scalar"), st.sampled_from("ab")), st.tuples(st.just("text"), st.sampled_from("tu"))
)
event = st.tuples(st.integers(0, 12), st.lists(values, max_size=3, unique=True))
attempts = st.lists(
    st.tuples(
        st.sampled_from([DIALECTS, (MINDSPORE,), (TENSORBOARD,)]),
        st.lists(st.lists(event, max_size=12), min_size=3, max_size=3),  # of each rank
    ),
    min_size=1,
    max_size=3,
)


def written(base, recorded):
    """The directories of the ranks with all that they recorded; values and times count up."""
    directories = {rank: base / f"rank_{rank}" for rank in range(3)}
    reported, count = [], 0
    for attempt, (formats, ranks) in enumerate(recorded):
        for rank, rows in enumerate(ranks):
            events = []
            for step, named in rows:
                count += 1
                data = {"scalar": float(count), "text": str(count)}
                if named:  # a record without values has no place in a file
                    found = [Value(plugin, tag, data[plugin]) for plugin, tag in named]
                    events.append(Event(step, float(count), found))
                    reported.append((attempt, rank, events[-1]))
            write_events(
                directories[rank], events, run_id=RUN_ID, attempt=attempt, rank=rank, formats=formats
            )
    return directories, reported


def by_loop(reported):
    """step -> (latest time, {(tag, rank): scalar}, {tag: text}); the superseded; the last steps."""
    kept = [
        (rank, event)
        for attempt, rank, event in reported
        if all(event.step < later.step for number, _, later in reported if number > attempt)
    ]
    found = {}
    for rank, (step, time, values) in sorted(kept, key=lambda pair: pair[0]):
        times, scalars, texts = found.setdefault(step, ([], {}, {}))
        times.append(time)
        for plugin, tag, data, *_ in values:
            if plugin == "scalar":
                scalars[tag, rank] = data
            elif texts.get(tag, (rank,))[0] == rank:
                texts[tag] = rank, data
    steps = {
        step: (max(times), scalars, {tag: text for tag, (_, text) in texts.items()})
        for step, (times, scalars, texts) in sorted(found.items())
    }
    last = {rank: max(event.step for of, event in kept if of == rank) for rank, _ in kept}
    return steps, len(reported) - len(kept), last


@given(attempts, st.integers(1, 5), st.sampled_from([1, 4, 1 << 18]), st.integers(1, 4))
@settings(max_examples=60)
def test_windows_of_any_size_hold_what_a_plain_loop_finds(recorded, room, window, lanes):
    with tempfile.TemporaryDirectory() as name:
        directories, reported = written(Path(name), recorded)
        with (
            mock.patch.multiple(receiver, LEAST_ROOM=room, WINDOW=window),
            mock.patch.multiple(ended_ranks, MOST_LANES=lanes, WINDOW=window),
            mock.patch.object(rank_columns, "WINDOW", window),
        ):
            ranks = EndedRanks(directories)
            found = {}
            for part in ranks.windows():
                scalars = part.scalars
                for step, time in zip(part.steps.tolist(), part.times.tolist(), strict=True):
                    assert step > max(found, default=-1)
                    at = np.flatnonzero(scalars.steps == step)
                    by_rank = {
                        (scalars.tags[scalars.which[i]], int(scalars.ranks[i])): scalars.values[i] for i in at
                    }
                    places = [place for place in part.bulk if place.step == step]
                    texts = {
                        place.tag: value.data
                        for group in by_event(places)
                        for place, value in values_at(group)
                    }
                    found[step] = time, by_rank, texts
    assert (found, ranks.superseded, ranks.last_steps) == by_loop(reported)
    assert ranks.damage == []
