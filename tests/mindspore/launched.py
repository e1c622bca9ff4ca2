"""Launches a training by MindSpore on two ranks of a Ray cluster of its own.

usage: PYTHON launched.py DIR --freq N
"""

import argparse
import os

import distsummary as ds


def train() -> tuple[int, int]:
    """Train as one rank; returns its rank and the argument --freq."""
    from distsummary.mindspore import SummaryCollector
    from tests.mindspore.trainings import Mlp, features, model_of

    arguments = parsed()
    collector = SummaryCollector(arguments.directory, collect_freq=arguments.freq)
    model_of(Mlp()).train(2, features(), callbacks=[collector], dataset_sink_mode=False)
    return int(os.environ["RANK"]), arguments.freq


def parsed() -> argparse.Namespace:
    """The arguments of the script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--freq", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    parsed()
    print(ds.launch(train, ranks=2, address="local"), flush=True)
