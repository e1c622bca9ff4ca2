"""History: a callback that keeps the loss and the metrics of every epoch."""

from distsummary.training.callbacks import Callback, RunContext, guarded_hooks, loss_of


@guarded_hooks()
class History(Callback):
    """Keeps, for every epoch of a training, the last step's loss and the metrics of its evaluations.

        history = ds.History()
        with ds.init("runs/history", callbacks=history) as run:
            ...
        history.epoch  # {"epoch": [1, 2]}
        history.history  # {"net_output": [0.52, 0.31], "accuracy": [0.81, 0.9]}

    Attributes:
        epoch: {"epoch": the numbers of the epochs of the last training, from 1}; None before a training.
        history: "net_output" -> the loss of each epoch's last step: the mean of the first output, or None if
            it is no number; name of a metric -> its values. A second training with the same object adds to
            it. An epoch without an evaluation adds nothing to the lists of the metrics.
    """

    def __init__(self) -> None:
        self.history: dict[str, list[object]] = {}
        self.epoch: dict[str, list[int]] | None = None

    def begin(self, run_context: RunContext) -> None:
        """Forget the numbers of an earlier training's epochs."""
        if run_context.original_args().get("mode") != "eval":
            self.epoch = {"epoch": []}

    def epoch_end(self, run_context: RunContext) -> None:
        """Keep the loss, waiting for its device, and the metrics of a training's epoch."""
        params = run_context.original_args()
        if params.get("mode") == "eval":
            return
        if self.epoch is None:
            self.epoch = {"epoch": []}
        self.epoch["epoch"].append(params.get("cur_epoch_num", 1))
        kept = {"net_output": loss_of(params.get("net_outputs"))} | dict(params.get("metrics") or {})
        for name, value in kept.items():
            self.history.setdefault(name, []).append(value)
