"""Modules that a loss function or a metric holds: in eval mode for a landscape, as the model is."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from distsummary.landscapes.model.torch_loan import preserved


@contextmanager
def at_rest(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Modules in eval mode; afterwards modes, buffers and attributes are bit for bit what they were.

    No value of the user's buffers is written to: some modules write in eval mode too.
    """
    with ExitStack() as restore:
        for module in modules:
            restore.enter_context(preserved(module))
            for part in module.modules():
                restore.callback(setattr, part, "training", part.training)
            for buffer in module.buffers():
                restore.callback(setattr, buffer, "data", buffer.data)
                buffer.data = buffer.data.clone()
            module.eval()
        yield
