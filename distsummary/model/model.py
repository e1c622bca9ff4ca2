"""Model: trains, evaluates and predicts with a torch network, through the interface of MindSpore's Model."""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from distsummary.base.checks import check_choice, check_int, check_type, is_int
from distsummary.base.guard import guarded_log
from distsummary.checkpoints.encryption import GCM
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import CurvatureSource, framework_of
from distsummary.model.loss_scale import DynamicLossScaleManager, LossScaleManager
from distsummary.model.metrics import Loss, get_metrics
from distsummary.model.model_run import ModelRun
from distsummary.training.callbacks import Callback, length
from distsummary.training.model_checkpoint import ModelCheckpoint
from distsummary.training.resume import resume as resume_training
from distsummary.training.resumed import Resumed

logger = guarded_log(__name__)

LEVELS = ("O0", "O1", "O2", "O3", "auto")
WITHOUT_EFFECT = ("acc_level", "boost_config_dict", "boost_level")  # they choose kernels of MindSpore
PREDICTED = (int, float, str, tuple, list, dict)  # types of predict's inputs besides tensors and None


class Model:
    """Trains and evaluates a torch network; all of its loops call the hooks of callbacks, as a Run does.

        model = ds.Model(network, loss_fn=nn.CrossEntropyLoss(), optimizer=optimizer, metrics={"acc"})
        model.fit(3, train_loader, test_loader, callbacks=[ds.SummaryCollector("runs/digits")])
        model.eval(test_loader)  # {"acc": 0.97}

    Args:
        network: a torch.nn.Module; for several ranks, already wrapped by DistributedDataParallel or sharded
            by fully_shard. Batches are moved to the device of its parameters.
        loss_fn: a function or module of (the network's output, labels) that returns the loss. A loss of
            several elements is trained on their sum, as in MindSpore. None: the network takes whole batches
            and returns the loss, alone or as its first output.
        optimizer: a torch optimizer. None: nothing is trained, unless the network itself does so; callbacks
            then get the optimizer and the loss function that it holds.
        metrics: what `eval` computes: a set of names, such as {"acc", "recall"}, or a dict of names and
            objects; see `distsummary.model.metrics`. Several ranks compute them each from its own data.
        eval_network: a module that takes whole batches and whose outputs go to the metrics. None: the
            network with `loss_fn`.
        eval_indexes: the positions of loss, predictions and labels in the outputs of `eval_network`; `Loss`
            then gets the first, other metrics the others. None: each metric gets all outputs.
        amp_level: "O0": the network's own precision. "O1", "O2", "O3" and "auto": forward passes run under
            torch.autocast with its dtype for the device (float16 on CUDA, bfloat16 on CPU). "O2" also scales
            the loss, by a DynamicLossScaleManager if `loss_scale_manager` is None. Parameters stay as they
            are at all levels.
        loss_scale_manager: scales the loss, such as FixedLossScaleManager() or DynamicLossScaleManager().
        keep_batchnorm_fp32: None, True or False; accepted, without effect: torch.autocast keeps statistics
            and parameters of batch norms in float32 at all levels.
        kwargs: boost_level, acc_level and boost_config_dict are accepted, without effect.

    Raises:
        InvalidTypeError: an argument has the wrong type. InvalidValueError: an unknown level, metric or
            argument; amp_level or loss_scale_manager without an optimizer; metrics without a way to evaluate.
    """

    def __init__(
        self,
        network: Any,
        loss_fn: Any = None,
        optimizer: Any = None,
        metrics: Any = None,
        eval_network: Any = None,
        eval_indexes: list[int] | None = None,
        amp_level: str = "O0",
        loss_scale_manager: LossScaleManager | None = None,
        keep_batchnorm_fp32: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if framework_of(network).name != "torch":
            raise InvalidTypeError(f"network must be a torch.nn.Module, got {type(network).__name__}")
        if loss_fn is not None and not callable(loss_fn):
            raise InvalidTypeError(f"loss_fn must be a function or a module, got {type(loss_fn).__name__}")
        if optimizer is not None and not all(hasattr(optimizer, name) for name in ("step", "param_groups")):
            raise InvalidTypeError(f"optimizer must be a torch optimizer, got {type(optimizer).__name__}")
        check_type("amp_level", amp_level, str)
        check_choice("amp_level", amp_level, LEVELS)
        check_type("loss_scale_manager", loss_scale_manager, LossScaleManager, optional=True)
        check_type("keep_batchnorm_fp32", keep_batchnorm_fp32, bool, optional=True)
        for name in kwargs:
            if name not in WITHOUT_EFFECT:
                raise InvalidValueError(
                    f"Model has no argument {name!r}; besides those that it names it takes "
                    f"{', '.join(WITHOUT_EFFECT)}, without effect"
                )
            logger.warning("Model: %s has no effect on torch; leave it out", name)
        if optimizer is None and (amp_level != "O0" or loss_scale_manager is not None):
            given = "loss_scale_manager" if amp_level == "O0" else f"amp_level={amp_level!r}"
            raise InvalidValueError(f"{given} needs an optimizer, got None; pass optimizer= or leave it out")
        if keep_batchnorm_fp32 is False and amp_level != "O0":
            logger.warning("Model: keep_batchnorm_fp32=False has no effect: torch.autocast keeps float32")
        self._metrics = get_metrics(metrics)
        if self._metrics and eval_network is None and loss_fn is None:
            raise InvalidValueError(
                "metrics need a way to evaluate, got neither loss_fn nor eval_network; pass one of them"
            )
        if eval_indexes is not None and not (
            isinstance(eval_indexes, list) and len(eval_indexes) == 3 and all(map(is_int, eval_indexes))
        ):
            raise InvalidValueError(
                f"eval_indexes must be a list of three int or None, got {eval_indexes!r}; they are the "
                "positions of loss, predictions and labels in the outputs of eval_network"
            )
        if amp_level == "O2" and loss_scale_manager is None:
            loss_scale_manager = DynamicLossScaleManager()
        # A curvature source observes the gradients before Model divides them by the scale.
        if loss_scale_manager is not None and isinstance(optimizer, CurvatureSource):
            optimizer.loss_scale = loss_scale_manager
        self.loss_fn = loss_fn
        self._network, self._optimizer, self._manager = network, optimizer, loss_scale_manager
        self._eval_network = eval_network
        self._eval_indexes = [0, 1, 2] if eval_network is None else eval_indexes
        # Imported here, as it imports torch.
        from distsummary.model.torch_steps import TorchSteps

        self._steps = TorchSteps(
            network, loss_fn, optimizer, eval_network, mixed=amp_level != "O0", manager=loss_scale_manager
        )

    @property
    def train_network(self) -> Any:
        """The network that `train` trains."""
        return self._network

    @property
    def predict_network(self) -> Any:
        """The network that `predict` calls."""
        return self._network

    @property
    def eval_network(self) -> Any:
        """The network that `eval` calls."""
        return self._network if self._eval_network is None else self._eval_network

    def train(
        self,
        epoch: int,
        train_dataset: Iterable[Any],
        callbacks: Callback | Sequence[Callback] | None = None,
        dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
        *,
        initial_step: int | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> None:
        """Train up to epoch number `epoch`.

        If the loader or its sampler has `set_epoch`, as DistributedSampler does, it is called for each epoch.

        Args:
            epoch: the number of epochs of the whole training, >= 1.
            train_dataset: any iterable of batches, such as a DataLoader: (data, labels) with a `loss_fn`;
                otherwise a tuple or list of the network's arguments, or a dict of them by name.
            callbacks: one or several. A SummaryCollector among them records the training.
            dataset_sink_mode: False: hooks are called at every step. True: once for each epoch, with the
                number of its last step; a collector then counts `collect_freq` in epochs. The steps
                themselves are the same.
            sink_size: in sink mode, the number of steps of an epoch; the next one continues with the batches
                that follow, and a data set that ends begins again. -1: an epoch is the whole data set.
            initial_epoch: the number of epochs that a resumed training has completed: the `epoch_num` of a
                checkpoint that was saved at the end of an epoch.
            initial_step: the number of steps that it has completed, from which steps are counted on: the
                `step_num` of the checkpoint. None: `initial_epoch` times the length of the data set. If that
                is within an epoch, the epoch's data begin again.
            resume: a checkpoint, or a directory: then its newest one, if it holds any. Network, optimizer,
                loss scale, random numbers and the objects in append_info of a ModelCheckpoint among the
                callbacks are loaded, and the training continues with the batch after that of the checkpoint,
                as if it had not been interrupted. The epochs and steps before come from it. With a
                sink_size, the data begin again.

        Raises:
            InvalidTypeError, InvalidValueError: bad arguments; an optimizer without parameters of the
                network; a data set without batches; a batch or loss that does not fit. What a callback, the
                network or the data set raises passes through.
        """
        Model.fit(
            self,
            epoch,
            train_dataset,
            callbacks=callbacks,
            dataset_sink_mode=dataset_sink_mode,
            sink_size=sink_size,
            initial_epoch=initial_epoch,
            initial_step=initial_step,
            resume=resume,
        )

    def fit(
        self,
        epoch: int,
        train_dataset: Iterable[Any],
        valid_dataset: Iterable[Any] | None = None,
        valid_frequency: int | list[int] = 1,
        callbacks: Callback | Sequence[Callback] | None = None,
        dataset_sink_mode: bool = False,
        valid_dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
        *,
        initial_step: int | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> None:
        """Train as `train` does, and evaluate at the end of epochs, before `on_train_epoch_end`.

        Callbacks find the results in the parameter `metrics`, and with the loss in `eval_results`.

        Args:
            valid_dataset: the batches to evaluate; None: no evaluation.
            valid_frequency: the number of epochs between evaluations, >= 1, or the numbers of the epochs
                (from 1) at whose ends there is one.
            valid_dataset_sink_mode: accepted, without effect.
            others: as those of `train`.

        Raises what `train` and `eval` raise.
        """
        check_type("valid_dataset_sink_mode", valid_dataset_sink_mode, bool)
        if isinstance(valid_frequency, list):
            valid_frequency = [check_int("valid_frequency", number, low=1) for number in valid_frequency]
        else:
            valid_frequency = check_int("valid_frequency", valid_frequency, low=1)
        if valid_dataset is not None:
            self._require_evaluation("fit", valid_dataset)

        def is_due(done: int) -> bool:
            if isinstance(valid_frequency, list):
                return done in valid_frequency
            return done % valid_frequency == 0

        epoch = check_int("epoch", epoch, low=1)
        initial_epoch = check_int("initial_epoch", initial_epoch, low=0)
        initial_step = check_int("initial_step", initial_step, low=0, optional=True)
        check_type("dataset_sink_mode", dataset_sink_mode, bool)
        sink_size = check_int("sink_size", sink_size)
        if sink_size < -1 or sink_size == 0:
            raise InvalidValueError(f"sink_size must be -1 or >= 1, got {sink_size}")
        # The checkpoint alone says where a resumed training continues.
        resumed = None
        if resume is not None:
            if initial_epoch or initial_step is not None:
                raise InvalidValueError(
                    "initial_epoch and initial_step must be left out if resume is given, which says them"
                )
            resumed = self._resume(resume, callbacks)
            initial_epoch, initial_step = resumed.epoch, resumed.step
        if initial_epoch >= epoch:
            if resume is not None:
                raise InvalidValueError(
                    f"the checkpoint of {os.fspath(resume)} has finished epoch {initial_epoch} of {epoch}; "
                    "pass a larger epoch, which is the number of epochs of the whole training"
                )
            raise InvalidValueError(
                f"epoch must be above initial_epoch, got {epoch} and {initial_epoch}; epoch is the number of "
                "epochs of the whole training"
            )
        _check_dataset("train_dataset", train_dataset)
        has_sinks = dataset_sink_mode and sink_size > 0
        # An iterator cannot be read again for a second epoch or evaluation.
        if isinstance(train_dataset, Iterator) and (epoch - initial_epoch > 1) and not has_sinks:
            raise InvalidValueError(
                f"train_dataset can be read only once, got a {type(train_dataset).__name__} for "
                f"{epoch - initial_epoch} epochs; pass a list or a loader"
            )
        if isinstance(valid_dataset, Iterator) and sum(map(is_due, range(initial_epoch + 1, epoch + 1))) > 1:
            raise InvalidValueError(
                f"valid_dataset can be read only once, got a {type(valid_dataset).__name__} for several "
                "evaluations; pass a list or a loader"
            )
        batch_num = sink_size if has_sinks else length(train_dataset)
        # Without the length of the data set, it is unknown how many steps the epochs before had.
        if initial_epoch and not batch_num and initial_step is None:
            raise InvalidValueError(
                f"initial_epoch={initial_epoch} needs the step or a train_dataset with a length, got a "
                f"{type(train_dataset).__name__}; pass initial_step="
            )
        run = ModelRun(
            dataset=train_dataset,
            batch_num=batch_num,
            sink_size=sink_size if dataset_sink_mode else None,
            manager=self._manager,
            skipped=0 if resumed is None else resumed.step_in_epoch,
            epochs=epoch,
            initial_epoch=initial_epoch,
            initial_step=initial_epoch * batch_num if initial_step is None else initial_step,
            **self._of_run(callbacks),
        )
        params, step = run.context.original_args(), self._steps.training_step()
        following = _endless(train_dataset, initial_epoch) if has_sinks else None
        try:
            with run:
                for number in run.epochs(epoch):
                    # With a sink_size, batches continue beyond epochs, and `_endless` calls set_epoch.
                    if following is None:
                        _set_epoch(train_dataset, number)
                    batches: Iterable[Any] = train_dataset
                    # The first epoch of a resumed training has only what the checkpoint left of it.
                    is_rest = resumed is not None and following is None and number == resumed.epoch
                    if resumed is not None and is_rest:
                        batches = resumed.rest_of(train_dataset)
                    if not dataset_sink_mode:
                        for batch in run.steps(batches):
                            params["net_outputs"] = step(batch)
                    else:
                        if is_rest:
                            # Nothing may be left of the epoch: one batch shows whether there is a step.
                            rest = iter(batches)
                            some = list(itertools.islice(rest, 1))
                            batches = itertools.chain(some, rest)
                        for _ in run.steps([None] if not is_rest or some else []):
                            outputs = None
                            for batch in run.sunk(batches if following is None else following, sink_size):
                                outputs = step(batch)
                            params["net_outputs"] = outputs
                    # Only the rest of a resumed epoch may be empty.
                    if params.cur_step_num == run.initial_step and not is_rest:
                        raise InvalidValueError("train_dataset gave no batches; check the data")
                    if valid_dataset is not None and is_due(number + 1):
                        self._evaluate(run, valid_dataset)
        finally:
            # Closing the generator ends the workers of its loader.
            if following is not None:
                following.close()

    def eval(
        self,
        valid_dataset: Iterable[Any],
        callbacks: Callback | Sequence[Callback] | None = None,
        dataset_sink_mode: bool = False,
    ) -> dict[str, Any]:
        """Evaluate the metrics; returns them by name: floats, or arrays with one number for each class.

        A SummaryCollector among the callbacks records them as `eval/<name>`, arrays as `eval/<name>/<class>`.

        Args:
            valid_dataset: as `train_dataset` of `train`; with an `eval_network`, batches are its arguments.
            callbacks: one or several. dataset_sink_mode: accepted, without effect.

        Raises:
            InvalidTypeError, InvalidValueError: bad arguments, no metrics. NoSamplesError: no batches.
        """
        check_type("dataset_sink_mode", dataset_sink_mode, bool)
        self._require_evaluation("eval", valid_dataset)
        with ModelRun(**self._of_run(callbacks)) as run:
            return self._evaluate(run, valid_dataset)

    def predict(self, *predict_data: Any) -> Any:
        """The network's outputs for one batch of inputs, in evaluation mode and without gradients.

        Args:
            predict_data: the network's arguments: tensors or arrays, which are moved to its device, None,
                int, float, str, or tuples, lists and dicts of these.

        Raises InvalidTypeError for others, InvalidValueError for a tensor without elements.
        """
        for value in predict_data:
            if value is None or isinstance(value, PREDICTED):
                continue
            if not framework_of(value).is_tensor(value):
                raise InvalidTypeError(
                    "predict takes tensors, arrays, None, int, float, str, tuple, list or dict, got "
                    f"{type(value).__name__}"
                )
            if 0 in value.shape:
                raise InvalidValueError(f"predict takes no empty tensor, got shape {tuple(value.shape)}")
        return self._steps.predict(predict_data)

    def batch_loss(self, network: Any, batch: Any) -> Any:
        """The loss of a batch from a network that computes it itself: for landscapes."""
        outputs = network(**batch) if isinstance(batch, dict) else network(*batch)
        return outputs[0] if isinstance(outputs, (tuple, list)) else outputs

    def _resume(
        self, checkpoint: str | os.PathLike[str], callbacks: Callback | Sequence[Callback] | None
    ) -> Resumed:
        """Load a checkpoint into all that this training has."""
        given = [callbacks] if isinstance(callbacks, Callback) else callbacks or []
        # The key, and the objects that were saved with the network, are known to ModelCheckpoint.
        configs = [callback.config for callback in given if isinstance(callback, ModelCheckpoint)]
        states = {
            name: value
            for config in configs
            for name, value in (config.append_dict or {}).items()
            if hasattr(value, "load_state_dict")
        }
        key, mode = next(
            ((config.enc_key, config.enc_mode) for config in configs if config.enc_key is not None),
            (None, GCM),
        )
        resumed = resume_training(
            checkpoint, self._network, self._steps.held()[0], dec_key=key, dec_mode=mode, **states
        )
        if resumed.loss_scale and self._manager is not None:
            self._manager.load_state_dict(resumed.loss_scale)
        return resumed

    def _evaluate(self, run: ModelRun, dataset: Iterable[Any]) -> dict[str, Any]:
        for metric in self._metrics.values():
            metric.clear()
        losses, step = Loss(), self._steps.evaluation_step()
        with self._steps.evaluating(), run.eval(dataset) as evaluation:
            evaluation.params.eval_network = self.eval_network
            for batch in evaluation.steps(dataset):
                evaluation.params.net_outputs = outputs = step(batch)
                loss = self._update(outputs)
                if loss is not None:
                    losses.update(loss)
            found = {name: metric.eval() for name, metric in self._metrics.items()}
            evaluation.log({name: _loggable(value) for name, value in found.items() if _is_flat(value)})
            if self._eval_indexes is not None:
                evaluation.loss = losses.eval()
        params = run.context.original_args()
        params |= {"metrics": found, "eval_results": found | evaluation.eval_loss}
        return found

    def _update(self, outputs: Any) -> Any:
        """Give the outputs of a batch to the metrics; returns the loss among them, None if it is unknown."""
        if not isinstance(outputs, (tuple, list)):
            outputs = (outputs,)
        if self._eval_indexes is None:
            for metric in self._metrics.values():
                metric.update(*outputs)
            return None
        try:
            loss, predicted, true = (outputs[index] for index in self._eval_indexes)
        except IndexError:
            raise InvalidValueError(
                f"eval_indexes={self._eval_indexes} must be positions in the {len(outputs)} outputs of "
                "eval_network; change them, or return (loss, predictions, labels)"
            ) from None
        for metric in self._metrics.values():
            if isinstance(metric, Loss):
                metric.update(loss)
            else:
                metric.update(predicted, true)
        return loss

    def _of_run(self, callbacks: Callback | Sequence[Callback] | None) -> dict[str, Any]:
        optimizer, loss_fn = self._steps.held()
        return {
            "callbacks": callbacks,
            "network": self._network,
            "optimizer": optimizer,
            "loss_fn": loss_fn,
        }

    def _require_evaluation(self, method: str, dataset: object) -> None:
        if not self._metrics:
            raise InvalidValueError(
                f'Model.{method} needs metrics to evaluate, got none; make the model with metrics={{"acc"}}'
            )
        _check_dataset("valid_dataset", dataset)


def _check_dataset(field: str, dataset: Any) -> None:
    if not hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__"):
        instead = "pass the batches, such as a DataLoader"
        if hasattr(dataset, "get_dataset_size"):
            instead = (
                "of a data set of MindSpore, pass a DataLoader of its source, or "
                "list(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True))"
            )
        raise InvalidTypeError(f"{field} must be iterable, got {type(dataset).__name__}; {instead}")
    # Many iterables have no length: whether they are empty shows in the first epoch.
    with contextlib.suppress(TypeError, NotImplementedError):
        if not len(dataset):
            raise InvalidValueError(f"{field} must hold at least one batch, got none; check the data")


def _set_epoch(dataset: Any, number: int) -> None:
    """Pass the number of the epoch, from 0, to a loader or its sampler, which may shuffle by it."""
    for asking in (dataset, getattr(dataset, "sampler", None)):
        if callable(report := getattr(asking, "set_epoch", None)):
            report(number)


def _endless(dataset: Iterable[Any], first: int) -> Any:
    """The batches of a data set, again and again; raises InvalidValueError if there are none (any more)."""
    while True:
        _set_epoch(dataset, first)
        is_empty = True
        for batch in dataset:
            is_empty = False
            yield batch
        if is_empty:
            raise InvalidValueError(
                "train_dataset gave no more batches for sink_size; pass a loader that can be read again"
            )
        first += 1


def _is_flat(value: Any) -> bool:
    """Whether a metric is a number or some: of curves and matrices there is no scalar."""
    return not isinstance(value, tuple) and getattr(value, "ndim", 0) < 2


def _loggable(value: Any) -> Any:
    """A metric in a form that a run records: several numbers become a dict of them by their positions."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    return {str(index): each for index, each in enumerate(listed)} if isinstance(listed, list) else listed
