"""Sounds become WAV files."""

import io
import wave
from typing import Any

import numpy as np
import pytest

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.wav import wav


def decoded(encoded: bytes) -> tuple[int, np.ndarray]:
    """The rate and the samples (C, N)."""
    with wave.open(io.BytesIO(encoded)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return file.getframerate(), samples.reshape(-1, file.getnchannels()).T


@pytest.mark.parametrize("shape", [(40,), (1, 40), (2, 40)])
def test_samples_of_16_bits_are_kept(shape: tuple[int, ...]) -> None:
    samples = np.random.default_rng(1).integers(-(2**15), 2**15, shape, np.int16)
    found = wav("s", samples, 8000)
    assert (found.rate, found.channels, found.frames) == (8000, shape[0] if len(shape) > 1 else 1, 40)
    rate, read = decoded(found.encoded)
    assert rate == 8000
    assert np.array_equal(read, np.atleast_2d(samples))


def test_floats_are_shares_of_the_loudest_and_clipped() -> None:
    _, read = decoded(wav("s", np.array([-2.0, -1.0, 0.5, 1.0], np.float32), 44100).encoded)
    assert read.tolist() == [[-32767, -32767, 16383, 32767]]


@pytest.mark.parametrize("samples", [np.zeros((17, 40)), np.zeros(0), np.zeros((1, 1, 4)), np.float64(1)])
def test_other_shapes_are_refused(samples: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"s must have the shape \(N,\), or \(C, N\)"):
        wav("s", samples, 8000)


@pytest.mark.parametrize("samples", [np.zeros(4, np.int64), np.array([0.0, np.nan]), np.array(["a"])])
def test_other_numbers_are_refused(samples: Any) -> None:
    with pytest.raises(InvalidValueError, match="s must be int16, or finite floats"):
        wav("s", samples, 8000)


@pytest.mark.parametrize("rate", [0, 1_000_001, 0.5])
def test_the_rate_has_a_range(rate: Any) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError), match="rate of s must be"):
        wav("s", np.zeros(4), rate)
