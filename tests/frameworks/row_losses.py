"""Losses of a batch: sums and means over its rows, and others."""

import torch
from torch import Tensor
from torch.nn import functional

from tests.frameworks.landscape_nets import CRITERION


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    return functional.one_hot(labels, 3).to(like.dtype)


def ignoring(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels, ignore_index=1)


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels, label_smoothing=0.1)


def added(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels, reduction="sum") / 4


def by_row(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels, reduction="none")


def squared(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.mse_loss(logits, one_hot(labels, logits))


def squared_sum(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.mse_loss(logits, one_hot(labels, logits), reduction="sum") - 0.5 * logits.mean()


def absolute(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.l1_loss(logits, one_hot(labels, logits))


def huber(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.huber_loss(logits, one_hot(labels, logits), delta=0.3)


def smooth(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.smooth_l1_loss(logits, one_hot(labels, logits), beta=0.5)


def binary(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, one_hot(labels, logits))


def probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy(logits.sigmoid(), one_hot(labels, logits))


def by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    shifted = logits - logits.amax(1, keepdim=True)
    chosen = (shifted * one_hot(labels, logits)).sum(1)
    return (shifted.logsumexp(1) - chosen).unsqueeze(0).mean(1).squeeze(0)


def turned(logits: Tensor, labels: Tensor) -> Tensor:
    softmax = logits.t().softmax(0).unsqueeze(2).expand(3, len(labels), 4)
    return softmax.permute(1, 2, 0).reshape(len(labels), 12).square().sum(1).mean()


def squared_by_row(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.mse_loss(logits, one_hot(labels, logits), reduction="none").mean(1)


def not_squeezed(logits: Tensor, labels: Tensor) -> Tensor:
    return by_row(logits.t().squeeze(0).t(), labels).mean()


def repeated(logits: Tensor, labels: Tensor) -> Tensor:
    return by_row(logits.expand(2, *logits.shape).mean(0), labels).mean()


def product(logits: Tensor, labels: Tensor) -> Tensor:
    rows = by_row(logits, labels)
    return torch.mm(rows.unsqueeze(0), rows.unsqueeze(1)).reshape(())


def joined(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.cat((logits, 2 * logits), 1).logsumexp(1).mean()


def over_columns(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.t().square().mean()


def on_its_device(logits: Tensor, labels: Tensor) -> Tensor:
    wide = logits.to(logits.device, torch.float64).softmax(1, dtype=torch.float64)
    return (wide * torch.full_like(wide, 2.0, device=logits.device)).square().sum(1).mean()


TILED = [
    CRITERION, on_its_device, ignoring, smoothed, added, by_row, squared, squared_sum, absolute, huber,
    smooth, binary, probabilities, by_hand, turned, squared_by_row, not_squeezed, repeated, product,
    joined, over_columns,
]  # fmt: skip


def root(logits: Tensor, labels: Tensor) -> Tensor:
    return by_row(logits, labels).mean().sqrt()


def clamped(logits: Tensor, labels: Tensor) -> Tensor:
    return by_row(logits, labels).mean().clamp(max=1.0)


def shifted(logits: Tensor, labels: Tensor) -> Tensor:
    return by_row(logits, labels).mean() + 1


def squared_mean(logits: Tensor, labels: Tensor) -> Tensor:
    mean = by_row(logits, labels).mean()
    return mean * mean


def worst(logits: Tensor, labels: Tensor) -> Tensor:
    return by_row(logits, labels).amax()


def ratio(logits: Tensor, labels: Tensor) -> Tensor:
    rows = by_row(logits, labels)
    return rows.square().sum() / rows.sum()


def centred(logits: Tensor, labels: Tensor) -> Tensor:
    return by_row(logits - logits.mean(0), labels).mean()


def contrastive(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits @ logits.t(), torch.arange(len(labels)))


def running(logits: Tensor, labels: Tensor) -> Tensor:
    return by_row(logits.cumsum(0), labels).mean()


def neighbours(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits[1:] - logits[:-1]).square().mean()


def flattened(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.reshape(-1).softmax(0).square().mean()


def scaled_by_its_mean(logits: Tensor, labels: Tensor) -> Tensor:
    return (by_row(logits, labels) * logits.mean()).sum()


def of_nothing(logits: Tensor, labels: Tensor) -> Tensor:
    return by_row(logits, labels).mean() + (logits[:, :0] * 2).sum()


def mean_of_nothing(logits: Tensor, labels: Tensor) -> Tensor:
    return by_row(logits, labels).mean() + (logits @ torch.ones(3, 0, dtype=logits.dtype)).mean()


def inverse(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.ones((), dtype=logits.dtype) / by_row(logits, labels).sum()


def without_digits(logits: Tensor, labels: Tensor) -> Tensor:
    return (100 * by_row(logits, labels).sum()).long().to(logits.dtype)


def in_pairs(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.unsqueeze(0) - logits.unsqueeze(1)).square().mean()


def against_what_is_fixed(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.mse_loss(logits, torch.arange(3.0 * len(labels)).view(-1, 3).to(logits.dtype))


def squeezed(logits: Tensor, labels: Tensor) -> Tensor:
    return by_row(logits.squeeze(0), labels).mean()


def mixed_up(logits: Tensor, labels: Tensor) -> Tensor:
    return by_row(logits.t().reshape(len(labels), 3), labels).mean()


def product_and_more(logits: Tensor, labels: Tensor) -> Tensor:
    rows = by_row(logits, labels)
    return torch.addmm(torch.ones(1, 1, dtype=rows.dtype), rows.unsqueeze(0), rows.unsqueeze(1)).reshape(())


def crossed(logits: Tensor, labels: Tensor) -> Tensor:
    bias = by_row(logits, labels).unsqueeze(0)
    return torch.addmm(bias, logits, torch.ones(3, len(labels), dtype=logits.dtype)).square().mean()


def placed(logits: Tensor, labels: Tensor) -> Tensor:
    places = torch.arange(3.0 * len(labels)).view(-1, 3).to(logits.dtype)
    return torch.addmm(places, logits, torch.eye(3).to(logits.dtype)).square().mean()


def dotted(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.dot(by_row(logits, labels), torch.linspace(0, 1, len(labels)).to(logits.dtype))


def dotted_from_the_left(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.dot(torch.linspace(0, 1, len(labels)).to(logits.dtype), by_row(logits, labels))


def among_rows(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.softmax(0).square().mean()


def below_each_other(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.cat((logits, 2 * logits)).square().mean()


def beside_what_is_fixed(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.cat((logits, torch.ones(len(labels), 3, dtype=logits.dtype)), 1).logsumexp(1).mean()


def gathered_from_other_rows(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.gather(0, labels.unsqueeze(1)).square().mean()


def gathered_at_fixed_places(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.gather(1, torch.arange(len(labels)).unsqueeze(1) % 3).square().mean()


def by_place(logits: Tensor, labels: Tensor) -> Tensor:
    return (by_row(logits, labels) * torch.linspace(0, 1, len(labels))).mean()


KEPT = [
    root, clamped, shifted, squared_mean, worst, ratio, centred, contrastive, running, neighbours, flattened,
    by_place, scaled_by_its_mean, of_nothing, mean_of_nothing, inverse, without_digits, in_pairs,
    against_what_is_fixed, squeezed, mixed_up, product_and_more, crossed, placed, dotted,
    dotted_from_the_left, among_rows, below_each_other, beside_what_is_fixed, gathered_from_other_rows,
    gathered_at_fixed_places,
]  # fmt: skip
