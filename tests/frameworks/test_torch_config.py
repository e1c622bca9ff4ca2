"""What a torch program keeps in its configuration: tensors, dtypes, devices, functions, models."""

import pytest
import torch

import distsummary as ds
from distsummary.collect.config import read_config


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        (torch.tensor(3), 3),
        (torch.tensor([[2.5]], dtype=torch.bfloat16, requires_grad=True), 2.5),
        (torch.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (torch.tensor(True), True),
        (torch.nn.functional.relu, "torch.nn.functional.relu"),
        (torch.optim.AdamW, "torch.optim.adamw.AdamW"),
        (torch.empty(2, device="meta"), "tensor(..., device='meta', size=(2,))"),
        (torch.nn.Linear(1, 1), "Linear(in_features=1, out_features=1, bias=True)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_of_torch_is_recorded(value: object, recorded: object) -> None:
    assert read_config({"a": value}).nested == {"a": recorded}


@pytest.mark.parametrize(
    ("value", "recorded"),
    [(torch.float32, "torch.float32"), (torch.device("cpu"), "cpu"), (torch.device("cuda:0"), "cuda:0")],
)
def test_a_dtype_and_a_device_are_recorded_by_name_in_silence(value, recorded, caplog):
    assert read_config({"a": value}).flat == {"a": recorded}
    assert not caplog.records


def test_a_tensor_is_no_configuration() -> None:
    with pytest.raises(ds.DistSummaryError, match="must have named values"):
        read_config(torch.zeros(3))
