"""The values of one step, from the callback parameters: loss, learning rate, images, weights."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from distsummary.base.failures import Failures
from distsummary.collect.plan import LEFT_OUT, share
from distsummary.collect.selection import Selection
from distsummary.collect.values.checked_values import checked_copy, is_real
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.compatibility import OURS, Compatibility
from distsummary.format.own_tags import AUTO, IMAGE_TAG, LEARNING_RATE_TAG, LOSS_TAG
from distsummary.format.records import Shard, Value
from distsummary.frameworks.base import framework_of, spec_of
from distsummary.rundir.deal import Group, Share, Steps
from distsummary.training.callbacks import CallbackParams
from distsummary.training.values import mean_later, mean_of

MAX_IMAGES = 8


def loss_values(outputs: object) -> list[Value]:
    """The loss in the network's outputs; raises InvalidTypeError for outputs that hold no number."""
    loss = mean_of(outputs)
    if loss is None:
        first = outputs[0] if isinstance(outputs, (list, tuple)) and outputs else outputs
        raise InvalidTypeError(
            "net_outputs must be the loss (a real number, a tensor or an array), or a list or tuple that "
            f"begins with it, got {type(first).__name__}; pass the loss, or record none by "
            'collect_specified_data={"collect_metric": False}'
        )
    return [Value("scalar", LOSS_TAG, loss)]


def learning_rate_values(params: CallbackParams) -> list[Value]:
    """The current learning rate of the optimizer."""
    optimizer = params.get("optimizer")
    if optimizer is None:
        return []
    rate = framework_of(optimizer).learning_rate(optimizer)
    if rate is None:
        return []
    return [Value("scalar", LEARNING_RATE_TAG, rate if isinstance(rate, float) else mean_later(rate))]


def unless_logged(rate: list[Value], logged: Mapping[str, object]) -> list[Value]:
    """The learning rate, unless the loop has logged a value named `lr` or `learning_rate`."""
    return [] if "lr" in logged or "learning_rate" in logged else rate


def image_values(batch: object, *, compatibility: Compatibility = OURS) -> list[Value]:
    """The first images of a batch, from its first tensor; none if that tensor is not a picture.

    A picture has the axes of one of `png.LAYOUTS`. An array with two axes must be uint8, since
    floats are probably features, and other integers tokens. `compatibility.images` accepts
    only (N, C, H, W) and takes all images of the batch.
    """
    first: Any = batch[0] if isinstance(batch, (list, tuple)) and batch else batch
    framework = framework_of(first)
    if not framework.is_tensor(first):
        return []
    from distsummary.format.png import layout_of

    shape, dtype = spec_of(IMAGE_TAG, first)
    try:
        layout = layout_of(shape, compatibility=compatibility)
    except InvalidValueError:
        return []
    if (layout == "HW" and dtype != np.uint8) or not is_real(dtype):
        return []
    if layout.startswith("N") and not compatibility.images and framework.shard(first) is None:
        first = first[:MAX_IMAGES]
    return [Value("image", IMAGE_TAG, checked_copy("image", IMAGE_TAG, first))]


class Parameters:
    """Selects and copies the parameters of a model that this rank records.

    A parameter that is whole on this rank is assumed to be equal on all ranks of `group`, which divide such
    parameters among them. Every rank records its shards, with their place in the whole parameter.

    Args:
        selection: which parameters.
        deal: "parameters": each rank records its share at all steps; "steps": the ranks take turns: at
            each step, one rank records all parameters; "all": every rank always records all parameters.
        exports, compatibility: see `checked_values.checked_copy`.
        report: called once with a remark on the selection, if there is something to say.
    """

    def __init__(
        self,
        network: object,
        selection: Selection,
        *,
        group: Group,
        deal: str,
        exports: bool = False,
        compatibility: Compatibility = OURS,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._network = network
        self._framework = framework_of(network)
        self._selection, self._report = selection, report
        self.is_empty = True  # whether nothing was selected, for any rank; set by `due`
        self.dealt: tuple[str, ...] | None = None  # this rank's share, as `due` found it; None: not yet
        self._deal, self._exports, self._compatibility = deal, exports, compatibility
        self.deal_among(group)

    def deal_among(self, group: Group) -> None:
        """From now on, the ranks of `group` divide the parameters that are whole on them."""
        self._group = group if self._deal != "all" else Group()
        self.dealt = None

    def share(self, values: str, steps: Steps, step: int, failures: Failures) -> Share:
        """What this rank records of what is dealt, from a step on; `values` names the kind."""
        if self.dealt is None:
            self.due(steps, step, failures)
        turn = self._group if self._deal == "steps" else None
        return Share(values, self.dealt or (), steps, turn)

    def due(self, steps: Steps, step: int, failures: Failures) -> list[tuple[str, Any, Shard | None]]:
        """What this rank records at a step: name, tensor, and the shard on this rank (None: whole)."""

        def facts(tensor: Any) -> tuple[Shard | None, int]:
            """The shard (None: the tensor is whole here), and the bytes of the whole tensor."""
            return self._framework.shard(tensor), self._framework.whole_nbytes(tensor)

        # Listed each time: parameters may have been added, removed or frozen since.
        parameters: dict[str, Any] = dict(self._framework.named_parameters(self._network))
        selected = self._selection.of(parameters)
        self.is_empty = not selected
        report, self._report = self._report, None
        if report is not None:
            frozen = () if selected else self._framework.frozen_parameters(self._network)
            if remark := self._selection.remark([*parameters], selected, frozen):
                report(remark)
        wanted = [(name, parameters[name]) for name in selected]
        found = {name: failures.call(f"shard of {name}", facts, tensor) for name, tensor in wanted}
        # Only whole parameters are dealt; of a sharded one, each rank records its part.
        sizes = {name: fact[1] for name, fact in found.items() if fact is not None and fact[0] is None}
        if self._deal == "steps":
            mine = frozenset(sizes) if steps.turn(step, self._group) else frozenset()
        else:
            mine = share(sizes, self._group)
        # Where ranks take turns, the share is all parameters, at this rank's turn.
        dealt = sizes if self._deal == "steps" and self._group != LEFT_OUT else mine
        self.dealt = tuple(name for name, _ in wanted if name in dealt)
        shards = {name: (fact or (None, 0))[0] for name, fact in found.items()}
        return [
            (name, tensor, shards[name])
            for name, tensor in wanted
            if name in mine or shards[name] is not None
        ]

    def values(self, plugin: str, steps: Steps, step: int, failures: Failures) -> list[Value]:
        """Copies of this rank's parameters at a step; a failed copy does not affect the others."""

        def snapshot(tag: str, tensor: Any) -> Any:
            # viewers do not show a tensor without dimensions
            whole = tensor if tensor.shape else tensor.reshape(1)
            return checked_copy(plugin, tag, whole, exports=self._exports, compatibility=self._compatibility)

        values = []
        for name, tensor, shard in self.due(steps, step, failures):
            data = failures.call(f"{plugin} of {name}", snapshot, name + AUTO, tensor)
            if data is not None:
                values.append(Value(plugin, name + AUTO, data, shard))
        return values
