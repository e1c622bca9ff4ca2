"""Opens the engine that an `EngineChoice` names, for the framework of the model."""

from collections.abc import Iterable, Sequence
from typing import Any

from distsummary.base.checks import check_choice
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.engines.engine import MODES, Engine
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.model.data import Data
from distsummary.landscapes.model.quantities import Evaluation


def open_engine(
    model: Any,
    loss_fn: Any,
    batches: Iterable[Any] | Data,
    *,
    names: Sequence[str],
    mode: str,
    device: str | None = None,
    evaluation: Evaluation | None = None,
    choice: EngineChoice | None = None,
) -> Engine:
    """Open an engine for the framework of `model`; `names` are the parameters that are varied.

    If `choice` is None, torch models get the row engine. Others have only the naive engine. Raises
    CannotTraceError (a LandscapeError) for a graph engine on a model whose code cannot be recorded.
    """
    check_choice("mode", mode, MODES)
    evaluation, choice = evaluation or Evaluation(), choice or EngineChoice()
    if framework_of(model).name != "torch":
        from distsummary.landscapes.engines.naive_engine import NaiveEngine

        return NaiveEngine(model, loss_fn, batches, mode=mode, evaluation=evaluation)
    from distsummary.landscapes.engines.torch_engines import TorchEngine, TorchNaiveEngine, TorchRowEngine

    kind: type[TorchEngine] = TorchNaiveEngine if choice.engine == "naive" else TorchRowEngine
    if choice.engine == "graph":
        from distsummary.landscapes.engines.torch_graph_engine import TorchGraphEngine

        kind = TorchGraphEngine
    elif choice.engine == "inference":
        from distsummary.landscapes.engines.torch_inference_engine import TorchInferenceEngine

        kind = TorchInferenceEngine
    return kind(
        model, loss_fn, batches,
        names=names, mode=mode, device=device, evaluation=evaluation, choice=choice,
    )  # fmt: skip


def is_out_of_memory(model: Any, error: BaseException) -> bool:
    """Whether an error that an engine raised means that memory ran out; always False without torch."""
    if framework_of(model).name != "torch":
        return False
    from distsummary.landscapes.model.torch_memory import is_full

    return is_full(error)
