"""Encodes a sound as a WAV file of 16 bits, which TensorBoard and browsers play."""

import io
import wave
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.base.checks import check_int
from distsummary.errors import InvalidValueError
from distsummary.format.frames import MAX_PAYLOAD
from distsummary.format.records import Audio

MOST_CHANNELS = 16
LOUDEST = np.iinfo(np.int16).max


def wav(field: str, samples: NDArray[Any], rate: int) -> Audio:
    """The sound as a WAV file.

    Args:
        field: names the sound in messages.
        samples: (N,), or (C, N) with C up to 16; int16, or floats in [-1, 1], clipped outside of it.
        rate: samples of each channel a second, 1 to 1,000,000.

    Raises InvalidTypeError or InvalidValueError: a wrong shape, dtype or rate; samples that are not finite,
    or too many.
    """
    rate = check_int(f"rate of {field}", rate, low=1, high=1_000_000)
    shape, kind = samples.shape, samples.dtype.kind
    channels = samples[np.newaxis] if samples.ndim == 1 else samples
    if channels.ndim != 2 or not 1 <= len(channels) <= MOST_CHANNELS or not channels.size:
        raise InvalidValueError(
            f"{field} must have the shape (N,), or (C, N) with C of 1 to {MOST_CHANNELS}, got {shape}; "
            "transpose it if it is (N, C)"
        )
    if not (kind == "f" or samples.dtype == np.int16) or not np.isfinite(samples).all():
        raise InvalidValueError(
            f"{field} must be int16, or finite floats in [-1, 1], got {samples.dtype}"
            f"{' with NaN or infinity' if kind == 'f' else ''}; divide it by its largest value"
        )
    if 2 * samples.size > MAX_PAYLOAD // 2:
        raise InvalidValueError(
            f"{field} must have at most {MAX_PAYLOAD // 4} samples, got {samples.size}; record a part of it"
        )
    if kind == "f":
        # float16 has too few digits for it.
        channels = channels.astype(np.float64).clip(-1, 1) * LOUDEST
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(len(channels))
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(channels.T.astype("<i2").tobytes())
    return Audio(rate=rate, channels=len(channels), frames=channels.shape[1], encoded=file.getvalue())
