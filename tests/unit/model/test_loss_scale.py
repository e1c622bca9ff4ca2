"""Loss scale managers: MindSpore's rules and checks."""

import pytest

from distsummary.errors import InvalidTypeError, InvalidValueError, NonFiniteError
from distsummary.model.loss_scale import DynamicLossScaleManager, FixedLossScaleManager


def test_a_fixed_scale_stays():
    manager = FixedLossScaleManager()
    assert (manager.get_loss_scale(), manager.get_drop_overflow_update()) == (128.0, True)
    manager.update_loss_scale(True)
    assert manager.get_loss_scale() == 128.0
    assert FixedLossScaleManager(1024.0, False).get_drop_overflow_update() is False
    assert manager.get_update_cell() is None


def scales(manager, overflows):
    found = []
    for overflow in overflows:
        manager.update_loss_scale(bool(overflow))
        found.append(manager.get_loss_scale())
    return found


def test_a_dynamic_scale_falls_at_each_overflow_and_rises_after_a_window_of_good_steps():
    assert DynamicLossScaleManager().get_loss_scale() == 2**24
    manager = DynamicLossScaleManager(4, 2, 3)
    assert scales(manager, [0, 0, 0, 0, 0]) == [4, 4, 8, 8, 8]  # executed with MindSpore 2.10
    assert scales(manager, [1, 0, 0, 0]) == [4, 4, 4, 8]
    assert scales(manager, [1, 1, 1, 1, 1]) == [4, 2, 1, 1, 1]
    assert manager.get_drop_overflow_update() is True


def test_a_thousand_overflows_in_a_row_are_enough():
    manager = DynamicLossScaleManager()
    scales(manager, [1] * 1000)
    with pytest.raises(NonFiniteError, match="1001 steps in a row"):
        manager.update_loss_scale(True)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: FixedLossScaleManager(0.5), InvalidValueError),
        (lambda: FixedLossScaleManager(float("inf")), InvalidValueError),
        (lambda: FixedLossScaleManager(float("nan")), InvalidValueError),
        (lambda: FixedLossScaleManager("1"), InvalidTypeError),
        (lambda: FixedLossScaleManager(1.0, 1), InvalidTypeError),
        (lambda: DynamicLossScaleManager(0), InvalidValueError),
        (lambda: DynamicLossScaleManager(2, 0), InvalidValueError),
        (lambda: DynamicLossScaleManager(2, 2, 0), InvalidValueError),
        (lambda: DynamicLossScaleManager(2, 2, 1.5), InvalidTypeError),
    ],
)
def test_bad_arguments_are_refused(make, kind):
    with pytest.raises(kind):
        make()
