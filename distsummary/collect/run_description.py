"""Description: what a collector records of a training as a whole, at its first step and at its end."""

import time

from distsummary.collect.run_lineage import custom_lineage, dataset_graph, train_lineage
from distsummary.collect.run_settings import RunSettings
from distsummary.collect.session import Session
from distsummary.format.hparams import session_end, session_start
from distsummary.format.lineage import custom_values
from distsummary.format.records import Value
from distsummary.rundir import topology as topologies
from distsummary.training.callbacks import CallbackParams
from distsummary.training.values import mean_of, resolve


class DescriptionRecorder:
    """Records the lineage, the data graph and the settings.

    Args:
        settings: what is recorded of them; `custom` becomes lineage and TensorBoard's hyperparameters.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._collected, self._custom = settings.collected, settings.custom
        self._compatibility = settings.compatibility
        self._has_settings = False  # whether TensorBoard shows settings of a training that has not ended

    def begin(self, session: Session, params: CallbackParams) -> None:
        """Record what is known at the first step."""
        step = int(params.cur_step_num)
        # Leave out the loss, so that nothing waits until it is computed.
        values = self._train_lineage(session, params, has_loss=False)
        if self._collected.dataset_graph:
            graph = dataset_graph(params.get("train_dataset"), params.get("batch_num") or 0)
            values += [Value("dataset_graph", "", graph)] if graph is not None else []
        custom = custom_lineage(self._custom, topologies.hyper_config())
        values += [Value("custom_lineage_data", "", custom)] if custom.user_info else []
        settings = custom_values(custom)
        topology = session.topology
        # With several ranks, only the merged run holds the settings.
        self._has_settings = bool(settings) and topology.role == "train" and topology.world_size == 1
        if self._has_settings:
            session.record(step, {}, [session_start(settings, time.time())])
        if self._collected.train_lineage and not self._compatibility.lineage:
            session.describe_run(step)
        session.report(step, values)

    def end(self, session: Session, params: CallbackParams) -> None:
        """Record the complete lineage of a training that ended."""
        values = self._train_lineage(session, params, has_loss=True)
        self.end_settings(session, params, is_success=True)
        session.report(int(params.cur_step_num), values)

    def end_settings(self, session: Session, params: CallbackParams, *, is_success: bool) -> None:
        """Record for TensorBoard how the training with the recorded settings ended, if it has any."""
        if self._has_settings:
            self._has_settings = False
            ended = session_end(time.time(), is_success=is_success)
            session.record(int(params.cur_step_num), {}, [ended])

    def _train_lineage(self, session: Session, params: CallbackParams, *, has_loss: bool) -> list[Value]:
        if not self._collected.train_lineage:
            return []
        output = mean_of(params.get("net_outputs")) if has_loss else None
        loss = None if output is None else resolve(output)
        message = train_lineage(params, session.topology, loss=loss, compatibility=self._compatibility)
        return [Value("train_lineage", "", message)]
