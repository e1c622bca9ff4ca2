"""Operators that record values from within a torch network: functions, and modules with MindSpore's call.

Each taps a value where it occurs, in eager and in compiled code. The current `ds` run, a SummaryCollector and
any open SummaryRecord record it; if there is none, a tap does nothing. See docs/recording.md.
"""

from distsummary.base.extras import require

require("an operator of distsummary (in a Cell, take it from distsummary.mindspore)", "torch")

import torch  # noqa: E402  # what is missing is said before
from torch import Tensor, nn  # noqa: E402

from distsummary.collect.values import torch_operators  # noqa: E402

__all__ = [
    "HistogramSummary",
    "ImageSummary",
    "ScalarSummary",
    "TensorSummary",
    "gradient",
    "histogram",
    "image",
    "scalar",
    "tensor",
]


def scalar(name: str, value: Tensor) -> None:
    """Record a number under a name, at every step.

    Args:
        name: the tag; text that is not blank, of at most 1 KiB.
        value: a tensor of one element, shape () or (1,), of any device and real dtype; kept as float32.

    Raises:
        InvalidTypeError: the name is not str, or the value is not a tensor.
        InvalidValueError: the name is blank or too long, or the value has several dimensions.
    """
    # TorchScript does not compile code under this condition: in a scripted network, taps do nothing.
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        torch_operators.scalar(name, value)


def tensor(name: str, value: Tensor) -> None:
    """Record a tensor of at least one dimension as it is, at the steps of tensors (`collect_tensor_freq`).

    Raises as `scalar`; InvalidValueError for a tensor without dimensions.
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        torch_operators.value("tensor", name, value)


def image(name: str, value: Tensor) -> None:
    """Record a picture, at step 1 and every `collect_freq` steps.

    `value`: (H, W), (H, W, C), (C, H, W), or a batch of them; (N, C, H, W) with `mindspore_compat`. Raises as
    `scalar`, but not for the shape: a value that is no picture is counted.
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        torch_operators.value("image", name, value)


def histogram(name: str, value: Tensor) -> None:
    """Record the histogram of a tensor of at least one dimension, at step 1 and every `collect_freq` steps.

    Raises as `scalar`, but not for the shape: what has no histogram is counted.
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        torch_operators.value("histogram", name, value)


def gradient(name: str, x: Tensor, kind: str = "norm") -> Tensor:
    """Record the gradient of the loss with respect to x; returns x, which the network has to continue with.

    Example: `x = ds.summary.gradient("encoder", x)`.

    The gradient is recorded as it flows: of a scaled loss (GradScaler), it is that of the scaled loss.

    Args:
        name: the tag. x: a tensor.
        kind: "norm": the L2 norm of the gradient, a scalar at every step; "histogram", "tensor" or "image":
            the gradient itself, at the steps of these.

    Raises:
        InvalidTypeError: the name is not str, or x is not a tensor.
        InvalidValueError: the name is blank or too long, or the kind is unknown.
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        return torch_operators.gradient(name, x, kind)
    return x


class ScalarSummary(nn.Module):
    """MindSpore's: `self.summary = ScalarSummary()`, then `self.summary(name, value)`; see `scalar`."""

    def forward(self, name: str, value: Tensor) -> None:
        """Record a number under a name."""
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            torch_operators.scalar(name, value)


class TensorSummary(nn.Module):
    """MindSpore's: `self.summary = TensorSummary()`, then `self.summary(name, value)`; see `tensor`."""

    def forward(self, name: str, value: Tensor) -> None:
        """Record a tensor under a name."""
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            torch_operators.value("tensor", name, value)


class ImageSummary(nn.Module):
    """MindSpore's: `self.summary = ImageSummary()`, then `self.summary(name, value)`; see `image`."""

    def forward(self, name: str, value: Tensor) -> None:
        """Record a picture under a name."""
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            torch_operators.value("image", name, value)


class HistogramSummary(nn.Module):
    """MindSpore's: `self.summary = HistogramSummary()`, then `self.summary(name, value)`."""

    def forward(self, name: str, value: Tensor) -> None:
        """Record the histogram of a tensor under a name."""
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            torch_operators.value("histogram", name, value)
