"""What comes back from workers that raised: Ray's wrappings -> the errors themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

from ray.exceptions import RayError, RayTaskError, UnserializableException


@contextmanager
def original_errors() -> Iterator[None]:
    """Raise what a worker raised; Ray's error, with the worker's traceback, is its cause.

    What cannot be unpickled is a RuntimeError that quotes it. A RayError means that the worker itself failed.
    """
    try:
        yield
    except UnserializableException as error:  # its text ends with the error's own line
        raise RuntimeError(str(error).strip().splitlines()[-1]) from error
    except RayTaskError as error:
        if isinstance(error.cause, Exception) and not isinstance(error.cause, RayError):
            raise error.cause from error
        raise RuntimeError(str(error.cause)) from error
