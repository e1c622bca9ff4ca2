"""What tests of frameworks share."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def several_threads() -> Iterator[None]:
    """Torch with two threads, so that an engine that leaves one behind is seen; tests have one else."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
