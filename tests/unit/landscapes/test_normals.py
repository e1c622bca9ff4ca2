import numpy as np

from distsummary.landscapes.directions.normals import (
    BLOCK,
    _cosine_and_sine,
    philox,
    random_direction,
    random_normals,
)


def test_normals_do_not_depend_on_the_slice_they_are_asked_in() -> None:
    whole = random_normals(7, 0, "a", 0, 2 * BLOCK + 5)
    for start, stop in [
        (0, 1),
        (1, 2),
        (3, 8),
        (BLOCK - 3, BLOCK + 4),
        (BLOCK, 2 * BLOCK),
        (2 * BLOCK, 2 * BLOCK + 5),
    ]:
        assert random_normals(7, 0, "a", start, stop).tobytes() == whole[start:stop].tobytes()


def test_normals_differ_by_seed_axis_name_and_block() -> None:
    first = random_normals(7, 0, "a", 0, 64)
    others = [(8, 0, "a"), (7, 1, "a"), (7, 0, "b"), (-7, 0, "a")]
    for other in others:
        assert not np.array_equal(random_normals(*other, 0, 64), first)
    assert not np.array_equal(random_normals(7, 0, "a", BLOCK, BLOCK + 64), first)


def test_normals_are_philox_bm_v1() -> None:
    # Values of the recipe in the module's docstring, written down once: a change of them is a new name.
    values = random_normals(0, 0, "fc1.weight", 0, 4)
    np.testing.assert_allclose(values, [-0.449074, -0.477850, -1.473166, -0.824571], rtol=0, atol=1e-5)


def test_normals_are_those_of_their_definition_but_for_the_last_bit_of_a_few() -> None:
    words = (philox(5, 1, "w", 3).random_raw(BLOCK) >> np.uint64(11)).astype(np.float64)
    radius = np.sqrt(-2.0 * np.log((words[0::2] + 1.0) * 2.0**-53))
    angle = 2.0 * np.pi * (words[1::2] * 2.0**-53)
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)
    found = random_normals(5, 1, "w", 3 * BLOCK, 4 * BLOCK)
    np.testing.assert_allclose(found, expected, rtol=2.0**-23, atol=1e-14)
    assert np.mean(found != expected.astype(np.float32)) < 1e-4


def test_cosine_and_sine_are_exact_to_float64_at_any_angle() -> None:
    between = np.arange(1 << 10, dtype=np.uint64) << np.uint64(43)  # of the table's angles
    words = np.concatenate([between, between + np.uint64((1 << 43) - 1), between + np.uint64(1 << 42)])
    cosine, sine = _cosine_and_sine(words)
    angle = words.astype(np.float64) * (2.0 * np.pi * 2.0**-53)
    np.testing.assert_allclose(cosine, np.cos(angle), rtol=0, atol=2e-15)
    np.testing.assert_allclose(sine, np.sin(angle), rtol=0, atol=2e-15)


def test_normals_are_standard_normal() -> None:
    values = random_normals(3, 1, "w", 0, 4 * BLOCK).astype(np.float64)
    assert abs(values.mean()) < 4 / np.sqrt(values.size)
    assert abs(values.var() - 1) < 4 * np.sqrt(2 / values.size)
    assert abs((values**4).mean() - 3) < 0.1
    assert np.isfinite(values).all()
    inside = (np.abs(values) < 1.959964).mean()
    assert abs(inside - 0.95) < 0.003


def test_a_whole_parameter_is_its_normals_in_order() -> None:
    drawn = random_direction(2, 0, "w", (3, 5, 7))
    assert drawn.shape == (3, 5, 7)
    assert drawn.tobytes() == random_normals(2, 0, "w", 0, 105).tobytes()
    assert random_direction(2, 0, "w", (0, 4)).shape == (0, 4)
