"""What the modules of a torch model tell of its parameters: where filters lie, and which are tied."""

from torch import nn

from distsummary.landscape.normalization import FilterAxis
from distsummary.landscape.torch_memory import unwrap

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def filter_axes(model: nn.Module) -> dict[str, FilterAxis]:
    """The filter axes that are not 0, by the first name of the parameter; see `normalization`."""
    found: dict[str, FilterAxis] = {}
    tied = tied_names(model)
    for path, module in unwrap(model).named_modules():
        axis = _filter_axis(module)
        if axis is not None:
            name = f"{path}.weight" if path else "weight"
            found[tied.get(name, name)] = axis
    return found


def _filter_axis(module: nn.Module) -> FilterAxis | None:
    if isinstance(module, _TRANSPOSED):  # (in, out / groups, ...)
        return (1, module.groups) if module.groups > 1 else 1
    kind = type(module)
    if kind.__name__ == "Conv1D" and kind.__module__.startswith(
        "transformers."
    ):  # GPT-2's Linear, transposed
        return 1
    return None


def tied_names(model: nn.Module) -> dict[str, str]:
    """Of parameters with several names: each other name, and the first one."""
    first: dict[int, str] = {}
    found = {}
    for name, parameter in unwrap(model).named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        if known != name:
            found[name] = known
    return found
