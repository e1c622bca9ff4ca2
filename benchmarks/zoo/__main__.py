"""The zoo's command line: `python -m benchmarks.zoo --help`; README.md says what it is for."""

import argparse
import json
from pathlib import Path

from benchmarks.zoo.launch import LAUNCHERS, started
from benchmarks.zoo.trainings import SIZES, TRAININGS


def train(given: argparse.Namespace) -> None:
    """Run one training without faults, and print what its ranks measured and what was reported of them."""
    plan = {
        "training": given.training,
        "run_dir": str(given.run_dir),
        "size": given.size or SIZES[given.training],
        "steps": given.steps,
        "seed": given.seed,
        "episodes": json.loads(given.episodes),
        "ranks": given.ranks,
    }
    started(plan, given.launcher)
    for rank in range(given.ranks):
        told = json.loads(Path(f"{given.run_dir}-rank{rank}.json").read_text())
        print(
            f"rank {rank}: own {told['own_ms']:.1f} ms, wall {told['wall_ms']:.1f} ms a step; {told['done']}"
        )
    alerts = given.run_dir / "alerts.jsonl"
    print(alerts.read_text() if alerts.exists() else "no alerts")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("train", help="run one training")
    verb.add_argument("training", choices=TRAININGS)
    verb.add_argument("--run-dir", type=Path, required=True)
    verb.add_argument("--launcher", choices=LAUNCHERS, default="torchrun")
    verb.add_argument("--ranks", type=int, default=4)
    verb.add_argument("--steps", type=int, default=200)
    verb.add_argument("--size", type=int, help="samples of a batch")
    verb.add_argument("--seed", type=int, default=0)
    verb.add_argument("--episodes", default="[]", help="JSON, as `benchmarks.zoo.faults.Faults` takes it")
    verb.set_defaults(do=train)
    given = parser.parse_args()
    given.do(given)


if __name__ == "__main__":
    main()
