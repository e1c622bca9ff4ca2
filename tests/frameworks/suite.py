"""What every framework must do: one suite that each framework's tests inherit."""

from typing import Any, ClassVar

import numpy as np
import pytest

from distsummary.checkpoints.mindspore_ckpt import map_ckpt, write_ckpt
from distsummary.format.encode import finish_value
from distsummary.format.histogram import count_histogram
from distsummary.format.records import Event, Value
from distsummary.format.scalar_rows import size_of
from distsummary.frameworks import base


class FrameworkSuite:
    """Inherit and fill in: `name`, and how to make and change the framework's own things.

    The model of `make_model` has the trainable parameters weight (2, 3) float32 and bias (2,) float32 in this
    order, the buffer count () int64, and gives `x @ weight.T + bias`.
    """

    name: ClassVar[str]

    def make_tensor(self, array: np.ndarray) -> Any:
        raise NotImplementedError

    def make_model(self) -> Any:
        raise NotImplementedError

    def make_tied_model(self) -> Any:
        """A model whose parameters first and second are one (2,) array."""
        raise NotImplementedError

    def make_optimizer(self, model: Any, learning_rate: float) -> Any:
        raise NotImplementedError

    def fill(self, tensor: Any, value: float) -> None:
        """Set all elements in place."""
        raise NotImplementedError

    @pytest.fixture
    def framework(self):
        return base.load(self.name)

    def test_it_is_found_by_its_tensors_and_models(self, framework):
        assert framework.name == self.name
        assert base.framework_of(self.make_tensor(np.ones(2))) is framework
        assert base.framework_of(self.make_model()) is framework

    def test_it_knows_its_tensors(self, framework):
        assert framework.is_tensor(self.make_tensor(np.ones(2)))
        assert not any(framework.is_tensor(value) for value in (1.0, [1.0], "1", None, self.make_model()))

    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "?"])
    @pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)])
    def test_to_numpy_gives_the_values_the_shape_and_the_dtype(self, framework, dtype, shape):
        array = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
        tensor = self.make_tensor(array)
        given = framework.to_numpy(tensor)
        np.testing.assert_array_equal(given, array)
        assert (given.shape, given.dtype) == (array.shape, array.dtype) == framework.array_spec(tensor)

    def test_to_numpy_is_a_copy_in_c_order(self, framework):
        tensor = self.make_tensor(np.arange(6.0).reshape(2, 3)).T
        given = framework.to_numpy(tensor)
        self.fill(tensor, 9.0)
        assert given.tolist() == [[0, 3], [1, 4], [2, 5]]
        assert given.flags.c_contiguous
        given[:] = 1
        assert framework.to_numpy(tensor)[0, 0] == 9

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "bool"])
    def test_the_number_of_a_tensor_of_one_element(self, framework, dtype):
        for shape in ((), (1,), (1, 1)):
            number = framework.number(self.make_tensor(np.full(shape, 1, dtype)))
            assert (type(number), number) == (float, 1.0)
        assert np.isnan(framework.number(self.make_tensor(np.array(np.nan, np.float32))))

    def test_other_tensors_have_no_number(self, framework):
        for array in (np.zeros(2, np.float32), np.zeros(0, np.float32), np.zeros((), np.complex64)):
            assert framework.number(self.make_tensor(array)) is None

    def test_a_snapshot_keeps_the_values_of_its_moment(self, framework):
        tensor = self.make_tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
        snapshot = framework.snapshot(tensor)
        self.fill(tensor, 9.0)
        assert snapshot.result().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert isinstance(snapshot.result(), np.ndarray)

    @pytest.mark.parametrize("dtype", ["f2", "f8", "u1", "?"])
    @pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)])
    def test_a_snapshot_reports_the_bytes_of_its_array(self, framework, dtype, shape):
        snapshot = framework.snapshot(self.make_tensor(np.zeros(shape, dtype)))
        assert snapshot.nbytes == snapshot.result().nbytes == np.zeros(shape, dtype).nbytes
        part = framework.snapshot(self.make_tensor(np.zeros((8, 8)))[2:4, ::2].T)
        assert part.nbytes == part.result().nbytes == 64

    @pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "i4", "i8", "f2", "f4", "f8"])
    def test_a_histogram_is_that_of_the_values_of_its_moment(self, framework, dtype):
        rng = np.random.default_rng(0)
        many = (rng.standard_normal((40, 30)) * 50).astype(dtype)
        special = np.array([1, 0, 1, 0, 1, 0], dtype)
        if special.dtype.kind == "f":
            special[:4] = np.nan, np.inf, -np.inf, -0.0
        whole, some = slice(None), (slice(None, None, 3), slice(1, None, 2))
        parts = [(many, whole), (many, some), (special, whole), (special, slice(0)),
                 (np.full(7, 1, dtype), whole), (np.array(3, dtype), ...)]  # fmt: skip
        for array, part in parts:
            given = self.make_tensor(array)
            tensor = given[part].T if array is many else given[part]
            taken = framework.histogram(tensor)
            self.fill(given, 1)
            found = finish_value(Value("histogram", "h", taken.result())).data
            expected = count_histogram(array[part].T)
            for name in ("left", "width", "counts"):
                assert getattr(found, name).tobytes() == getattr(expected, name).tobytes(), name
            for name in ("count", "nan_count", "pos_inf_count", "neg_inf_count", "min", "max"):
                assert getattr(found, name) == getattr(expected, name), name
            assert found.sum == (expected.sum and pytest.approx(expected.sum, rel=1e-9, abs=1e-9))

    def test_a_snapshot_counts_in_the_budget_of_a_writer(self, framework):
        snapshot = framework.snapshot(self.make_tensor(np.zeros(2000, np.float32)))
        assert size_of(Event(1, 1.0, [Value("histogram", "h", snapshot)])) >= 8000

    def test_a_whole_tensor_has_no_shard_and_a_plain_model_no_mesh(self, framework):
        assert framework.shard(self.make_tensor(np.ones((4, 2)))) is None
        assert framework.split_axes(self.make_tensor(np.ones((4, 2)))) == ()
        assert framework.mesh(self.make_model()) == {}

    def test_parameters_come_by_name_in_the_models_order(self, framework):
        parameters = list(framework.named_parameters(self.make_model()))
        assert [name for name, _ in parameters] == ["weight", "bias"]
        assert all(framework.is_tensor(value) for _, value in parameters)

    def test_the_size_of_a_model_is_that_of_its_parameters(self, framework):
        assert framework.nbytes(self.make_model()) == 4 * (2 * 3 + 2)
        first, *_ = framework.named_parameters(tied := self.make_tied_model())
        assert framework.nbytes(tied) == 2 * framework.array_spec(first[1]).dtype.itemsize
        with pytest.raises(TypeError, match="model must"):
            framework.nbytes([1.0])

    def test_the_state_holds_parameters_and_buffers_as_copies(self, framework):
        model = self.make_model()
        state = framework.state(model)
        assert {name: (array.shape, array.dtype.str) for name, array in state.items()} == {
            "weight": ((2, 3), "<f4"),
            "bias": ((2,), "<f4"),
            "count": ((), "<i8"),
        }
        before = state["bias"].tolist()
        for _, parameter in framework.named_parameters(model):
            self.fill(parameter, 9.0)
        assert state["bias"].tolist() == before
        assert framework.state(model)["bias"].tolist() == [9, 9]

    def test_the_tensors_of_a_model_are_those_of_its_state_in_place(self, framework):
        model = self.make_model()
        tensors = dict(framework.tensors(model))
        assert list(tensors) == list(framework.state(model))
        self.fill(tensors["bias"], 9.0)
        assert framework.state(model)["bias"].tolist() == [9, 9]
        assert list(dict(framework.tensors(self.make_tied_model()))) == ["first"]

    @staticmethod
    def write_state(framework, model, state):
        for name, tensor in framework.tensors(model):
            framework.write(tensor, state[name])

    def test_a_state_goes_through_a_checkpoint_and_back_exactly(self, framework, tmp_path):
        model, inputs = self.make_model(), self.make_tensor(np.ones((1, 3), np.float32))
        state, outputs = framework.state(model), framework.to_numpy(model(inputs))
        write_ckpt(tmp_path / "a.ckpt", state)
        parameters = dict(framework.named_parameters(model))
        for parameter in parameters.values():
            self.fill(parameter, 9.0)
        self.write_state(framework, model, map_ckpt(tmp_path / "a.ckpt").own())
        assert framework.to_numpy(model(inputs)).tobytes() == outputs.tobytes()
        after = framework.state(model)
        assert {name: array.tobytes() for name, array in after.items()} == {
            name: array.tobytes() for name, array in state.items()
        }
        now = dict(framework.named_parameters(model))
        assert all(now[name] is parameter for name, parameter in parameters.items()), "written in place"

    def test_a_state_may_be_read_only_reversed_and_of_the_other_byte_order(self, framework):
        model = self.make_model()
        state = framework.state(model)
        state["weight"] = state["weight"].astype(">f4")
        state["bias"] = state["bias"][::-1]
        state["count"].flags.writeable = False
        self.write_state(framework, model, state)
        assert framework.state(model)["weight"].tolist() == state["weight"].tolist()
        assert framework.state(model)["bias"].tolist() == state["bias"].tolist()

    def test_tied_weights_are_listed_once_under_their_first_name(self, framework):
        model = self.make_tied_model()
        assert list(framework.state(model)) == ["first"]
        self.write_state(framework, model, {"first": np.array([5, 6], np.float32)})
        assert framework.state(model)["first"].tolist() == [5, 6]

    def test_the_learning_rate_is_reported_when_there_is_one(self, framework):
        assert framework.learning_rate(self.make_optimizer(self.make_model(), 0.25)) == 0.25
        assert framework.learning_rate(object()) is None

    def test_what_is_no_model_is_refused(self, framework):
        with pytest.raises(TypeError, match="model must"):
            framework.state([1.0])
