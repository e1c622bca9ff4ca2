"""What the ranks of a host write arrives at the home of their run, whatever fails between."""

import dataclasses
import fcntl
import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any  # the arguments of Ship

import pytest

from distsummary.base.processes import own_process
from distsummary.errors import InvalidValueError, RunDirError
from distsummary.events.retention import removed_below
from distsummary.events.segments import segments
from distsummary.format.records import MINDSPORE
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.rank_manifest import RankManifest, read_entries
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
from distsummary.storage import place, spool
from distsummary.storage.home import DirectoryHome, Entered, HostState, News, Seen
from distsummary.storage.ship import Ship
from distsummary.storage.spool import GONE, GROW, PART, WHOLE, Change, Spool
from tests.bounded_files import events, write, writer

EVENTS = "rank_00001/events.out.events.summary.1.h_MS"
RANK = "s", own_process(), "rank_00001", 0
DEAD = own_process() | {"pid": 2**22 - 1, "pid_start": "1"}


def put(base: Path, name: str, data: bytes, *, appends: bool = False) -> None:
    path = base / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if appends:
        with path.open("ab") as file:
            file.write(data)
    else:
        temporary = path.with_name(".tmp-x")
        temporary.write_bytes(data)
        temporary.replace(path)


def manifest(base: Path, attempt: int, *, has_ended: bool = False) -> None:
    """Enter rank 1 of 2 in an attempt of a run dir or a spool."""
    topology = Topology(rank=1, world_size=2, incarnation=f"start-{attempt}")
    coordinator = LocalCoordinator(RunDir(base))
    coordinator.claim(topology, attempt)
    if has_ended:
        (base / "run.json").unlink(missing_ok=True)
        coordinator.leave(topology, attempt, {})


class HeldShip(Ship):
    """A ship whose thread begins when an event is set; at once, it might end before its rank arrives."""

    def __init__(self, begin: threading.Event, *given: Any, **options: Any) -> None:
        self._begin = begin
        super().__init__(*given, **options)

    def _run(self) -> None:
        self._begin.wait()
        super()._run()


class Trip:
    """A spool and its home; what is sent between them is kept, and can be made to fail."""

    def __init__(self, directory: Path) -> None:
        self.spool, self.base = directory / "spool", directory / "home"
        for path in (self.spool, self.base):
            path.mkdir()
        self.home = DirectoryHome(RunDir(self.base))
        self.sent: list[str] = []
        self.fails = False
        self.then: list[Callable[[], None]] = []  # called after an exchange
        self.ships: list[Ship] = []
        self.begin, self.ended = threading.Event(), threading.Event()
        self.enter, self.leave = self.home.enter, self.home.leave

    def exchange(
        self, host: HostState, held: Mapping[str, int], changes: Sequence[Change], seen: Seen
    ) -> News:
        if self.fails:
            raise TimeoutError("the cable is cut")
        self.sent += [f"{change.kind} {change.name}" for change in changes]
        news = self.home.exchange(host, held, changes, seen)
        while self.then:
            self.then.pop()()
        return news

    def ship(self, *, round_s: float = 60.0, linger_s: float = 60.0) -> Ship:
        options = {"round_s": round_s, "linger_s": linger_s}
        self.ships.append(HeldShip(self.begin, self.spool, self, self.ended.set, **options))
        return self.ships[-1]

    def states(self) -> list[str]:
        """Those of the attempts of rank 1, at home."""
        found = read_entries(self.base / "rank_00001")
        assert found
        return [entry["state"] for entry in found.attempts]

    def arrives(self, name: str, data: bytes) -> bool:
        return (self.base / name).read_bytes() == data


@pytest.fixture
def trip(tmp_path: Path) -> Iterator[Trip]:
    found = Trip(tmp_path)
    yield found
    found.begin.set()
    for ship in found.ships:
        ship.close()
    found.home.leave("rank_00001")
    found.home.leave("ckpt_dir")


def test_files_arrive_as_they_are_and_news_come_back(trip: Trip) -> None:
    put(trip.base, "run.json", b"{}")
    put(trip.base, "alerts.jsonl", b"{}\n")
    ship = trip.ship()
    ship.enter(*RANK)
    manifest(trip.spool, 0)
    put(trip.spool, EVENTS, b"abc")
    put(trip.spool, "rank_00001/.rank.lock", b"")
    put(trip.spool, "rank_00001/stuck.json", b"[1]")
    put(trip.spool, "ckpt_dir/net-1.safetensors", bytes(100))
    ship.leave(*RANK)
    assert trip.arrives(EVENTS, b"abc")
    assert trip.arrives("ckpt_dir/net-1.safetensors", bytes(100))
    assert not (trip.base / "rank_00001" / ".rank.lock").exists()
    assert (trip.spool / "run.json").read_bytes() == b"{}"
    assert (trip.spool / "alerts.jsonl").read_bytes() == b"{}\n"

    ship.enter(*RANK)
    put(trip.spool, EVENTS, b"def", appends=True)
    (trip.spool / "rank_00001" / "stuck.json").unlink()
    put(trip.base, "alerts.jsonl", b"{}\n{}\n")
    trip.sent.clear()
    ship.leave(*RANK)
    assert trip.arrives(EVENTS, b"abcdef")
    assert not (trip.base / "rank_00001" / "stuck.json").exists()
    assert (trip.spool / "alerts.jsonl").read_bytes() == b"{}\n{}\n"
    assert sorted(trip.sent) == ["gone rank_00001/stuck.json", f"grow {EVENTS}"]


def test_a_new_ship_sends_what_the_one_before_did_not_and_removes_what_is_gone(trip: Trip) -> None:
    first = trip.ship()
    first.enter(*RANK)
    manifest(trip.spool, 0)
    put(trip.spool, EVENTS, b"abc")
    put(trip.spool, "rank_00001/stuck.json", b"[1]")
    first.leave(*RANK)
    put(trip.spool, EVENTS, b"def", appends=True)
    (trip.spool / "rank_00001" / "stuck.json").unlink()
    trip.home.leave("rank_00001")
    trip.sent.clear()
    second = trip.ship()
    second.enter(*RANK)
    assert trip.arrives(EVENTS, b"abcdef")
    assert not (trip.base / "rank_00001" / "stuck.json").exists()


def test_while_the_home_does_not_answer_all_is_kept(trip: Trip) -> None:
    ship = trip.ship()
    ship.enter(*RANK)
    manifest(trip.spool, 0)
    trip.fails = True
    put(trip.spool, EVENTS, b"abc")
    with pytest.raises(TimeoutError):
        ship.leave(*RANK)
    trip.fails = False
    ship.leave(*RANK)
    assert trip.arrives(EVENTS, b"abc")


def test_it_ends_when_its_ranks_have_died_and_all_was_sent(trip: Trip) -> None:
    put(trip.spool, EVENTS, b"abc")
    ship = trip.ship(round_s=0.01, linger_s=0.0)
    ship.enter("s", DEAD, "rank_00001", 0)
    trip.begin.set()
    assert trip.ended.wait(60)
    assert trip.arrives(EVENTS, b"abc")
    assert not trip.spool.exists()


def test_what_was_written_while_it_sent_is_sent_before_it_ends(trip: Trip) -> None:
    put(trip.spool, EVENTS, b"abc")
    ship = trip.ship(round_s=0.01, linger_s=0.0)
    ship.enter("s", DEAD, "rank_00001", 0)
    trip.then.append(lambda: put(trip.spool, EVENTS, b"def", appends=True))
    trip.begin.set()
    assert trip.ended.wait(60)
    assert trip.arrives(EVENTS, b"abcdef")


@pytest.mark.parametrize("has_called", [True, False])
def test_it_stays_while_a_rank_writes_though_its_call_failed_or_has_not_come(trip: Trip, has_called: bool):
    def fails(directory: str, attempt: int) -> Entered:
        raise TimeoutError("the home is slow")

    put(trip.spool, EVENTS, b"abc")
    ship = trip.ship(round_s=0.01, linger_s=0.0)
    with (trip.spool / EVENTS).open("ab") as file:
        if has_called:
            trip.enter = fails
            with pytest.raises(TimeoutError):
                ship.enter(*RANK)
            trip.enter = trip.home.enter
        else:
            fcntl.flock(file, fcntl.LOCK_EX)  # as its writer does
        trip.begin.set()
        for _ in range(3):
            exchanged = threading.Event()
            trip.then.append(exchanged.set)
            file.write(b"def")
            file.flush()
            assert exchanged.wait(60)
    if has_called:
        ship.leave(*RANK)
    assert trip.ended.wait(60)
    assert trip.arrives(EVENTS, b"abcdefdefdef")
    assert not trip.spool.exists()


def test_when_its_ranks_have_left_it_needs_no_home(trip: Trip) -> None:
    ship = trip.ship(round_s=0.01, linger_s=0.0)
    ship.enter(*RANK)
    manifest(trip.spool, 0)
    ship.leave(*RANK)
    trip.fails = True
    trip.begin.set()
    assert trip.ended.wait(60)
    assert not trip.spool.exists()


def test_what_is_too_large_stays_and_is_named(trip: Trip) -> None:
    names = [f"ckpt_dir/net-{number}.safetensors" for number in range(3)]
    for name in names:
        put(trip.spool, name, bytes(100))
    put(trip.spool, "ckpt_dir/train_metadata.json", bytes(100))  # it lists them
    ship = trip.ship(round_s=0.01, linger_s=0.0)
    ship.enter("s", DEAD, "rank_00001", 0, bulk_bytes=250)
    trip.begin.set()
    assert trip.ended.wait(60)
    assert [(trip.base / name).exists() for name in names] == [True, True, False]
    assert trip.arrives("ckpt_dir/train_metadata.json", bytes(100))
    assert (trip.spool / names[2]).stat().st_size == 100
    assert RunDir(trip.base).kept() == {platform.node(): [str(trip.spool / names[2])]}


def test_what_ranks_left_behind_is_sent_later(trip: Trip) -> None:
    manifest(trip.spool, 0)
    put(trip.spool, EVENTS, b"abc")
    ship = trip.ship()
    assert ship.sync() == 1
    assert trip.arrives(EVENTS, b"abc")
    assert ship.sync() == 0


def test_the_checkpoints_are_listed_by_the_host_of_the_first_rank_alone(trip: Trip) -> None:
    name = "ckpt_dir/train_metadata.json"
    put(trip.base, name, b"[1]")
    assert trip.home.enter("rank_00001", 0).files == {}
    assert trip.home.enter("rank_00000", 2).files == {name: b"[1]"}
    for held, expected in (
        ({"rank_00000": 1}, b"[1]"),
        ({"rank_00001": 2}, b"[1]"),
        ({"rank_00000": 2}, b"[2]"),
    ):
        trip.home.exchange(HostState("h1"), held, [Change(name, WHOLE, 0, b"[2]")], Seen())
        assert trip.arrives(name, expected)


def test_a_rank_has_on_another_host_what_it_reported_before(trip: Trip, tmp_path: Path) -> None:
    manifest(trip.base, 0)
    put(trip.spool, "rank_00001/stuck.json", b"[1]")  # of an attempt long ago
    trip.ship().enter("s", own_process(), "rank_00001", 1)
    manifest(trip.spool, 1)
    assert not (trip.spool / "rank_00001" / "stuck.json").exists()
    text = (trip.spool / "rank_00001" / "manifest.json").read_text()
    assert text.count('"attempt"') == 2


def test_an_older_ship_that_wakes_up_replaces_nothing(trip: Trip) -> None:
    manifest(trip.base, 1)
    kept = (trip.base / "rank_00001" / "manifest.json").read_bytes()
    changes = [
        Change("rank_00001/manifest.json", WHOLE, 0, b"{}"),
        Change("rank_00001/facts.json", GONE),
        Change(EVENTS, GROW, 0, b"abc"),
    ]
    trip.home.exchange(HostState("h1"), {"rank_00001": 0}, changes, Seen())
    assert trip.arrives("rank_00001/manifest.json", kept)
    assert trip.arrives(EVENTS, b"abc")


def test_each_host_is_right_about_the_attempt_that_it_writes(trip: Trip, tmp_path: Path) -> None:
    """Of three attempts on three hosts, the end of the first is reported late, by a ship that slept."""
    ranks = [
        RankManifest(RunDir(tmp_path / f"h{number}"), Topology(rank=1, world_size=2)) for number in range(3)
    ]

    def send(attempt: int) -> None:
        change = Change("rank_00001/manifest.json", WHOLE, 0, ranks[attempt].path.read_bytes())
        trip.home.exchange(HostState(f"h{attempt}"), {"rank_00001": attempt}, [change], Seen())

    for attempt, rank in enumerate(ranks):
        trip.home.enter("rank_00001", attempt)
        # As if the home had not answered: the host does not know the attempts before.
        rank.claim(attempt, lambda known: None)
        send(attempt)
    assert trip.states() == ["running"] * 3
    for attempt in (0, 2):
        ranks[attempt].leave(attempt, "finished", error="", health={})
        send(attempt)
    assert trip.states() == ["finished", "running", "finished"]


def test_a_rank_runs_at_home_before_its_ship_sends_anything(trip: Trip, tmp_path: Path) -> None:
    """Its attempt before ran on another host, whose ship reports that end later."""
    topologies = [Topology(rank=1, world_size=2, incarnation=f"start-{number}") for number in range(2)]
    old, new = (RunDir(tmp_path / f"h{number}") for number in range(2))

    def send(run_dir: RunDir, attempt: int) -> None:
        change = Change(
            "rank_00001/manifest.json", WHOLE, 0, RankManifest(run_dir, topologies[0]).path.read_bytes()
        )
        trip.home.exchange(HostState(run_dir.base.name), {"rank_00001": attempt}, [change], Seen())

    LocalCoordinator(old).claim(topologies[0], 0)
    send(old, 0)
    trip.home.claim(topologies[1], 1)
    assert trip.states() == ["running", "running"]
    assert RunDir(trip.base).sent_at(platform.node())
    RankManifest(old, topologies[0]).leave(0, "finished", error="", health={})
    send(old, 0)
    assert trip.states() == ["finished", "running"]
    with pytest.raises(RunDirError, match="rank 1"):
        trip.home.claim(dataclasses.replace(topologies[1], session="another", pid=1), 1)
    # Its ship had begun too late to give it what it reported before.
    LocalCoordinator(new).claim(topologies[1], 1)
    RankManifest(new, topologies[1]).leave(1, "finished", error="", health={})
    trip.home.enter("rank_00001", 1)
    send(new, 1)
    assert trip.states() == ["finished", "finished"]


def test_an_event_that_has_arrived_is_not_removed_with_the_spool(trip: Trip) -> None:
    held = {"rank_00001": 0}
    trip.home.exchange(HostState("h1"), held, [Change(EVENTS, GROW, 0, b"abc"), Change(EVENTS, GONE)], Seen())
    assert trip.arrives(EVENTS, b"abc")


def test_a_ship_that_has_ended_takes_no_rank(trip: Trip) -> None:
    ship = trip.ship(round_s=0.01, linger_s=0.0)
    trip.begin.set()
    assert trip.ended.wait(60)
    with pytest.raises(RunDirError, match="has ended"):
        ship.enter(*RANK)


def test_a_part_whose_beginning_is_lost_is_asked_for_again(trip: Trip) -> None:
    held = {"rank_00001": 0}
    late = [Change(EVENTS, GROW, 3, b"def"), Change("rank_00001/facts.json", PART, 4, b"x")]
    assert trip.home.exchange(HostState("h1"), held, late, Seen()).again == (EVENTS, "rank_00001/facts.json")
    assert (trip.base / EVENTS).stat().st_size == 0
    assert not (trip.base / "rank_00001" / "facts.json").exists()


def test_a_file_is_replaced_as_often_as_it_is_sent_and_nothing_is_left(trip: Trip) -> None:
    name, held = "rank_00001/manifest.json", {"rank_00001": 0}
    for data in (b"[1, 2, 3]", b"[4]", b"[5, 6]", b"[7, 8, 9, 10]"):
        trip.home.exchange(HostState("h1"), held, [Change(name, WHOLE, 0, data)], Seen())
        assert trip.arrives(name, data)
    assert (trip.base / name).stat().st_nlink == 1
    # A part of which the beginning is lost is not added to what was sent before.
    assert trip.home.exchange(HostState("h1"), held, [Change(name, WHOLE, 3, b"x")], Seen()).again == (name,)
    trip.home.exchange(HostState("h1"), held, [Change(name, WHOLE, 0, b"[]", 0o600)], Seen())
    assert (trip.base / name).stat().st_mode & 0o777 == 0o600
    trip.home.close()
    assert [path.name for path in trip.base.iterdir() if not path.name.startswith(".host")] == ["rank_00001"]


@pytest.mark.parametrize(
    "name",
    [
        "../x", "/etc/x", "rank_00001/../../x", "rank_00001//x", "rank_00001/.hidden", "run.json",
        "landscape/x", "a\0",
    ],
)  # fmt: skip
def test_names_that_no_rank_writes_are_refused(trip: Trip, name: str) -> None:
    with pytest.raises(RunDirError, match="no rank writes"):
        trip.home.exchange(HostState("h1"), {}, [Change(name, WHOLE, 0, b"x")], Seen())


def test_a_link_out_of_the_run_dir_is_not_followed(trip: Trip, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (trip.base / "rank_00001").symlink_to(tmp_path / "other")
    with pytest.raises(RunDirError, match="symbolic link"):
        trip.home.exchange(HostState("h1"), {"rank_00001": 0}, [Change(EVENTS, GROW, 0, b"x")], Seen())
    assert not [*(tmp_path / "other").iterdir()]


def test_large_files_go_in_parts_behind_events_and_the_end_of_a_rank_behind_both(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "PART_BYTES", 10)
    found = Spool(tmp_path)
    found.hold("rank_00001", {}, ())
    manifest(tmp_path, 0)
    put(tmp_path, EVENTS, b"a")
    assert found.changes(1)[0][0].name == "rank_00001/manifest.json"  # while it runs, before the events
    (tmp_path / "rank_00001" / "manifest.json").write_text(
        (tmp_path / "rank_00001" / "manifest.json").read_text().replace('"running"', '"finished"')
    )
    put(tmp_path, EVENTS, bytes(24), appends=True)
    put(tmp_path, "ckpt_dir/a", bytes(25))
    order = []
    while True:
        changes, sent = found.changes(1)
        if not changes:
            break
        found.commit(sent)
        order += [(change.name, change.kind, change.at) for change in changes]
    assert order == [
        *((EVENTS, GROW, at) for at in (0, 10, 20)),
        *(
            ("rank_00001/manifest.json", kind, at)
            for kind, at in order_of(tmp_path / "rank_00001/manifest.json")
        ),
        *(("ckpt_dir/a", kind, at) for kind, at in ((PART, 0), (PART, 10), (WHOLE, 20))),
    ]


def order_of(path: Path) -> list[tuple[str, int]]:
    places = [*range(0, path.stat().st_size, 10)]
    return [(WHOLE if at == places[-1] else PART, at) for at in places]


NODES = [
    {"Alive": True, "NodeID": "a", "NodeManagerAddress": "10.0.0.1", "Resources": {place.HEAD: 1.0}},
    {
        "Alive": True, "NodeID": "b", "NodeManagerAddress": "10.0.0.2", "NodeManagerHostname": "h2",
        "Resources": {},
    },
    {"Alive": False, "NodeID": "c", "NodeManagerAddress": "10.0.0.3", "Resources": {}},
]  # fmt: skip
MOUNTS = "disk / ext4 rw 0 0\nserver:/x /shared nfs4 rw 0 0\ntmp /shared/fast tmpfs rw 0 0\n"


@pytest.mark.parametrize(("wanted", "found"), [(None, "a"), ("b", "b"), ("10.0.0.2", "b"), ("h2", "b")])
def test_the_home_is_the_head_or_the_node_that_the_user_names(monkeypatch, tmp_path, wanted, found):
    monkeypatch.delenv(place.HOME, raising=False)
    if wanted:
        monkeypatch.setenv(place.HOME, wanted)
    assert place.home_node(NODES, "b", tmp_path) == found
    if not wanted:  # a file system that may be of several hosts
        assert place.home_node(NODES, "b", Path("/proc/runs")) == "b"


def test_a_home_that_is_no_living_node_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(place.HOME, "c")
    with pytest.raises(InvalidValueError, match=r"must be the id.*the cluster has 10\.0\.0\.1, 10\.0\.0\.2"):
        place.home_node(NODES, "b", tmp_path)


@pytest.mark.parametrize(
    ("path", "is_local"), [("/data/runs", True), ("/shared/runs/a", False), ("/shared/fast/a", True)]
)
def test_a_disk_is_of_one_host_by_the_kind_of_its_file_system(path: str, is_local: bool) -> None:
    assert place.is_on_local_disk(Path(path), MOUNTS) == is_local


def test_the_spool_is_private_and_one_for_each_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(place.SPOOL, str(tmp_path / "spools"))
    one, other = (place.spool_of(Path("/data/runs/a"), node) for node in "ab")
    assert one != other
    assert one == place.spool_of(Path("/data/runs/a"), "a")
    assert {os.stat(path).st_mode & 0o777 for path in (tmp_path / "spools", one, other)} == {0o700}
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(place.SPOOL, str(tmp_path / "file"))
    with pytest.raises(RunDirError, match="is not a directory of yours"):
        place.spool_of(Path("/data/runs/a"), "a")


def test_files_without_their_old_bulk_values_replace_those_at_home(trip: Trip) -> None:
    found, target = events(), writer(trip.spool / "rank_00001", formats=(MINDSPORE,))
    ship = trip.ship()
    ship.enter(*RANK)
    manifest(trip.spool, 0)
    for at in range(12, len(found) + 12, 12):
        write(target, found[:at])
        if at == 36:
            # It is killed. The next ship cannot know of which file the bytes are that have arrived.
            trip.home.leave("rank_00001")
        elif at == 72:
            ship = trip.ship()
            ship.enter("t", *RANK[1:])
        elif not 36 < at < 72:
            ship.sync()
    target.close()
    ship.leave("t", *RANK[1:])
    sent = segments(trip.spool / "rank_00001", MINDSPORE)
    assert len([one for one in sent if removed_below([one]).values]) > 3
    assert all(trip.arrives(f"rank_00001/{one.name}", one.read_bytes()) for one in sent)
    # Bytes of a file before it was replaced, which were under way.
    oldest = sent[0]
    late = Change(f"rank_00001/{oldest.name}", GROW, 100, bytes(300))
    trip.exchange(HostState("h"), {}, [late], Seen())
    assert trip.arrives(late.name, oldest.read_bytes())
