"""The converters of MindSpore's train_thor: a network that THOR observes, and a Model that trains with it."""

from typing import Any

from distsummary.errors import InvalidTypeError
from distsummary.frameworks.base import CurvatureSource
from distsummary.model.loss_scale import LossScaleManager
from distsummary.model.model import Model


class ConvertNetUtils:
    """Prepares a network for THOR, and takes that back; MindSpore's class of this name."""

    def convert_to_thor_net(self, net: Any) -> None:
        """Observe the trained Linear, Conv2d and Embedding layers of a network from now on.

        They get a forward hook each: modules, parameters, state_dict and outputs stay as they are. THOR calls
        this itself; a second call changes nothing. A weight that modules of different kinds share (an
        embedding tied to the last layer) has no factors. A network may be wrapped by DistributedDataParallel
        or torch.compile, if it has not been compiled yet by a first call.

        Args:
            net: a torch.nn.Module.

        Raises:
            InvalidTypeError: `net` is no module. InvalidValueError: a layer has no weights yet.
        """
        from distsummary.thor.torch_taps import convert

        convert(net)

    def convert_back(self, net: Any) -> None:
        """Undo `convert_to_thor_net`: remove the hooks. A network that was not converted stays as it is.

        Raises InvalidTypeError if `net` is no module.
        """
        from distsummary.thor.torch_taps import convert_back

        convert_back(net)


class ConvertModelUtils:
    """Makes a Model that trains with THOR; MindSpore's class of this name."""

    @staticmethod
    def convert_to_thor_model(
        model: Model,
        network: Any,
        loss_fn: Any = None,
        optimizer: Any = None,
        metrics: Any = None,
        amp_level: str = "O0",
        loss_scale_manager: LossScaleManager | None = None,
        keep_batchnorm_fp32: bool | None = False,
    ) -> Model:
        """A Model of these arguments if the optimizer is THOR; else `model`, as in MindSpore.

        MindSpore builds a second graph for the steps that refresh factors. Here it is THOR that makes the two
        kinds of steps: its hooks observe the network in a step that refreshes and return at once in others,
        and torch.compile keeps a graph of each. So the Model is like any other: it may evaluate while it
        trains, and in sink mode callbacks are called once for each epoch.

        Args:
            model: returned as it is if the optimizer is another one.
            others: as those of `Model`.

        Raises:
            InvalidTypeError: `model` is no Model. The errors of `Model`.
        """
        if not isinstance(model, Model):
            raise InvalidTypeError(f"model must be a distsummary.Model, got {type(model).__name__}")
        if not isinstance(optimizer, CurvatureSource):
            return model
        return Model(
            network,
            loss_fn,
            optimizer,
            metrics,
            amp_level=amp_level,
            loss_scale_manager=loss_scale_manager,
            keep_batchnorm_fp32=keep_batchnorm_fp32,
        )
