"""Metrics of text: the BLEU score and the perplexity, MindSpore's numbers."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from distsummary.base.checks import check_int, check_type
from distsummary.errors import InvalidValueError
from distsummary.model.metric import Mean, Metric


class BleuScore(Metric):
    """How much of each translation's n-grams is in its references (Papineni et al., 2002).

    Args:
        n_gram: the longest n-grams that count, in [1, 4].
        smooth: whether 1 is added to all counts.

    Raises InvalidTypeError or InvalidValueError for other arguments.
    """

    def __init__(self, n_gram: int = 4, smooth: bool = False) -> None:
        n_gram = check_int("n_gram", n_gram, low=1, high=4)
        check_type("smooth", smooth, bool)
        self._longest, self._smooth = n_gram, smooth
        self.clear()

    def clear(self) -> None:
        """Forget all updates."""
        self._found, self._all = np.zeros(self._longest), np.zeros(self._longest)
        self._words, self._reference_words = 0, 0
        self._is_updated = False

    def update(self, *inputs: Any) -> None:
        """Add N translations, each a list of words, and for each a list of references.

        Raises InvalidValueError unless there are references for each.
        """
        translations, references = self._chosen(inputs, 2, "two inputs, translations and references")
        if len(translations) != len(references) or not all(len(each) for each in references):
            raise InvalidValueError(
                f"BleuScore takes for each translation a list of references, got {len(translations)} "
                f"translations and {len(references)} lists, of which none may be empty"
            )
        for words, given in zip(translations, references, strict=True):
            self._words += len(words)
            # Of several references, the one that is nearest in length counts for the penalty.
            self._reference_words += min(
                (len(each) for each in given), key=lambda size: abs(len(words) - size)
            )
            counts, allowed = self._ngrams(words), Counter[tuple[Hashable, ...]]()
            # An n-gram may be found as often as it is in the reference that has it most often.
            for each in given:
                allowed |= self._ngrams(each)
            for total, counted in ((self._all, counts), (self._found, counts & allowed)):
                for ngram, count in counted.items():
                    total[len(ngram) - 1] += count
        self._is_updated = True

    def eval(self) -> float:
        """The score in [0, 1]; 0 if n-grams of one length were never found. Raises NoSamplesError."""
        self._require(self._is_updated)
        if not self._found.all():
            return 0.0
        shares = (self._found + self._smooth) / (self._all + self._smooth)
        # Without a penalty, short translations would score best: they hold little that can be wrong.
        penalty = min(0.0, 1 - self._reference_words / self._words)
        return float(np.exp(penalty + np.log(shares).mean()))

    def _ngrams(self, words: Sequence[Hashable]) -> Counter[tuple[Hashable, ...]]:
        sizes = range(1, self._longest + 1)
        return Counter(
            tuple(words[begin : begin + size]) for size in sizes for begin in range(len(words) - size + 1)
        )


class Perplexity(Mean):
    """The exponential of the mean negative log-likelihood of the labels.

    Args:
        ignore_label: samples with this label do not count; None: all do.

    Raises InvalidTypeError unless it is an int.
    """

    def __init__(self, ignore_label: int | None = None) -> None:
        ignore_label = check_int("ignore_label", ignore_label, optional=True)
        self._ignored = ignore_label
        super().__init__()

    def update(self, *inputs: Any) -> None:
        """Add probabilities (..., C), not logits, and labels (...), ints in [0, C-1].

        Raises InvalidValueError for other shapes or labels.
        """
        predicted, true = self._arrays(inputs, 2, "two inputs, probabilities and labels")
        if predicted.ndim < 2 or true.size * predicted.shape[-1] != predicted.size:
            raise InvalidValueError(
                f"Perplexity takes probabilities (..., C) and labels (...), got the shapes "
                f"{predicted.shape} and {true.shape}"
            )
        labels = true.reshape(-1).astype(np.int64)
        counted = labels != self._ignored if self._ignored is not None else np.ones(labels.size, bool)
        labels, classes = labels[counted], predicted.shape[-1]
        if labels.size and not 0 <= labels.min() <= labels.max() < classes:
            raise InvalidValueError(
                f"Perplexity got labels from {labels.min()} to {labels.max()} for probabilities of {classes} "
                f"classes; labels must be in [0, {classes - 1}], or be ignore_label"
            )
        likely = predicted.reshape(-1, classes)[counted, labels].astype(np.float64)
        # A single probability of 0 would make the perplexity infinite.
        self._add(-float(np.log(np.maximum(1e-10, likely)).sum()), labels.size)

    def eval(self) -> float:
        """The perplexity, >= 1. Raises NoSamplesError."""
        return float(np.exp(super().eval()))
