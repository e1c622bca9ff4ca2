"""The tee: numbers that a script gives to torch's SummaryWriter, wandb or MLflow enter its run as well."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from distsummary.format.own_tags import SCRIPT_TAGS
from distsummary.integrations.after_import import after_import
from distsummary.integrations.follower import report

NumbersOf: TypeAlias = Callable[..., Mapping[str, Any]]  # the arguments of a call -> its values, by name


def open_tee() -> None:
    """Record these numbers at the step at which they are given, whatever step the script names."""
    after_import("torch.utils.tensorboard.writer", _follow_summary_writer)
    after_import("wandb.sdk.wandb_run", _follow_wandb)
    after_import("mlflow.tracking.client", _follow_mlflow)


def _follow_summary_writer(module: Any) -> None:
    def of_scalar(tag: str, scalar_value: Any, *others: Any, **named: Any) -> Mapping[str, Any]:
        return {tag: scalar_value}

    def of_scalars(main_tag: str, tag_scalar_dict: Mapping[str, Any], *others: Any, **named: Any) -> Any:
        return {f"{main_tag}/{tag}": number for tag, number in tag_scalar_dict.items()}

    _follow(module.SummaryWriter, "add_scalar", of_scalar)
    _follow(module.SummaryWriter, "add_scalars", of_scalars)


def _follow_wandb(module: Any) -> None:
    def of_log(data: Mapping[str, Any], *others: Any, **named: Any) -> Mapping[str, Any]:
        return data

    _follow(module.Run, "log", of_log)


def _follow_mlflow(module: Any) -> None:
    def of_metric(run_id: str, key: str, value: Any, *others: Any, **named: Any) -> Mapping[str, Any]:
        return {key: value}

    def of_batch(run_id: str, metrics: Any = (), *others: Any, **named: Any) -> Mapping[str, Any]:
        return {metric.key: metric.value for metric in metrics}

    _follow(module.MlflowClient, "log_metric", of_metric)
    _follow(module.MlflowClient, "log_batch", of_batch)


def _follow(owner: Any, name: str, numbers_of: NumbersOf) -> None:
    call = vars(owner)[name]

    @functools.wraps(call)
    def follower(self: Any, *args: Any, **named: Any) -> Any:
        result = call(self, *args, **named)
        report(SCRIPT_TAGS, numbers_of, *args, **named)
        return result

    setattr(owner, name, follower)
