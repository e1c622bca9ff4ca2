"""DeepSpeed: the calls of an optimizer by which its engine makes one step are parts of that step.

ZeRO steps an optimizer once for each group of parameters, after it has clipped what this rank holds of their
gradients. So the norm is the engine's, that of all gradients of all ranks before they are clipped.
"""

import functools
from typing import Any

from distsummary.base.terminal import announced
from distsummary.integrations import follower
from distsummary.integrations.after_import import after_import

NORM = "_global_grad_norm"  # of an optimizer of DeepSpeed's, what the engine's get_global_grad_norm returns


@functools.cache
def follow_deepspeed() -> None:
    """Follow each engine that this process makes; a second call does nothing."""
    after_import("deepspeed.runtime.engine", _follow_engines)


def _follow_engines(module: Any) -> None:
    engine, scaling, clip = module.DeepSpeedEngine, module.ZeROOptimizer, module.clip_grad_norm_
    # This is also the step of DeepSpeed's engine for pipelines.
    engine._take_model_step = _step(engine._take_model_step)
    # Without ZeRO, the engine clips by this function.
    module.clip_grad_norm_ = follower.follow_clip(clip)
    scaling.scale_if_loss = follower.follow_scale(scaling.scale_if_loss)


def _step(call: Any) -> Any:
    @functools.wraps(call)
    def step(engine: Any, *args: Any, **named: Any) -> Any:
        followed = follower.current_follower()
        if followed is None:
            return call(engine, *args, **named)
        # ZeRO's optimizer holds flat copies of the model's parameters, by which the model cannot be found.
        followed.model = engine.module
        followed.call(followed.begin_parts)
        is_done = False
        try:
            result = call(engine, *args, **named)
            is_done = True
            return result
        finally:
            followed.call(_end, followed, engine, is_done)

    return step


def _end(followed: follower.Follower, engine: Any, is_done: bool) -> None:
    """The engine has stepped, or failed, or left the step out, as gradients were not finite."""
    if hasattr(engine.optimizer, NORM):
        norm = engine.get_global_grad_norm()
        followed.note_norm(norm)
        if norm is None:
            _report_missing()
    followed.end_parts(is_done)


@functools.cache
def _report_missing() -> None:
    announced("distsummary: grad_norm is missing: DeepSpeed does not compute it (compute_grad_norm is false)")
