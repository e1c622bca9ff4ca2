"""LambdaCallback: a callback made of functions."""

from collections.abc import Callable
from typing import TypeAlias

from distsummary.errors import InvalidTypeError
from distsummary.training.callbacks import Callback, RunContext

Hook: TypeAlias = Callable[[RunContext], object] | None


class LambdaCallback(Callback):
    """Calls the given functions as hooks; each takes the run context. What is not given costs nothing.

        ds.LambdaCallback(on_train_epoch_end=lambda context: print(context.original_args().cur_epoch_num))

    `epoch_begin` ... `end` are the older names: their functions serve training and evaluation alike, as the
    methods of `Callback` with these names do, except where the newer name is given too.

    Raises InvalidTypeError for an argument that is neither None nor callable.
    """

    def __init__(
        self,
        on_train_epoch_begin: Hook = None,
        on_train_epoch_end: Hook = None,
        on_train_step_begin: Hook = None,
        on_train_step_end: Hook = None,
        on_train_begin: Hook = None,
        on_train_end: Hook = None,
        on_eval_epoch_begin: Hook = None,
        on_eval_epoch_end: Hook = None,
        on_eval_step_begin: Hook = None,
        on_eval_step_end: Hook = None,
        on_eval_begin: Hook = None,
        on_eval_end: Hook = None,
        *,
        epoch_begin: Hook = None,
        epoch_end: Hook = None,
        step_begin: Hook = None,
        step_end: Hook = None,
        begin: Hook = None,
        end: Hook = None,
    ) -> None:
        given = {name: hook for name, hook in locals().items() if name not in ("self", "__class__")}
        for name, hook in given.items():
            if hook is None:
                continue
            if not callable(hook):
                raise InvalidTypeError(
                    f"{name} must be callable or None, got {hook!r}; pass a function of the run context"
                )
            # A CallbackList finds hooks of the object, too, not only of its class.
            setattr(self, name, hook)
