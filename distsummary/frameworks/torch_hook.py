"""Hook: what distsummary hangs on the user's modules, parameters and tensors."""

from contextlib import nullcontext
from functools import partial
from typing import Any


class Hook(partial[None]):
    """Calls a function. A copy or a pickle of it does nothing, and needs no distsummary.

    So a copy of a model knows nothing of the run that the model is trained in. It is a `partial` because
    torch.compile sees through these.
    """

    __slots__ = ()
    __torch_unserializable__ = True  # torch need not warn that a pickled tensor loses it

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")  # takes any arguments, returns None
