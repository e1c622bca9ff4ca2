"""Doubles of what a collector works with, and loops that drive one."""

import numpy as np

from distsummary.base.health import Health
from distsummary.format.records import Scalars
from distsummary.format.scalar_rows import events_of
from distsummary.rundir.attempts import Registration
from distsummary.training.callbacks import CallbackParams, RunContext
from distsummary.training.run import Run

IMAGES = np.linspace(0, 1, 10 * 16, dtype=np.float32).reshape(10, 1, 4, 4)


class ListWriter:
    """Keeps the events; what a writer thread would wait for is waited for at once."""

    def __init__(self):
        self.events, self.flushes, self.closes = [], 0, 0

    def write(self, event):
        values = [
            value._replace(data=value.data.result()) if hasattr(value.data, "result") else value
            for value in event.values
        ]
        self.events.append(event._replace(values=values))

    def write_row(self, tags, row):
        self.events += events_of(Scalars(tags, row))

    def flush(self):
        self.flushes += 1

    def close(self):
        self.closes += 1

    def health(self):
        return Health(events=len(self.events))

    def steps(self, plugin, tag=None):
        """The steps of the events that hold a value of this plugin (and tag)."""
        return [
            event.step
            for event in self.events
            if any(value.plugin == plugin and tag in (None, value.tag) for value in event.values)
        ]

    def values(self, plugin, step=None):
        """Tag to data of one plugin, at one step or all of them (the last of a tag)."""
        return {
            value.tag: value.data
            for event in self.events
            if step in (None, event.step)
            for value in event.values
            if value.plugin == plugin
        }


class ListCoordinator:
    """Keeps what it receives."""

    def __init__(self):
        self.registered, self.finished = [], []

    def register(self, topology):
        self.registered.append(topology)
        return Registration(run_id="00000000000000ab", attempt=3)

    def beat(self, topology, attempt, heartbeat):
        return ()

    def finish(self, topology, attempt, health):
        self.finished.append((topology.rank, attempt, health))


class Model:
    """Six parameters of one, two ... six elements."""

    def __init__(self):
        self.parameters = {f"layer{n}.weight": np.full(n, float(n)) for n in range(1, 7)}

    def __call__(self, inputs):
        return inputs


class Momentum:
    learning_rate = 0.25


def train(collector, *, steps=4, epochs=1, batch=IMAGES, log=None, network=None, **more):
    network = Model() if network is None else network
    with Run(callbacks=collector, network=network, optimizer=Momentum(), **more) as run:
        for _ in run.epochs(epochs):
            for _ in run.steps([batch] * steps):
                run.log(log or {})
    return run


def drive(collector, *, steps, epochs=1, **reported):
    """The hooks as another framework's loop calls them, without anything of ours in what it passes."""
    reported = CallbackParams(
        {"mode": "train", "epoch_num": epochs, "batch_num": steps, "cur_step_num": 0, "network": Model(),
         "optimizer": Momentum(), "list_callback": None} | reported
    )  # fmt: skip
    context = RunContext(reported)
    with collector:
        collector.on_train_begin(context)
        for epoch in range(1, epochs + 1):
            reported.cur_epoch_num = epoch
            collector.on_train_epoch_begin(context)
            for _ in range(steps):
                reported.cur_step_num += 1
                if not reported.get("dataset_sink_mode"):
                    collector.on_train_step_end(context)
                yield reported.cur_step_num
            collector.on_train_epoch_end(context)
        collector.on_train_end(context)
