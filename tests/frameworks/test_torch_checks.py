"""Sick ranks of a torch training are named from what they recorded: parameter, step, setting, batch."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from distsummary.collect.compare.batch_digest import batch_digest
from distsummary.collect.compare.rank_checks import BATCHES, Checks
from distsummary.collect.compare.torch_checksums import Checksums, device_sum, octets_of
from distsummary.diagnosis.check_tags import located, packed, weights_of
from distsummary.diagnosis.verdict import SLOW, Verdict
from distsummary.format.own_tags import BITS_TAGS
from distsummary.format.records import Value
from distsummary.rundir.rank_facts import read_facts
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
from distsummary.training.callbacks import CallbackParams
from distsummary.training.step_context import StepContext
from tests.frameworks.alike_ranks import AFTER, BEFORE, flip_lowest_bit, train
from tests.unit.aggregate.live_ranks import judge_files


def verdicts(place: Path, **options: Any) -> list[Verdict]:
    """All but those on slow ranks: as the ranks train in turn, a machine that becomes busy slows some."""
    train(place, **options)
    return [one for one in judge_files(RunDir(place)) if one.cause not in SLOW]


def reported(found: list[Verdict]) -> list[tuple[int, str, int]]:
    return [(one.rank, one.cause, one.since_step) for one in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_flipped_bit_is_named_with_rank_parameter_and_step(tmp_path: Path, dtype: torch.dtype) -> None:
    chance = random.Random(0)
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias", "4.weight", "4.bias"]
    planned = {step: (chance.randrange(4), chance.randrange(8)) for step in range(2, 90, 2)}

    def flip(rank: int, step: int, model: nn.Module, moment: str) -> None:
        """Flip a bit after an even step, and back before the next one."""
        sick, parameter = planned.get(step if moment == AFTER else step - 1, (-1, 0))
        if sick == rank:
            flip_lowest_bit(list(model.parameters())[parameter], 0)

    found = verdicts(tmp_path / "run", fault=flip, checksums=1, dtype=dtype, count=360, epochs=4, batch=4)
    assert [(one.since_step, one.rank, one.until_step) for one in found] == [
        (step, rank, step) for step, (rank, _) in planned.items()
    ]
    for one in found:
        assert f"the parameter {names[planned[one.since_step][1]]!r}" in one.evidence


@pytest.mark.parametrize(
    "options",
    [
        {"checksums": 1},
        {"checksums": 3, "accumulate": 2},
        {"count": 97, "batch": 1, "epochs": 1},  # the last batches are duplicates that fill up the epoch
        {"batch": 1, "count": 40, "epochs": 3},  # a rank is given what others had in the epoch before
        {"ranks": 2, "norms": True},
        {
            "data": lambda rank: (rank // 2, 2),
            "mesh": lambda rank: {"dp": (rank // 2, 2), "tp": (rank % 2, 2)},
        },
    ],
    ids=["each step", "accumulated", "padded", "one sample", "two ranks", "tensor parallel"],
)
def test_a_clean_run_has_no_verdict(tmp_path: Path, options: dict[str, Any]) -> None:
    assert verdicts(tmp_path / "run", **options) == []


def test_ranks_with_the_same_part_of_the_data_another_seed_or_config(tmp_path: Path) -> None:
    found = verdicts(
        tmp_path / "run",
        data=lambda rank: (1 if rank == 3 else rank, 4),
        seed=lambda rank: 43 if rank == 0 else 42,
        config=lambda rank: {"lr": 0.2 if rank == 2 else 0.1, "rank": rank},
    )
    assert reported(found) == [(0, "config", 1), (2, "config", 1), (1, "shard", 1)]
    assert found[-1].ranks == (1, 3)
    assert "seed torch is 43 on rank 0, 42 on 3 others" in found[0].evidence
    assert found[1].evidence == "config lr is 0.2 on rank 2, 0.1 on 3 others"


@pytest.mark.filterwarnings("ignore")
def test_the_first_parameter_that_is_not_finite_is_named(tmp_path: Path) -> None:
    def spoil(rank: int, step: int, model: nn.Module, moment: str) -> None:
        if (rank, step, moment) == (2, 5, BEFORE):
            gradient = model.get_parameter("4.weight").grad
            gradient[0, 1] = float("nan")

    one, *_ = verdicts(tmp_path / "run", fault=spoil, norms=True, on_nan="ignore", epochs=1)
    assert (one.rank, one.cause, one.since_step) == (2, "nan", 5)
    assert one.evidence.startswith("the gradient of the parameter '4.weight' is not finite; also ")


def test_without_checksums_settings_are_reported_but_nothing_is_looked_at(tmp_path: Path) -> None:
    train(tmp_path / "run", ranks=2, checksums=False, epochs=1)
    directory = RunDir(tmp_path / "run").rank_dirs()[1]
    facts = read_facts(directory, 0)
    assert facts.settings["config lr"] == "0.1"
    assert facts.settings["seed numpy"] == facts.settings["seed torch"] == "101"
    assert not facts.names
    assert b"zz_perf/check" not in b"".join(path.read_bytes() for path in directory.glob("*vm_MS"))


def layout(*modules: nn.Module) -> dict[str, int]:
    checksums = Checksums(nn.Sequential(*modules), {}, 2)
    checksums.list_parameters()
    return checksums.layouts


def test_models_of_other_names_or_shapes_have_another_layout() -> None:
    one = layout(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    assert layout(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)) == one
    others = [
        (nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)),
        (nn.Linear(3, 4), nn.Linear(4, 2)),
        (nn.Linear(3, 4),),
    ]
    assert all(layout(*other) != one for other in others)
    assert set(one) == {"whole"}


def numbers(values: list[Value]) -> list[float]:
    return [value.data for value in values]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_bit_sums_see_each_bit_of_memory_in_whatever_layout(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Linear(7, 3)).to(dtype, memory_format=torch.channels_last)
    checksums = Checksums(model, {}, 2)
    checksums.list_parameters()
    before = numbers(checksums.measure())
    assert numbers(checksums.measure()) == before
    for place, parameter in enumerate(model.parameters()):
        octets = octets_of(parameter.detach())
        for octet in (0, octets.size // 2, octets.size - 1):
            octets[octet] ^= 1
            after = numbers(checksums.measure())
            octets[octet] ^= 1
            assert located([int(x) for x in after], [int(x) for x in before]) == place
    with torch.no_grad():  # memory of its own, as after loading a state
        model[1].bias.data = model[1].bias.data.clone() + 1
    assert numbers(checksums.measure()) != before


@pytest.mark.parametrize("size", [0, 1, 4, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128])
def test_sums_of_devices_see_each_element(size: int, dtype: torch.dtype) -> None:
    tensor = torch.randn(size + 1, dtype=dtype)[1:]  # begins between two words
    for one in (tensor, tensor.clone()):
        before = int(device_sum(one))
        for place in range(size):
            changed = one.clone() if one.storage_offset() == 0 else torch.cat((one[:1], one))[1:]
            octets_of(changed)[place * one.element_size()] ^= 1
            assert int(device_sum(changed)) != before


def test_parameters_without_replicas_are_left_out_and_tied_ones_counted_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    checksums = Checksums(model, {"dp": (0, 2), "tp": (0, 2)}, 4)
    checksums.list_parameters()
    assert checksums.groups == {"whole": [0, 1, 2]}
    assert checksums.names == ["0.weight", "0.bias", "1.bias"]
    checksums = Checksums(model, {"tp": (0, 4)}, 4)
    checksums.list_parameters()
    assert checksums.measure() == []


def steps_summed(step_ms: float, cost_s: float) -> list[int]:
    """At which of 200 steps parameters are summed up, if that takes so long."""
    clock = iter(np.arange(0, 1e6) * cost_s)
    measured = SimpleNamespace(
        list_parameters=lambda: None, names=[], groups={}, layouts={}, device_bytes=0,
        measure=lambda: [Value("scalar", f"{BITS_TAGS}whole/0", 1.0)],
    )  # fmt: skip
    source: Any = Checks(
        True,
        {},
        topology=Topology(),
        checksums=measured,  # type: ignore[arg-type]
        report=lambda facts: None,
        clock=lambda: float(next(clock)),
    )
    found = []
    for step in range(1, 201):
        params = CallbackParams(train_dataset_element=torch.randn(3))
        if step >= source.at:
            values = source.values(params, step, StepContext(logged={"zz_perf/step_ms": step_ms}))
            found += [step] if any(value.tag.startswith(BITS_TAGS) for value in values) else []
            source.plan(step)
    return found


def test_sums_are_as_rare_as_their_cost_demands() -> None:
    assert steps_summed(1e3, 1e-3) == [*range(1, 201)]
    assert steps_summed(10.0, 70e-6) == [*range(1, 9), *range(16, 201, 8)]
    assert steps_summed(0.1, 70e-6) == [*range(1, 9)]  # 1024 is the next


def test_batches_have_the_same_digest_if_and_only_if_their_tensors_are_equal() -> None:
    images, labels = torch.randn(4, 3, 200, 200), torch.arange(4)
    digest = batch_digest({"images": images, "more": [labels, "text"]})
    assert digest == batch_digest((images.clone(), (labels,)))
    assert digest == batch_digest([images.numpy(), labels.numpy()])
    assert digest != batch_digest((images, labels + 1))
    assert digest != batch_digest((images.roll(1, 0), labels))
    assert batch_digest(7) is batch_digest(["text", None]) is None


def test_only_the_first_batches_have_digests(tmp_path: Path) -> None:
    source = Checks(True, {}, topology=Topology(), checksums=None, report=lambda facts: None)
    counted = 0
    for step in range(1, 100):
        if step >= source.at:
            params = CallbackParams(train_dataset_element=torch.ones(3))
            counted += len(source.values(params, step, StepContext()))
            source.plan(step)
    assert counted == 2 * BATCHES


def test_three_numbers_hold_the_sums_of_any_number_of_parameters() -> None:
    generator = np.random.default_rng(0)
    sums = generator.integers(-(2**63), 2**63 - 1, 200_000)
    weights = weights_of(len(sums))
    other = sums.copy()
    other[123_456] += 1
    assert located(packed(other, weights), packed(sums, weights)) == 123_456
