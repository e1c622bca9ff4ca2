"""Compatibility: in what a record follows MindSpore where MindSpore and we differ."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility:
    """One object for a whole record, which its WriterSpec carries to wherever MindSpore differs.

    Attributes:
        histograms: edges are computed in the dtype of the values: those of integers are truncated.
        images: only batches (N, C, H, W) are pictures, all of a batch are recorded, and the whole canvas is
            stretched.
        steps: the last step of an epoch is recorded twice if it was due; a number that the loop logs as
            `loss`, and those of operators, are recorded at the steps of `collect_freq` as `loss/auto` is.
        lineage: a data set has as many samples as full batches would have, a model without a checkpoint has
            0 bytes, and no text describes the run.
        landscape: the trajectory of every training is kept.
    """

    histograms: bool = False
    images: bool = False
    steps: bool = False
    lineage: bool = False
    landscape: bool = False


OURS = Compatibility()
AS_MINDSPORE = Compatibility(histograms=True, images=True, steps=True, lineage=True, landscape=True)
