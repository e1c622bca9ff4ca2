"""Zero lines: the environment variables that have a script recorded which does not know of it."""

import argparse
import atexit
import json
import os
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from distsummary.base.checks import anchored
from distsummary.base.terminal import announced
from distsummary.integrations.after_import import after_import
from distsummary.integrations.deepspeed import follow_deepspeed
from distsummary.integrations.door_options import TEE, read_options
from distsummary.integrations.follower import Follower, start_following
from distsummary.integrations.ray_functions import follow_functions, function_config

# `followed_run` imports much, so it is imported only when a run begins.
if TYPE_CHECKING:
    from distsummary.integrations.followed_run import FollowedRun

RAY_WORKER = "default_worker.py"  # the script of Ray's processes, whose arguments are no settings


def arm(run_dir: str, options: str) -> None:
    """Record the training of this process, if it makes one.

    Args:
        run_dir, options: the values of DISTSUMMARY and DISTSUMMARY_OPTIONS.
    """
    # So it is the same for the processes that the script starts, from whatever directory.
    run_dir = os.environ["DISTSUMMARY"] = anchored(run_dir)

    def begin(optimizer: Optimizer, model: nn.Module | None) -> "tuple[FollowedRun | None, Optimizer | None]":
        from distsummary.integrations.followed_run import begin_run

        chosen = read_options(options)
        if "config" not in chosen:
            chosen["config"] = function_config() or script_arguments(sys._getframe(1))
        return begin_run(optimizer, model, run_dir=run_dir, options=chosen, has_reports=has_tee)

    follower = start_following(begin, is_default=True)
    atexit.register(_say_unseen, follower)
    after_import("transformers.trainer", _attach_callback)
    follow_deepspeed()
    follow_functions()
    if has_tee := _asks_for_tee(options):
        from distsummary.integrations.tee import open_tee

        open_tee()


def _say_unseen(follower: Follower) -> None:
    """Say at the end of the process that it trained, and nothing was recorded."""
    # A script that made a run of its own needs no word.
    if follower.backwards and follower.run is None and "distsummary.training.run" not in sys.modules:
        announced(
            f"distsummary: nothing was recorded: {follower.backwards:,} backward passes, and no step of a "
            "torch.optim.Optimizer. Three lines record such a loop: run = distsummary.init('runs/a'); "
            "for batch in run.steps(loader): ...; run.log(loss=loss)"
        )


def _attach_callback(module: Any) -> None:
    """Have each Trainer of transformers report its steps, settings and evaluations."""
    from distsummary.integrations.transformers import DefaultCallback

    module.DEFAULT_CALLBACKS.append(DefaultCallback)


def _asks_for_tee(options: str) -> bool:
    """Whether the options ask for the tee. If they are wrong, that is reported at the first step."""
    try:
        return json.loads(options or "{}").get(TEE) is True
    except (ValueError, AttributeError):
        return False


def script_arguments(frame: FrameType | None) -> argparse.Namespace | None:
    """What argparse has parsed for the script: the innermost Namespace in its variables."""
    while frame is not None and os.path.basename(frame.f_code.co_filename) != RAY_WORKER:
        for found in (*frame.f_locals.values(), *frame.f_globals.values()):
            if type(found) is argparse.Namespace:
                return found
        frame = frame.f_back
    return None
