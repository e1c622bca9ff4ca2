"""The driver of L2 under Ray: ADDRESS PLACE SEED COLLECTIVE RANKS RESOURCE are its arguments."""

import sys
from functools import partial
from pathlib import Path

import ray

import distsummary as ds
from tests.torture.rank import train


def main() -> None:
    """Launch the ranks in the harness's cluster."""
    address, place, seed, collective, ranks, resource = sys.argv[1:]
    ray.init(address=address, log_to_driver=False, logging_level="error")
    is_collective = collective == "1"
    ds.launch(
        partial(train, Path(place), int(seed), is_collective),
        ranks=int(ranks),
        resources_per_rank={resource: 1},
        backend="gloo" if is_collective else None,
    )


if __name__ == "__main__":
    main()
