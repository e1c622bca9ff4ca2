"""The code that runs in a worker's process, and the preparation of a task for sending; does not use Ray."""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.timing import choose_engine
from distsummary.landscapes.engines.worker import ChunkResult, EngineFacts, LandscapeWorker


def portable(model: Any, batches: Any, functions: Sequence[Any]) -> tuple[Any, Any, Sequence[Any]]:
    """The model, batches and functions with all tensors on the CPU, so that any process can unpickle them."""
    if framework_of(model).name != "torch":
        return model, batches, functions
    from distsummary.landscapes.model.torch_loan import placed
    from distsummary.landscapes.model.torch_loan import portable as on_host

    return *on_host(model, batches), [placed(function, model, "cpu") for function in functions]


def portable_task(task: Task) -> Task:
    """The same task in a form that any process can unpickle."""
    metrics = task.evaluation.metrics
    functions = [task.loss_fn, *metrics.values()]
    model, batches, (loss_fn, *others) = portable(task.model, task.batches, functions)
    evaluation = replace(task.evaluation, metrics=dict(zip(metrics, others, strict=True)))
    return replace(task, model=model, loss_fn=loss_fn, batches=batches, evaluation=evaluation)


def own_device(model: Any, gpus: float) -> str | None:
    """The device for a model in a worker with `gpus` GPUs; None: the model stays where it is."""
    if framework_of(model).name != "torch":
        return None
    from distsummary.landscapes.model.torch_memory import worker_device

    return worker_device(model, gpus)


class EngineChooser:
    """Chooses the engine for a task on the device of this process.

    In this class and the next two, `begin` does the steps that may fail, and `work`, where there is one,
    evaluates chunks. `gpus` is the number of GPUs of the process, or its share of one GPU.
    """

    def __init__(self, task: Task, *, gpus: float = 0.0) -> None:
        self._task, self._gpus = task, gpus

    def begin(self) -> EngineChoice:
        """Choose the engine."""
        return choose_engine(self._task, device=own_device(self._task.model, self._gpus)).choice


class ChunkWorker:
    """Evaluates chunks with a LandscapeWorker."""

    _worker: LandscapeWorker

    def __init__(self, task: Task, *, gpus: float = 0.0) -> None:
        self._task, self._gpus = task, gpus

    def begin(self) -> EngineFacts:
        """Open the engine."""
        task, device = self._task, own_device(self._task.model, self._gpus)
        # Arrays from Ray's object store are read-only.
        if framework_of(task.model).name != "torch":
            task = replace(task, model=copy.deepcopy(task.model))
        self._worker = LandscapeWorker(task, device=device)
        return replace(self._worker.facts, unseen_gpus=self._gpus if device == "cpu" else 0.0)

    def work(self, chunks: Sequence[Chunk]) -> list[ChunkResult]:
        """The results of the chunks before the first chunk that raises; raises only if chunks[0] raises."""
        results: list[ChunkResult] = []
        for chunk in chunks:
            try:
                results.append(self._worker.evaluate(chunk))
            except Exception:
                if not results:
                    raise
                # The results so far are returned; the caller then asks for the rest, and gets the error.
                break
        return results


class HessianWorker:
    """Computes Hessian-vector products of groups of batches with a TorchHessian."""

    def __init__(self, parts: Sequence[Any], options: Mapping[str, Any], *, gpus: float = 0.0) -> None:
        self._parts, self._options, self._gpus = parts, options, gpus

    def begin(self) -> tuple[float, int]:
        """Open the Hessian; returns the weight of all batches and the number of groups of batches."""
        from distsummary.landscapes.engines.torch_hessian import TorchHessian

        device = own_device(self._parts[0], self._gpus)
        self._hessian = TorchHessian(*self._parts, **self._options, device=device)
        return self._hessian.weight, self._hessian.groups

    def work(self, chunks: Sequence[Chunk], vector: Array) -> list[ChunkResult]:
        """The product for the group of batches that is the column of the only chunk."""
        begun = time.perf_counter()
        [group] = chunks[0].columns
        product = self._hessian.group_product(vector, group)
        return [ChunkResult(seconds=time.perf_counter() - begun, measured=product[None])]
