"""Record: what `ds.init` and SummaryCollector record beyond what the loop gives, and how under load."""

from dataclasses import dataclass

from distsummary.base.checks import check_choice, check_type
from distsummary.events.spec import DROP, WAIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Options of recording: `ds.init("runs/a", record=ds.Record(images=True))`.

    Args:
        overload: what happens when a rank gives more values than its writer can write. "wait": the loop is
            slowed down, scalars and lineage are never dropped while the writer makes progress. "drop": the
            values of whole steps are dropped and counted.
        images: whether the first pictures of the training batches are recorded, as `input_data/auto`. None:
            `ds.init` records none; a SummaryCollector of your own does as MindSpore's, where
            `collect_input_data` is True by default.
        identity: False omits what identifies the user and the machine: command line, commit, platform and
            the directories of paths are absent, and hashes with the random id of this run as key replace
            host, boot id and the launcher's name of the job. It holds for the whole run and whatever is
            written into it later. See docs/privacy.md.
        private: only the owner may read the run: its directory gets the rights 0700, and what is made in it
            0600. It holds for the whole run, from the first attempt that asks for it.

    Raises InvalidTypeError or InvalidValueError for bad arguments.
    """

    overload: str = WAIT
    images: bool | None = None
    identity: bool = True
    private: bool = False

    def __post_init__(self) -> None:
        check_choice("overload", self.overload, (WAIT, DROP))
        check_type("images", self.images, bool, optional=True)
        check_type("identity", self.identity, bool)
        check_type("private", self.private, bool)
