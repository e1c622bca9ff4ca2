"""CheckpointConfig: when ModelCheckpoint saves, which files it keeps, and how it writes them."""

from collections.abc import Mapping
from typing import Any

from distsummary.base.checks import check_choice, check_int, check_type
from distsummary.checkpoints.encryption import GCM, check_key
from distsummary.checkpoints.model_file import FORMATS
from distsummary.checkpoints.object_state import state_entries
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import framework_of, spec_of

EPOCH, STEP = "epoch_num", "step_num"
INFO = (EPOCH, STEP)


class CheckpointConfig:
    """When a ModelCheckpoint saves, which of its files it keeps, and how it writes them.

    Args:
        save_checkpoint_steps: save after so many steps, >= 0; 0 or None: see the next argument.
        save_checkpoint_seconds: save at the end of the first step after so many seconds. Not used if
            save_checkpoint_steps is given (then the attribute is None). Without both, only the end of the
            training is saved. A sharded model needs save_checkpoint_steps: its ranks have different clocks.
        keep_checkpoint_max: keep so many files, >= 0, and remove the oldest. 0 without the next argument: 1.
        keep_checkpoint_per_n_minutes: of the files of so many minutes keep the oldest, and the newest file.
            Not used if keep_checkpoint_max is given (then the attribute is None).
        integrated_save: of a model that is sharded over ranks (FSDP2, tensor parallel), True: gather it, one
            tensor at a time, and save one file on rank 0. False: each rank saves its shards, without any
            communication, always as safetensors.
        async_save: True, "thread" or "process": write in a thread, while the training continues; the training
            waits only for a copy of the state. A process is not forked, which a process with threads, as all
            of torch's are, may not survive.
        saved_network: the model to save instead of the one in training.
        append_info: a list of "epoch_num", "step_num" and at most one dict of names and values (int, float,
            bool, str, or a tensor), which `load_checkpoint` returns with the parameters. A value may also be
            an object with `state_dict` and `load_state_dict`, such as a scheduler or a GradScaler: each
            checkpoint then holds its state of that moment, for `ds.resume`. The epoch and the
            step are always saved; numbers given for them in the dict are added to them.
        enc_key: encrypts the files: 16, 24 or 32 bytes. Needs `pip install cryptography`.
        enc_mode: "AES-GCM", which detects changes within blocks of 256 MiB, not of their order and number, or
            "AES-CBC", which detects none reliably; docs/checkpoints.md says what they do not protect.
        exception_save: also save when an exception, SIGTERM or SIGHUP ends the training, as
            `<prefix>-<epoch>_<step>_breakpoint`. After a signal, the step that runs is ended first; that and
            the writing must take less than 5 s. Of a sharded model each rank then saves its shards, which
            make a complete checkpoint only if all ranks end at the same step.
        format: "safetensors"; "ckpt", which MindSpore loads; or "dcp", a directory that
            torch.distributed.checkpoint loads: each rank of a sharded model writes its shards, whatever
            integrated_save says, and the directory gets its name once all ranks have written.

    Raises:
        InvalidTypeError: a wrong type; of enc_key and enc_mode InvalidArgumentError, which is both.
        InvalidValueError: a value out of its range, or all of the first four arguments 0 or None.
        MissingExtraError: enc_key is given, and cryptography is not installed.

    Attributes:
        append_dict: what append_info adds to the parameters, by name; None without it.
        others: the arguments.
    """

    def __init__(
        self,
        save_checkpoint_steps: int | None = 1,
        save_checkpoint_seconds: int | None = 0,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_per_n_minutes: int | None = 0,
        integrated_save: bool = True,
        async_save: bool | str = False,
        saved_network: object = None,
        append_info: list[Any] | None = None,
        enc_key: bytes | None = None,
        enc_mode: str = GCM,
        exception_save: bool = False,
        *,
        format: str = "safetensors",
    ) -> None:
        given = {
            "save_checkpoint_steps": save_checkpoint_steps,
            "save_checkpoint_seconds": save_checkpoint_seconds,
            "keep_checkpoint_max": keep_checkpoint_max,
            "keep_checkpoint_per_n_minutes": keep_checkpoint_per_n_minutes,
        }
        checked = [check_int(field, value, low=0, optional=True) for field, value in given.items()]
        save_checkpoint_steps, save_checkpoint_seconds = checked[:2]
        keep_checkpoint_max, keep_checkpoint_per_n_minutes = checked[2:]
        if not any(checked):
            raise InvalidValueError(f"{', '.join(given)} must not all be 0 or None; give one of them")
        check_type("integrated_save", integrated_save, bool)
        check_type("async_save", async_save, (bool, str))
        if isinstance(async_save, str):
            check_choice("async_save", async_save, ("process", "thread"))
        if saved_network is not None:
            try:
                # Tried here, so that what is no model is refused now and not when it is first saved.
                dict(framework_of(saved_network).tensors(saved_network))
            except InvalidTypeError as error:
                raise InvalidTypeError(f"saved_network: {error}") from None
        check_type("exception_save", exception_save, bool)
        check_key("enc_key", enc_key, "enc_mode", enc_mode)
        check_choice("format", format, FORMATS)
        if format == "dcp" and enc_key is not None:
            raise InvalidValueError(
                "enc_key cannot be used with format='dcp', whose shards are not encrypted; leave one out"
            )
        self.exception_save = exception_save
        self.save_checkpoint_steps = save_checkpoint_steps
        # A number of steps has priority over seconds, and a number of files over minutes.
        self.save_checkpoint_seconds = None if save_checkpoint_steps else save_checkpoint_seconds
        self.keep_checkpoint_max = keep_checkpoint_max
        self.keep_checkpoint_per_n_minutes = None if keep_checkpoint_max else keep_checkpoint_per_n_minutes
        if not keep_checkpoint_max and not keep_checkpoint_per_n_minutes:
            self.keep_checkpoint_max = 1
        self.integrated_save, self.async_save = integrated_save, async_save
        self.saved_network = saved_network
        self.append_dict = _append_dict(append_info)
        self.enc_key, self.enc_mode = enc_key, enc_mode
        self.format = format

    def get_checkpoint_policy(self) -> dict[str, Any]:
        """The four numbers that say what is saved and kept, and saved_network, by name."""
        return {
            "save_checkpoint_steps": self.save_checkpoint_steps,
            "save_checkpoint_seconds": self.save_checkpoint_seconds,
            "keep_checkpoint_max": self.keep_checkpoint_max,
            "keep_checkpoint_per_n_minutes": self.keep_checkpoint_per_n_minutes,
            "saved_network": self.saved_network,
        }


def _append_dict(append_info: object) -> dict[str, Any] | None:
    check_type("append_info", append_info, list, optional=True)
    if not isinstance(append_info, list) or not append_info:
        return None
    names: dict[str, Any] = {}
    dicts = [element for element in append_info if isinstance(element, Mapping)]
    for element in append_info:
        check_type("an element of append_info", element, (str, dict))
        if isinstance(element, str):
            check_choice("a name in append_info", element, INFO)
            names[element] = 0
    if len(dicts) > 1:
        raise InvalidTypeError(f"append_info must hold at most one dict, got {len(dicts)}; merge them")
    for key, value in (dicts[0] if dicts else {}).items():
        check_type("a name in append_info's dict", key, str)
        if all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict")):
            # The state is read here only to refuse one that cannot be saved before the training.
            state_entries(f"{key!r} in append_info", value.state_dict())
        elif not isinstance(value, int | float | bool | str):
            if not framework_of(value).is_tensor(value):
                raise InvalidTypeError(
                    f"{key!r} in append_info must be int, float, bool, str, a tensor, or an object "
                    "with state_dict and load_state_dict, got "
                    f"{type(value).__name__}"
                )
            spec_of(f"{key!r} in append_info", value)
        names[key] = value
    return names
