"""Opens the engine of a task, for the framework of its model."""

from distsummary.frameworks.base import framework_of
from distsummary.landscapes.engines.engine import Engine, Task
from distsummary.landscapes.engines.engine_choice import EngineChoice


def open_engine(task: Task, device: str | None = None) -> Engine:
    """Open the engine that the task has chosen; a torch model is moved to `device`, unless that is None.

    Without a choice, torch models get the row engine. Others have only the naive engine. Raises
    CannotTraceError (a LandscapeError) for a graph engine on a model whose code cannot be recorded.
    """
    if framework_of(task.model).name != "torch":
        from distsummary.landscapes.engines.naive_engine import NaiveEngine

        return NaiveEngine(task)
    from distsummary.landscapes.engines.torch_engines import TorchEngine, TorchNaiveEngine, TorchRowEngine

    name = (task.choice or EngineChoice()).engine
    kind: type[TorchEngine] = TorchNaiveEngine if name == "naive" else TorchRowEngine
    if name == "graph":
        from distsummary.landscapes.engines.torch_graph_engine import TorchGraphEngine

        kind = TorchGraphEngine
    elif name == "inference":
        from distsummary.landscapes.engines.torch_inference_engine import TorchInferenceEngine

        kind = TorchInferenceEngine
    return kind(task, device)


def is_out_of_memory(task: Task, error: BaseException) -> bool:
    """Whether an error that an engine raised means that memory ran out; always False without torch."""
    if framework_of(task.model).name != "torch":
        return False
    from distsummary.landscapes.model.torch_memory import is_full

    return is_full(error)
