"""JAX arrays as values to record; models of JAX are not watched. Imported only after the user's own JAX."""

from typing import Any

import jax

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import ArraySpec
from distsummary.frameworks.numpy import NumpyFramework


class JaxFramework(NumpyFramework):
    """Reads arrays of JAX through NumPy: a copy waits until the array has been computed."""

    name = "jax"

    def is_tensor(self, value: object) -> bool:
        """Whether `value` is a jax.Array, or stands for one while JAX traces a function."""
        return isinstance(value, jax.Array)

    def array_spec(self, tensor: Any) -> ArraySpec:
        """The shape and dtype on the host; raises for an array whose values this process cannot read."""
        kind = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        if isinstance(tensor, jax.core.Tracer):
            raise InvalidTypeError(
                f"a traced array ({kind}) has no values yet; return it from the function that JAX "
                "transforms (jit, grad, vmap ...) and record the result"
            )
        if jax.numpy.issubdtype(tensor.dtype, jax.dtypes.extended):
            raise InvalidTypeError(f"an array of {kind} has no numbers; record jax.random.key_data(key)")
        if tensor.is_deleted():
            raise InvalidValueError(
                f"the array ({kind}) was deleted, perhaps donated to a function; record it before"
            )
        if not (tensor.is_fully_addressable or tensor.is_fully_replicated):
            raise InvalidValueError(
                f"the array ({kind}) is spread over several processes; record this process's part: "
                "array.addressable_shards[0].data"
            )
        return super().array_spec(tensor)


FRAMEWORK = JaxFramework()
