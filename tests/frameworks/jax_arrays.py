"""Arrays of JAX, as values to record; test_jax.py runs these tests in a process of their own."""

from pathlib import Path

import numpy as np
import pytest

from distsummary import SummaryRecord
from distsummary.collect.values.checked_values import checked_value
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.events.reader import read_directory
from distsummary.frameworks.base import framework_of
from tests.programs import run_python

jax = pytest.importorskip("jax")
jnp = jax.numpy


def test_every_plugin_takes_arrays_of_jax(tmp_path: Path):
    with SummaryRecord(tmp_path, export_options={"tensor_format": "npy"}) as record:
        record.add_value("scalar", "loss", jnp.float32(0.5))
        record.add_value("scalar", "rounded", jnp.ones(1, jnp.bfloat16) / 4)
        record.add_value("tensor", "grid", jnp.arange(6).reshape(2, 3).T)
        record.add_value("tensor", "small", jnp.array([1, jnp.nan, jnp.inf], jnp.bfloat16))
        record.add_value("tensor", "tiny", jnp.ones(2, jnp.float8_e4m3fn))
        record.add_value("tensor", "none", jnp.zeros((0, 3)))
        record.add_value("histogram", "weights", jnp.linspace(0, 1, 101))
        record.add_value("image", "picture", jnp.zeros((4, 5, 3), jnp.uint8))
        record.record(1)
    assert record.health().errors == {}
    [event] = read_directory(tmp_path)
    found = {value.tag: value.data for value in event.values}
    assert (found["loss"], found["rounded"]) == (0.5, 0.25)
    assert (found["grid"].dtype, found["grid"].tolist()) == (np.int32, [[0, 3], [1, 4], [2, 5]])
    assert found["small"].dtype == np.float32
    np.testing.assert_array_equal(found["small"], np.array([1, np.nan, np.inf], np.float32))
    assert found["tiny"].tolist() == [1, 1]
    assert found["none"].shape == (0, 3)
    assert (found["weights"].count, found["weights"].max) == (101, 1.0)
    assert (found["picture"].height, found["picture"].width) == (4, 5)
    [path] = tmp_path.glob("export_*/tensor/grid_1.npy")
    assert np.load(path).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_an_array_that_is_donated_afterwards_is_recorded_as_it_was():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    array = jnp.arange(4.0)
    kept = checked_value("tensor", "x", array).data
    jax.block_until_ready(step(array))
    assert kept.result().tolist() == [0, 1, 2, 3]


def test_what_has_no_values_is_refused_with_the_remedy():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    gone = jnp.arange(4.0)
    step(gone)
    with pytest.raises(InvalidValueError, match=r"the tensor 'x': the array \(float32 .*record it before"):
        checked_value("tensor", "x", gone)
    with pytest.raises(InvalidTypeError, match=r"the tensor 'x': .*key<.*jax\.random\.key_data"):
        checked_value("tensor", "x", jax.random.key(0))
    with pytest.raises(InvalidTypeError, match=r"the tensor 'x' must be bool.*complex64; record its abs"):
        checked_value("tensor", "x", jnp.ones(2, jnp.complex64))


@pytest.mark.parametrize("plugin", ["scalar", "tensor", "histogram"])
def test_a_traced_array_is_refused_with_the_remedy(plugin: str):
    def inside(x):
        checked_value(plugin, "x", x)
        return x

    for transform in (jax.jit, jax.grad, jax.vmap):
        with pytest.raises(InvalidTypeError, match=rf"the {plugin} 'x': a traced array .*record the result"):
            transform(inside)(jnp.ones(3) if transform is jax.vmap else 1.0)


def test_jax_is_imported_by_its_user_alone():
    code = (
        "import sys, numpy as np; "
        "from distsummary.collect.values.checked_values import checked_value as check; "
        "check('tensor', 'x', np.ones(2)); check('tensor', 'x', [1.0]); sys.exit('jax' in sys.modules)"
    )
    run_python("-c", code)


def test_other_objects_of_jax_are_no_tensors():
    for other in (jax.jit(abs), jax.devices()[0], jax.random.key):
        assert not framework_of(other).is_tensor(other)
        with pytest.raises(InvalidTypeError, match="must be an array, a tensor or numbers in lists"):
            checked_value("tensor", "x", other)
