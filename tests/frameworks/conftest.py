"""What tests of frameworks share."""

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def several_threads() -> Iterator[None]:
    """Torch with two threads, so that an engine that leaves one behind is seen; tests have one else."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fill_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, no data fit into the memory of a device."""
    from distsummary.landscapes.model import torch_memory

    return lambda: monkeypatch.setattr(torch_memory, "device_bytes", lambda device: 1)
