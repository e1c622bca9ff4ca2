"""What a test changed in its process and has not undone: named, so that the test fails, and then undone.

Left out is what libraries set for good when they are first used, such as torch's handler of SIGCHLD, and
pytest-timeout's SIGALRM.
"""

import fcntl
import gc
import logging
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2
LIMITS = resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_AS
DESCRIPTORS = "files open for writing"
LOGGERS = "", "distsummary"
# pytest's, and what libraries set when they are first used
FREE_VARIABLES = {
    "PYTEST_CURRENT_TEST", "RAY_CLIENT_MODE", "TORCHINDUCTOR_CACHE_DIR", "_RJEM_MALLOC_CONF",
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
}  # fmt: skip
STEP_HOOKS = "distsummary.frameworks.torch_step_hooks"
TORCH = "torch", "torch.nn.modules.module", "torch.optim.optimizer", "torch.distributed"
# module and class: how to close an object that a test left open
CLOSERS: dict[tuple[str, str], Callable[[Any], object]] = {
    ("distsummary.training.run", "Run"): lambda run: run.__exit__(OSError, OSError("left open"), None),
    ("distsummary.collect.record", "SummaryRecord"): lambda record: record.close(),
    ("distsummary.events.async_writer", "AsyncWriter"): lambda writer: writer.close(),
    ("distsummary.collect.background", "Background"): lambda background: background.close(),
}

Values = Mapping[str, Any]


class State(NamedTuple):
    """A part of the process: `read` returns its values by name, `write` sets what `read` returned before."""

    name: str
    read: Callable[[], Values]
    write: Callable[[Values], object]


def _set_variables(before: Values) -> None:
    for name in os.environ.keys() - before.keys() - FREE_VARIABLES:
        del os.environ[name]
    os.environ.update(before)


def _variables() -> Values:
    return {name: value for name, value in os.environ.items() if name not in FREE_VARIABLES}


def _set_handlers(before: Values) -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is not before[number.name]:
            signal.signal(number, before[number.name])


def _loggers() -> Values:
    found: dict[str, Any] = {"logging.disable": logging.root.manager.disable}
    for name in LOGGERS:
        one = logging.getLogger(name)
        found[one.name] = one.level, one.propagate, one.disabled, [*one.handlers], [*one.filters]
    return found


def _set_loggers(before: Values) -> None:
    logging.disable(before["logging.disable"])
    for name in LOGGERS:
        one = logging.getLogger(name)
        level, one.propagate, one.disabled, one.handlers, one.filters = before[one.name]
        one.setLevel(level)


def _collector() -> Values:
    ours = [one for one in gc.callbacks if (getattr(one, "__module__", None) or "").startswith("distsummary")]
    return {"enabled": gc.isenabled(), "threshold": gc.get_threshold(), "debug": gc.get_debug(), "ours": ours}


def _set_collector(before: Values) -> None:
    (gc.enable if before["enabled"] else gc.disable)()
    gc.set_threshold(*before["threshold"])
    gc.set_debug(before["debug"])
    for one in _collector()["ours"]:
        if one not in before["ours"]:
            gc.callbacks.remove(one)


def _interpreter() -> Values:
    return {
        "path": [place for place in sys.path if "site-packages" not in place],  # a part of Ray adds itself
        "argv": [*sys.argv],
        "trace": sys.gettrace(),
        "profile": sys.getprofile(),
        "_exit": os._exit,
        "switch interval": sys.getswitchinterval(),
    }


def _set_interpreter(before: Values) -> None:
    sys.path[:] = [place for place in sys.path if "site-packages" in place or place in before["path"]]
    sys.argv[:], os._exit = before["argv"], before["_exit"]
    sys.settrace(before["trace"])
    sys.setprofile(before["profile"])
    sys.setswitchinterval(before["switch interval"])


def _torch() -> Values:
    modules = [sys.modules.get(name) for name in TORCH]
    if None in modules:  # not imported, or only in part
        return {}
    torch: Any
    torch, of_modules, of_optimizers, distributed = modules
    return {
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "anomalies": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "modes": torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack(),
        "process group": distributed.is_available() and distributed.is_initialized(),
        "hooks of modules": [*of_modules._global_forward_hooks, *of_modules._global_forward_pre_hooks],
        "hooks of optimizers": [*_foreign(of_optimizers)],
        "listeners to optimizers": [*getattr(sys.modules.get(STEP_HOOKS), "_listeners", ())],
    }  # fmt: skip


def _set_torch(before: Values) -> None:
    torch: Any
    torch, of_modules, of_optimizers, distributed = (sys.modules[name] for name in TORCH)
    setters = {
        "default dtype": torch.set_default_dtype,
        "threads": torch.set_num_threads,
        "gradients": torch.set_grad_enabled,
        "anomalies": torch.set_anomaly_enabled,
        "deterministic": torch.use_deterministic_algorithms,
        "precision": torch.set_float32_matmul_precision,
        "autocast": lambda is_on: torch.set_autocast_enabled("cpu", is_on),
        "process group": lambda was_there: was_there or distributed.destroy_process_group(),
    }
    now = _torch()
    for name, write in setters.items():
        if now[name] != before[name]:
            write(before[name])
    for hooks in (of_modules._global_forward_hooks, of_modules._global_forward_pre_hooks):
        _keep(hooks, before["hooks of modules"])
    for hooks in (of_optimizers._global_optimizer_pre_hooks, of_optimizers._global_optimizer_post_hooks):
        _keep(hooks, [*before["hooks of optimizers"], *(hooks.keys() - {*_foreign(of_optimizers)})])
    if (listening := sys.modules.get(STEP_HOOKS)) is not None:
        _keep(listening._listeners, before["listeners to optimizers"])
        listening._note()


def _foreign(of_optimizers: Any) -> Iterator[int]:
    """The hooks of all optimizers that are not ours, which stay for the whole process."""
    for hooks in (of_optimizers._global_optimizer_pre_hooks, of_optimizers._global_optimizer_post_hooks):
        yield from (key for key, hook in hooks.items() if getattr(hook, "__module__", "") != STEP_HOOKS)


def _keep(hooks: Any, names: list[Any]) -> None:
    for name in [*hooks]:
        if name not in names:
            del hooks[name]


def _set_limits(before: Values) -> None:
    for one in LIMITS:
        resource.setrlimit(one, before[str(one)])


def _recording() -> Values:
    """The runs that are open, and those who listen to operators."""
    operators: Any = sys.modules.get("distsummary.collect.values.operators")
    forks: Any = sys.modules.get("distsummary.training.forks")
    living = [] if forks is None else forks.forkables()
    return {
        "open runs": [one for one in living if not getattr(one, "_is_closed", True)],
        "listeners to operators": [] if operators is None else operators.listeners(),
    }


def _stop_recording(before: Values) -> None:
    for one in _recording()["listeners to operators"]:
        if one not in before["listeners to operators"]:
            sys.modules["distsummary.collect.values.operators"].stop_listening(one)


def _descriptors() -> Values:
    own = os.open("/proc/self/fd", os.O_RDONLY)
    os.close(own)
    return dict.fromkeys(name for name in os.listdir("/proc/self/fd") if name != str(own))  # listed by `own`


def _file(descriptor: str) -> str:
    """The path, if it is a file in a directory of the tests that is open for writing; else empty.

    What is open for reading is often mapped, and garbage that pytest still refers to with the logged errors.
    """
    with suppress(OSError):
        if fcntl.fcntl(int(descriptor), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            return ""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        places = tempfile.gettempdir(), "/pytest-of-", "/dev/shm/unit-"
        if any(place in path for place in places) and not path.endswith(" (deleted)"):
            return path
    return ""


STATES = (
    State("runs", _recording, _stop_recording),
    State("environment variables", _variables, _set_variables),
    State("the working directory", lambda: {"": os.getcwd()}, lambda before: os.chdir(before[""])),
    State("signal handlers", lambda: {one.name: signal.getsignal(one) for one in SIGNALS}, _set_handlers),
    State("loggers", _loggers, _set_loggers),
    State("the garbage collector", _collector, _set_collector),
    State("the interpreter", _interpreter, _set_interpreter),
    State("NumPy's errors", np.geterr, lambda before: np.seterr(**before)),
    State("torch", _torch, _set_torch),
    State("limits", lambda: {str(one): resource.getrlimit(one) for one in LIMITS}, _set_limits),
    State(DESCRIPTORS, _descriptors, lambda before: None),
)


def read_states() -> list[Values]:
    """The values of all states now."""
    return [state.read() for state in STATES]


def changes(before: list[Values]) -> list[str]:
    """What is not as it was, a line for each state; garbage changes nothing."""
    if _changes(before):
        gc.collect()
    return _changes(before)


def _changes(before: list[Values]) -> list[str]:
    found = []
    for state, old in zip(STATES, before, strict=True):
        new = state.read()
        if new == old or (state.name == "torch" and not old):
            continue
        if state.name == DESCRIPTORS:
            parts = [path for name in sorted(new.keys() - old.keys()) if (path := _file(name))]
        else:
            names = sorted(old.keys() | new.keys())
            both = [(name, old.get(name), new.get(name)) for name in names]
            parts = [f"{name} was {was!r}, is {now!r}" for name, was, now in both if was != now]
        if parts:
            found.append(f"{state.name} left behind by this test: {'; '.join(parts)}")
    return found


def undo(before: list[Values]) -> None:
    """Close what is open, then set all states as they were."""
    objects = gc.get_objects()
    for (module, name), close in CLOSERS.items():
        kind = getattr(sys.modules.get(module), name, None)
        for one in objects if kind is not None else ():
            if issubclass(type(one), kind):
                with suppress(Exception):  # it may be why the test failed
                    close(one)
    for state, old in zip(STATES, before, strict=True):
        if state.read() != old and not (state.name == "torch" and not old):
            state.write(old)
