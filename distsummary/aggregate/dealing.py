"""Deals the recording of equal values among the ranks of an attempt, and notes in run.json who took what."""

from collections.abc import Collection, Mapping, Sequence

from distsummary.rundir.attempts import key_of, note_fields
from distsummary.rundir.deal import Deal, Heartbeat, deals_in, first_deal, next_deal, with_parts
from distsummary.rundir.rank_manifest import read_ranks
from distsummary.rundir.rank_parts import parts_of
from distsummary.rundir.run_dir import Manifest, RunDir


def deal_among(run_dir: RunDir, entry: Manifest, running: Collection[int]) -> None:
    """Deal among the running ranks, unless the deal in force is one among them; note who took what."""
    files = read_ranks(run_dir, entry["role"], entry["world_size"], running)
    found = {rank: file.entry(entry["attempt"]) for rank, file in files.items()}
    ranks = {rank: one for rank, one in found.items() if one is not None and one["heartbeat"]}
    # The first heartbeat of a rank reports its number of steps, which the deal needs.
    if ranks.keys() != {*running}:
        return
    beats = {
        rank: Heartbeat(**{k: v for k, v in one["heartbeat"].items() if k in Heartbeat._fields})
        for rank, one in ranks.items()
    }
    # Before any rank has begun its loop, there is nothing to deal.
    if all(beat.step == 0 and beat.total is None for beat in beats.values()):
        return
    meshes = {rank: one.get("mesh", {}) for rank, one in ranks.items()}
    deals = deals_in(entry) or (_first_deal(run_dir, entry, ranks),)
    deal = next_deal(deals[-1], meshes, beats)
    # Even without a new deal, each running rank has to be in the deal that run.json holds.
    noted = entry.get("deals", [])
    if deal is not None or not noted or not {*map(str, running)} <= noted[-1]["ranks"].keys():
        _note_deals(run_dir, entry, deals if deal is None else (*deals, deal), is_over=False)


def note_last_deals(run_dir: RunDir, entry: Manifest) -> None:
    """Note the deals of an attempt, with its ranks, that is over."""
    ranks = {int(rank): one for rank, one in entry["ranks"].items()}
    deals = deals_in(entry) or (_first_deal(run_dir, entry, ranks),)
    _note_deals(run_dir, entry, deals, is_over=True)


def _first_deal(run_dir: RunDir, entry: Manifest, ranks: Mapping[int, Manifest]) -> Deal:
    """The deal that the ranks followed without asking; `ranks` are their entries."""
    meshes = {rank: one.get("mesh", {}) for rank, one in ranks.items()}
    parts = parts_of(run_dir.rank_dirs(entry["role"]), entry["attempt"])
    beats = [one["heartbeat"] for rank, one in ranks.items() if rank not in parts and "heartbeat" in one]
    # Until the files of a rank say how many steps it expects, its heartbeat does, if its loop has begun.
    begun = [beat for beat in beats if "total" in beat and (beat["step"] or beat["total"] is not None)]
    totals = [*(of[0].total for of in parts.values()), *(beat["total"] for beat in begun)]
    return first_deal(entry["world_size"], meshes, totals)


def _note_deals(run_dir: RunDir, entry: Manifest, deals: Sequence[Deal], *, is_over: bool) -> None:
    """Write the deals into run.json, with what each rank recorded of them, unless it has them."""
    parts = parts_of(run_dir.rank_dirs(entry["role"]), entry["attempt"])
    stored = with_parts(deals, parts, is_over=is_over)
    if stored != entry.get("deals", []):
        note_fields(run_dir, key_of(entry), {"deals": stored})
