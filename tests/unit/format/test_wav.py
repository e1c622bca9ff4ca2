"""Sounds become WAV files."""

import io
import wave

import numpy as np
import pytest

from distsummary.errors import InvalidValueError
from distsummary.format.wav import wav
from tests.refusals import refused


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


def test_what_is_no_sound_is_refused() -> None:
    shape, numbers = r"s must have the shape \(N,\), or \(C, N\)", "s must be int16, or finite floats"
    refused(
        InvalidValueError,
        (lambda: wav("s", np.zeros((17, 40)), 8000), shape),
        (lambda: wav("s", np.zeros((1, 1, 4)), 8000), shape),
        (lambda: wav("s", np.zeros(0), 8000), shape),
        (lambda: wav("s", np.zeros(4, np.int64), 8000), numbers),
        (lambda: wav("s", np.array([0.0, np.nan]), 8000), numbers),
        (lambda: wav("s", np.zeros(4), 1_000_001), "rate of s must be"),
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_loudest_samples_keep_their_sign(dtype: str):
    found = wav("a", np.array([1, -1, 0.5, 2], dtype), np.int64(8000))
    assert np.frombuffer(found.encoded[-8:], "<i2").tolist() == [32767, -32767, 16383, 32767]
