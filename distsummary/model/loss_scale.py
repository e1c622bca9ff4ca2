"""Loss scale managers: how far a loss is enlarged, so that small float16 gradients do not become zero."""

import math
from collections.abc import Mapping

from distsummary.base.checks import check_int, check_number, check_type
from distsummary.errors import InvalidValueError, NonFiniteError

MAX_BAD_STEPS = 1000  # in a row, as in MindSpore


class LossScaleManager:
    """The base of loss scale managers; derive from it to control the scale in another way."""

    def get_loss_scale(self) -> float:
        """The number by which the loss is multiplied; Model divides the gradients by it again."""
        raise NotImplementedError

    def update_loss_scale(self, overflow: bool) -> None:
        """Called after each step; `overflow`: whether a gradient was NaN or infinite."""

    def get_drop_overflow_update(self) -> bool:
        """Whether a step with an overflow leaves the parameters as they are."""
        return True

    def state_dict(self) -> dict[str, float]:
        """What changes in a training, which ModelCheckpoint saves: numbers by name."""
        return {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue with what `state_dict` gave."""

    def get_update_cell(self) -> None:
        """None: torch has no cells; Model itself calls `update_loss_scale`."""
        return None


class FixedLossScaleManager(LossScaleManager):
    """A loss scale that does not change.

    Args:
        loss_scale: >= 1.
        drop_overflow_update: whether a step with an overflow leaves the parameters as they are. If False,
            gradients are not searched for overflows. The optimizer gets unscaled gradients in both cases.

    Raises InvalidTypeError or InvalidValueError for bad arguments.
    """

    def __init__(self, loss_scale: float = 128.0, drop_overflow_update: bool = True) -> None:
        self._loss_scale = _checked_scale("loss_scale", loss_scale)
        check_type("drop_overflow_update", drop_overflow_update, bool)
        self._drop = drop_overflow_update

    def get_loss_scale(self) -> float:
        """The loss scale."""
        return self._loss_scale

    def get_drop_overflow_update(self) -> bool:
        """Whether a step with an overflow leaves the parameters as they are."""
        return self._drop


class DynamicLossScaleManager(LossScaleManager):
    """A loss scale that is divided after each overflow, and multiplied after `scale_window` good steps.

    Args:
        init_loss_scale: the first loss scale, >= 1. It never becomes less than 1.
        scale_factor: by how much it is divided or multiplied, > 0.
        scale_window: >= 1.

    Raises InvalidTypeError or InvalidValueError for bad arguments.
    """

    def __init__(
        self, init_loss_scale: float = 2**24, scale_factor: float = 2, scale_window: int = 2000
    ) -> None:
        self.loss_scale = _checked_scale("init_loss_scale", init_loss_scale)
        scale_factor = check_number("scale_factor", scale_factor)
        if not 0 < scale_factor < math.inf:
            raise InvalidValueError(f"scale_factor must be finite and > 0, got {scale_factor}; such as 2")
        scale_window = check_int("scale_window", scale_window, low=1)
        self.scale_factor, self.scale_window = scale_factor, scale_window
        self._good_steps = self._bad_steps = 0

    def get_loss_scale(self) -> float:
        """The current loss scale."""
        return self.loss_scale

    def update_loss_scale(self, overflow: bool) -> None:
        """Count the step; raises NonFiniteError after more than 1000 overflows in a row."""
        if overflow:
            self.loss_scale = max(self.loss_scale / self.scale_factor, 1.0)
            self._good_steps = 0
            self._bad_steps += 1
            if self._bad_steps > MAX_BAD_STEPS:
                raise NonFiniteError(
                    f"gradients were NaN or infinite in {self._bad_steps} steps in a row, with loss scale "
                    f"{self.loss_scale}; lower the learning rate or look for NaN in data and weights"
                )
            return
        self._bad_steps = 0
        self._good_steps += 1
        if self._good_steps % self.scale_window == 0:
            self.loss_scale *= self.scale_factor

    def state_dict(self) -> dict[str, float]:
        """What changes in a training: the scale and the counts of steps; ModelCheckpoint saves it."""
        return {"loss_scale": self.loss_scale, "good_steps": self._good_steps, "bad_steps": self._bad_steps}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue with what `state_dict` gave."""
        self.loss_scale = float(state["loss_scale"])
        self._good_steps, self._bad_steps = int(state["good_steps"]), int(state["bad_steps"])


def _checked_scale(field: str, value: object) -> float:
    scale = check_number(field, value)
    if not 1 <= scale < math.inf:
        raise InvalidValueError(f"{field} must be finite and >= 1, got {value}")
    return scale
