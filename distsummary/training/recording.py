"""Recording: the methods by which a Run takes values of every kind and keeps them until their step ends."""

import abc
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import get_ident
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import numpy as np

from distsummary.base.checks import check_choice, check_int, check_type
from distsummary.base.failures import NONE, Failures
from distsummary.base.guard import Guard, guarded, guarded_log
from distsummary.base.health import Health
from distsummary.diagnosis.verdict import INFO, LEVELS, MESSAGE, level_of
from distsummary.errors import ClosedError, DistSummaryError, InvalidTypeError, InvalidValueError, UsageError
from distsummary.format.records import GIVEN_PLUGINS, LINEAGE_PLUGINS, RECORDED_AS, Value
from distsummary.training.callbacks import CallbackList, CallbackParams
from distsummary.training.finite import ON_NAN, WARN, Checked, FiniteCheck
from distsummary.training.forks import FORKED, Forks, register_for_forks
from distsummary.training.given import Given
from distsummary.training.recorder import NOT_RECORDED, NoRecorder, Recorder, counted
from distsummary.training.step_context import StepContext
from distsummary.training.timing.phases import RECORDING
from distsummary.training.values import Scalar, check_named, check_tag, scalar

logger = guarded_log(__name__)

P = ParamSpec("P")
R = TypeVar("R")

WHOLE_ARRAY = "log its mean, or record the whole array by run.image, run.histogram or run.tensor"
IN_THE_PAST = "run.log(..., step=n): values of steps before run.step are dropped"
# If there are more names, all are forgotten and checked again, so that memory stays bounded.
MAX_KNOWN_NAMES = 1 << 14
SHOWN_BY_TAG = ("scalar", "histogram", "image", "text", "audio", "pr_curve")  # plugins that TensorBoard has
SEVERAL = "several"
MAX_SHOWN = 40  # characters of a name in a message
MAX_TITLE, MAX_TEXT = 200, 10_000  # characters of an alert
MANY = 100  # values of one call of `log` whose time counts as that of recording
MAX_NESTING = 8  # levels of nested dicts in `log`
NAMELESS = ("graph", *LINEAGE_PLUGINS)
MAX_STEP = 2**63 - 1  # int64 in the files


class Recording(abc.ABC):
    """The base of Run that takes the user's values; Run decides to which step they belong.

    Its attributes are what `log` touches at every step, kept in one object because each look-up counts there.

    A value that cannot be recorded is dropped, counted in `health()` and named once in the log. The methods
    raise only if an argument is misused: InvalidTypeError for a name that is not text, InvalidValueError for
    an unknown plugin or for `step` inside of `steps`, ClosedError if the run is closed.

    Args:
        rank: for messages.
        callbacks: those of the run, some of which may have recorders.
        params: the loop's parameters, in which callbacks see the logged loss.
        on_nan: see FiniteCheck. strict: whether values that cannot be recorded raise.
    """

    def __init__(
        self,
        *,
        rank: int,
        callbacks: CallbackList,
        params: CallbackParams,
        on_nan: str = WARN,
        strict: bool = False,
    ) -> None:
        check_choice("on_nan", on_nan, ON_NAN)
        check_type("strict", strict, bool)
        self._callbacks, self._params, self._strict = callbacks, params, strict
        self._given = Given()
        self._known_names: set[str] = set()  # names of numbers that have been checked
        self._kinds: dict[str, str] = {}  # name -> plugin, or SEVERAL
        self._own_failures = Failures(Health(), logger)  # while no recorder is there to count
        own = self._own_failures
        # What others hold of the run, threads among them, keeps no reference to it.
        self._counted: Callable[[], Failures] = weakly(self._failures, lambda: own)
        self._own_guard = Guard(self._counted)
        self._finite = FiniteCheck(on_nan, rank, self._counted)
        self._step_context = StepContext(
            finite_check=self._finite,
            report_finding=weakly(self._report_finding, lambda *finding: None),
        )
        self._is_closed = self._is_stepped = self._is_forked = False
        self._has_alerts = False
        self._inherited_dir: Path | None = None  # set in a forked child
        self._forks = Forks()
        register_for_forks(self)
        self._thread = get_ident()

    @property
    @abc.abstractmethod
    def step(self) -> int:
        """The step of the values that are given now."""

    @abc.abstractmethod
    def _require_open(self) -> None:
        """Raise ClosedError if the run is closed."""

    @abc.abstractmethod
    def _leave(self, error: BaseException | None) -> None:
        """Exit the callbacks; the run is over."""

    @abc.abstractmethod
    def _go_to(self, step: int, *, has_values: bool) -> bool:
        """Begin `step`, if it has values and has not begun yet; returns False if it is in the past.

        Raises InvalidValueError if an iterator of `steps` counts the steps.
        """

    @abc.abstractmethod
    def _go_on(self) -> None:
        """Begin the step after the current one, because a name was given again."""

    @abc.abstractmethod
    def _await_begin(self) -> None:
        """Values were given outside of steps: see to it that a signal which ends the process loses none."""

    @property
    def dir(self) -> Path:
        """The directory of the run; raises InvalidValueError if no callback records the run."""
        if self._inherited_dir is not None:
            return self._inherited_dir
        return self._recorded_by("directory").dir

    @property
    def name(self) -> str:
        """What the run is called: `ds.init(name=)`, else the name that run.json has, else its directory's."""
        return self._recorded_by("name").identity().name

    @property
    def id(self) -> str:
        """16 hexadecimal digits, the same on all ranks and in copies of the run.

        Raises InvalidValueError before the first step of a new run: that gives it its id.
        """
        if found := self._recorded_by("id").identity().id:
            return found
        raise InvalidValueError("the run gets its id with its first step; run.dir is its own from the start")

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings as they are recorded, nested, for reading: what is like a secret is replaced."""
        return MappingProxyType(dict(self._recorded_by("config").identity().config))

    @property
    def url(self) -> str:
        """The directory of the run as a file:// URL; `distsummary serve` shows it in a browser."""
        return self._recorded_by("URL").identity().home.as_uri()

    @property
    def summary(self) -> Mapping[str, float]:
        """The newest number of each tag that this rank has recorded, by name, for reading.

        The numbers of a step are in it when the step has ended. Waits for those that are still on a device.
        """
        found = self._own_guard.call("the summary", self._recorded_by("summary").summary)
        return MappingProxyType(found or {})

    def _recorded_by(self, what: str) -> Recorder:
        recorders = self._recorders()
        if not recorders:
            raise InvalidValueError(f"the run has no {what}: {NOT_RECORDED}")
        return recorders[0]

    @property
    def is_closed(self) -> bool:
        """Whether the run is over."""
        return self._is_closed

    def health(self) -> Health:
        """What was written, dropped and refused so far, by this rank and the processes forked from it."""
        self._count_forked()
        recorders = self._recorders()
        found = self._own_guard.call("health", recorders[0].health) if recorders else None
        return (found or Health()).plus(self._own_failures.health)

    def log(
        self,
        values: Mapping[str, object] | None = None,
        /,
        *others: object,
        step: int | None = None,
        commit: None = None,
        **named: object,
    ) -> None:
        """Record scalars by name at the current step or, between two steps, at the last step.

        If neither `steps` nor `next_step` was ever called, logging a name again begins the next step;
        otherwise the new value replaces the old one. Other threads may call `log`: their values go to the
        current step. At steps that `log` itself begins, data read from the model are not recorded.

        Anything but a number is dropped, counted in `health()` and named once in the log (with `strict`, it
        raises InvalidTypeError or InvalidValueError, and nothing of the call is recorded).

        Args:
            values: scalars by name, for names that are not identifiers, such as {"train/accuracy": 0.9}. A
                dict among them is flattened: {"train": {"loss": 1.0}} is recorded as "train/loss".
            step: the step of these values; allowed only outside of `steps`. Values of a step before
                `run.step` are dropped and counted. Ignored in other threads.
            others: none: names and numbers are no arguments one after the other.
            commit: must be left out; values are recorded when their step ends.
            named: ints, floats, or tensors or arrays of one element. `log` does not wait for device tensors.
                Files hold float32: a finite number beyond its range is recorded as infinite, and counted.

        Raises:
            InvalidTypeError: a name is not text. ClosedError: the run is closed.
                InvalidValueError: `step` is given inside `steps`; `commit` is given.
        """
        if others:
            raise InvalidTypeError(
                f"run.log takes numbers by name, got {values!r} and {others[0]!r} one after the other; write "
                'run.log(loss=1.0) or run.log({"loss": 1.0})'
            )
        is_elsewhere = get_ident() != self._thread
        if self._is_closed and self._is_late(is_elsewhere):
            return
        given: dict[str, Any] = named
        if values is not None:
            given = {**check_named("run.log", values), **named}
        begun_s = perf_counter() if len(given) >= MANY else 0.0
        if is_elsewhere and self._is_forked:
            self._drop_forked({"scalar": len(given)})
            return
        if commit is not None:
            raise InvalidValueError(
                f"commit must be left out, got {commit!r}; a step's values are recorded when it ends, and "
                "may be logged by several calls"
            )
        new: dict[str, Scalar] | None = given
        known = self._known_names
        # Most calls give only floats under known names, which need no check; any other value has all checked.
        for name, value in given.items():
            if type(value) is not float or name not in known:
                new = self._checked(given)
                break
        # Values that could not be looked at are dropped, but their step begins.
        names, new = given if new is None else new, new or {}
        held = self._given
        if is_elsewhere:
            held.add_elsewhere(new, {})
            return
        if held.has_more:
            held.gather()
        # In a loop that counts no steps itself, this call may begin the next step.
        if step is not None or not self._is_stepped:
            if not self._begin_step_of(step, not held.numbers.keys().isdisjoint(names), {"scalar": len(new)}):
                return
            # The step may have begun only now, after these numbers were made.
            for number in new.values():
                if isinstance(number, Checked):
                    number.step = self.step
        if "loss" in new:
            self._params["net_outputs"] = given["loss"]
        # This comes last: if anything raises before, all values of the call are dropped.
        if held.numbers:
            held.numbers |= new
        else:
            held.numbers = new
        if begun_s:
            for recorder in self._recorders():
                recorder.overhead.spent_s += perf_counter() - begun_s

    def histogram(self, name: str, value: object, step: int | None = None) -> None:
        """Record the histogram of an array; see `add_value`."""
        self._add("histogram", name, value, step)

    def image(self, name: str, value: object, step: int | None = None) -> None:
        """Record a picture: (H, W), (H, W, C), (C, H, W) or a batch of them; see `add_value`."""
        self._add("image", name, value, step)

    def tensor(self, name: str, value: object, step: int | None = None) -> None:
        """Record an array as it is; see `add_value`."""
        self._add("tensor", name, value, step)

    def text(self, name: str, value: object, step: int | None = None) -> None:
        """Record text, which TensorBoard shows as Markdown; see `add_value`."""
        self._add("text", name, value, step)

    def figure(self, name: str, value: object, step: int | None = None) -> None:
        """Record a matplotlib figure as an image; it is drawn now, and not closed. See `add_value`."""
        self._add("figure", name, value, step)

    def table(self, name: str, rows: object, step: int | None = None) -> None:
        """Record a list of dicts, column -> value, as a table; see `add_value`."""
        self._add("table", name, rows, step)

    def video(self, name: str, frames: object, step: int | None = None, *, fps: float = 4.0) -> None:
        """Record frames (T, C, H, W), uint8 or in [0, 1], as an animated GIF, which is made now."""
        self._add("video", name, (frames, fps), step)

    def confusion_matrix(
        self, name: str, counts: object, step: int | None = None, *, classes: Sequence[str] | None = None
    ) -> None:
        """Record counts (C, C), actual class by predicted class, as a picture; see `add_value`."""
        self._add("confusion_matrix", name, (counts, classes), step)

    def audio(self, name: str, samples: object, rate: int, step: int | None = None) -> None:
        """Record a sound (N,) or (C, N), int16 or in [-1, 1], of `rate` samples a second; see `add_value`."""
        self._add("audio", name, (samples, rate), step)

    def pr_curve(
        self,
        name: str,
        labels: object,
        predictions: object,
        step: int | None = None,
        *,
        thresholds: int = 127,
    ) -> None:
        """Record precision and recall at thresholds in [0, 1]; see `add_value`.

        Args:
            labels: (N,), whether each sample is positive: bool, or 0 and 1.
            predictions: (N,), how probable that is said to be, in [0, 1].
            thresholds: how many, 2 to 10,000, of equal distance.
        """
        self._add("pr_curve", name, (labels, predictions, thresholds), step)

    def alert(self, title: str, text: str = "", *, level: str = INFO) -> None:
        """Report something about the run at the current step: in alerts.jsonl, and as its level says.

        An alert of the level "warning" or "error" is printed, passed to `on_alert` and shown as a finding of
        the run (an error also makes `distsummary status` exit with 1); see `ds.Diagnose`. Any rank may report
        one. A second one with the same title and text at the same step is the same alert.

        Args:
            title: up to 200 characters. text: more about it, up to 10,000 characters.
            level: "info", "warning" or "error".

        Raises:
            InvalidTypeError, InvalidValueError: a wrong argument. ClosedError: the run is closed.
        """
        is_elsewhere = get_ident() != self._thread
        if self._is_closed and self._is_late(is_elsewhere):
            return
        for name, value, least, most in (("title", title, 1, MAX_TITLE), ("text", text, 0, MAX_TEXT)):
            check_type(name, value, str)
            if not least <= len(value) <= most:
                raise InvalidValueError(
                    f"{name} must have {least} to {most:,} characters, got {len(value):,}; shorten it"
                )
        check_choice("level", level, LEVELS)
        if is_elsewhere and self._is_forked:
            self._drop_forked({"alert": 1})
            return
        self._report(MESSAGE, f"{title}: {text}" if text else title, level)
        if not self._recorders():
            self._count(NOT_RECORDED, {"alert": 1})

    def define(
        self, name: str, *, across: str | None = None, best: str | None = None, unit: str | None = None
    ) -> None:
        """Say what the values of a tag mean; what rank 0 says is kept in `define` of run.json.

        Example:
            >>> run.define("tokens", across="sum", unit="tokens/s")
            >>> run.define("eval/*", best="max")
            >>> run.define("loss", across="mean:samples", best="min")

        Args:
            name: a tag, or a glob such as "eval/*". A tag counts before globs, and of several globs the one
                defined last; for each of the other arguments apart.
            across: what the value of the merged run is: "mean" (the default), "sum", "min" or "max" over the
                ranks that recorded the tag at the step, or "mean:TAG": the mean, weighted by what each of
                these ranks recorded as TAG at this step. Say it before the first value: steps that are merged
                already are merged again only when the training ends.
            best: "min" or "max", the better direction. unit: the unit of its axis, up to 40 characters.

        Raises:
            InvalidTypeError, InvalidValueError: a wrong argument. ClosedError: the run is closed.
        """
        from distsummary.format.definitions import check_definition

        defined = check_definition(name, across, best, unit)
        if self._is_closed:
            self._require_open()
        recorders = [] if self._is_forked else self._recorders()
        for recorder in recorders:
            self._own_guard.call("definitions", recorder.define, defined)
        if not recorders:
            self._count(NOT_RECORDED)

    def _report_finding(self, cause: str, evidence: str) -> None:
        """Report what a callback has found; any thread may call it."""
        self._report(cause, evidence, level_of(cause))

    def _report(self, cause: str, evidence: str, level: str) -> None:
        for recorder in self._recorders():
            self._has_alerts = True
            if not self._own_guard.done("alerts", recorder.alert, cause, self.step, evidence, level):
                self._drop({"alert": 1})

    def add_value(self, plugin: str, name: str | None, value: object) -> None:
        """Record a value of any plugin, as SummaryRecord does; "scalar" is `log`.

        The value is copied at once. It follows the rules of `log`: it belongs to the current step, replaces
        a value of the same plugin and name, and is recorded in one event with the step's other values. What
        cannot be recorded is dropped, counted and named once in the log (with `strict`, it raises).

        Args:
            plugin: "scalar", "tensor", "histogram", "image", "text", "table", "figure", "video",
                "confusion_matrix", "audio", "pr_curve", "graph", "landscape", or a plugin of lineage, which
                takes its protobuf message.
            name: the tag; ignored for graphs and lineage.
            value: what the plugin holds; see `checked_values.checked_value`. For arrays: a tensor or array of
                torch, NumPy or JAX, or numbers in (nested) lists.

        Raises:
            InvalidValueError: the plugin is unknown. InvalidTypeError: the name is not text.
            ClosedError: the run is closed.
        """
        check_type("plugin", plugin, str)
        kind = plugin.lower()
        if kind not in GIVEN_PLUGINS:
            raise InvalidValueError(f"plugin must be one of {list(GIVEN_PLUGINS)}, got {plugin!r}")
        if kind == "scalar":
            check_type("name", name, str)
            self.log({str(name): value})
        else:
            self._add(kind, name, value, None)

    def _add(self, plugin: str, name: str | None, value: object, step: int | None) -> None:
        """Keep a checked copy of a value until its step ends."""
        is_elsewhere = get_ident() != self._thread
        if self._is_closed and self._is_late(is_elsewhere):
            return
        check_type(f"the name of the {plugin}", name, str, optional=plugin in NAMELESS)
        if is_elsewhere and self._is_forked:
            self._drop_forked({RECORDED_AS.get(plugin, plugin): 1})
            return
        new = self._snapshot(plugin, name, value)
        if new is None:
            return
        self._note_kind(new.plugin, new.tag)
        held, key = self._given, (new.plugin, new.tag)
        if is_elsewhere:
            held.add_elsewhere({}, {key: new})
            return
        if held.has_more:
            held.gather()
        if self._begin_step_of(step, key in held.values, {new.plugin: 1}):
            held.values[key] = new

    def _note_kind(self, plugin: str, tag: str) -> None:
        """Warn, once, if a name is used for values of two kinds, because TensorBoard then shows neither."""
        if plugin not in SHOWN_BY_TAG:
            return
        if len(self._kinds) > MAX_KNOWN_NAMES:
            self._kinds.clear()
        kind = self._kinds.setdefault(tag, plugin)
        if kind not in (plugin, SEVERAL):
            self._kinds[tag] = SEVERAL
            self._count(
                f"{tag!r} names values of the kinds {kind} and {plugin}: both are recorded, but TensorBoard "
                "shows neither; give them different names"
            )

    def _begin_step_of(self, step: int | None, is_repeated: bool, counts: Mapping[str, int]) -> bool:
        """Begin the step of new values if it has not begun yet.

        Args:
            step: the step that the user named, if any.
            is_repeated: whether a value of the same name was given in the current step.
            counts: the number of values by plugin, which are counted as dropped if the step is in the past.

        Returns False if the values are dropped.
        """
        if step is not None:
            step = check_int("step", step, low=0, high=MAX_STEP)
            if not self._go_to(step, has_values=any(counts.values())):
                if self._strict:
                    raise InvalidValueError(
                        f"step must not be before the last step, which is {self.step}, got {step}; give the "
                        "values of a step before those of the next one"
                    )
                self._count(IN_THE_PAST, counts)
                return False
        elif is_repeated and not self._is_stepped:
            self._go_on()
        # What operators inside of the network have tapped so far belongs to the step of this value.
        if not self._is_stepped:
            self._await_begin()
            for recorder in self._recorders():
                self._own_guard.call("operators", recorder.gather)
        return True

    # Type checkers must still find names that there are not.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            # Called for a name that Python has not found.
            from distsummary.base.names_elsewhere import missing_attribute

            raise missing_attribute(self, name)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a run cannot be copied or sent to another process; give it values in the process that made it, "
            "or make one in each process: ds.init(run_dir, rank=, world_size=)"
        )

    def after_fork(self) -> None:
        """In a forked child: from now on, only count the values that it gives."""
        # This comes first: whatever fails below, nothing is recorded here.
        self._is_forked = True
        # No thread has this id: `log` checks for a fork only in threads other than the loop's.
        self._thread = 0
        recorders = self._recorders()
        self._inherited_dir = recorders[0].dir if recorders else None
        # The parent records its own values, and a thread that is not in the child may hold the lock.
        self._given = Given()
        self._own_failures = Failures(Health(), logger)

    def _begin_stepping(self) -> None:
        """From now on, the loop counts the steps, and the calling thread is the thread of the loop."""
        self._is_stepped = True
        if not self._is_forked:
            self._thread = get_ident()

    def _drop_forked(self, values: Mapping[str, int]) -> None:
        """In a forked child: count values by plugin as dropped; raises ClosedError if the run is strict."""
        self._own_guard.call("forks", self._forks.drop, values)
        if self._strict:
            raise ClosedError(FORKED)

    @guarded()
    def _count_forked(self) -> None:
        """Count what forked children have dropped; they have logged it already."""
        dropped = Counter() if self._is_forked else self._forks.new()
        if dropped:
            self._failures().health.fail(FORKED, dropped.total())
            self._failures().drop(dropped)

    def _is_late(self, is_elsewhere: bool) -> bool:
        """Count a value that another thread gives to a closed run; the loop's thread gets ClosedError."""
        if not is_elsewhere:
            self._require_open()
        self._count("values that another thread logged after the run was closed are dropped")
        return True

    def _checked(self, given: Mapping[str, object]) -> dict[str, Scalar] | None:
        """The numbers of a call of `log`, whose names are remembered; None if they could not be converted."""
        new = self._numbers(given)
        if self._strict and not self._callbacks.callbacks:
            raise InvalidValueError(NOT_RECORDED)
        known = self._known_names
        if len(known) > MAX_KNOWN_NAMES:
            known.clear()
        for tag in (new or {}).keys() - known:
            self._note_kind("scalar", tag)
        known.update(new or {})
        return new

    def _numbers(self, given: Mapping[str, object]) -> dict[str, Scalar] | None:
        """Convert a mapping of names to values; None if that failed: then all are counted as dropped."""
        numbers = self._converted(given)
        if numbers is None:
            self._drop({"scalar": len(given)})
        return numbers

    @guarded(DistSummaryError)
    def _converted(self, given: Mapping[str, object]) -> dict[str, Scalar]:
        """The numbers of a mapping; what is not a number is refused."""
        numbers: dict[str, Scalar] = {}
        known = self._known_names
        for name, value in _flat(given):
            try:
                if name not in known:
                    check_tag(name)
                if type(value) is float:
                    numbers[name] = value
                    continue
                if isinstance(value, str):
                    raise InvalidTypeError(
                        f"{name!r} must be a real number, got str; record text by run.text"
                    )
                number = scalar(repr(name), _array_of(repr(name), value), instead=WHOLE_ARRAY)
            except Exception as error:
                self._refuse("scalar", name, error)
                continue
            # A number that is still on its device is checked for NaN when it has arrived.
            if not isinstance(number, float):
                number = Checked(number, self._finite.check, self.step, name)
            numbers[name] = number
        return numbers

    @guarded(DistSummaryError)
    def _snapshot(self, plugin: str, name: str | None, value: object) -> Value | None:
        """A checked copy of a value; None if it is refused."""
        recorders = self._recorders()
        if not recorders:
            if self._strict:
                raise InvalidValueError(NOT_RECORDED)
            self._failures().count(NOT_RECORDED, dropped={plugin: 1})
            return None
        try:
            with self._step_context.within(RECORDING):
                return recorders[0].snapshot(plugin, name, value)
        except Exception as error:
            self._refuse(plugin, name, error)
            return None

    def _refuse(self, plugin: str, name: str | None, error: Exception) -> None:
        """Count a value that cannot be recorded; if the run is strict, raise an error of distsummary."""
        reason = str(error)
        # The errors of distsummary name the value themselves.
        if not isinstance(error, DistSummaryError):
            shown = name if name is None else name[:MAX_SHOWN]
            reason = f"the {plugin} {shown!r}: {type(error).__name__}: {error}"
            if self._strict:
                raise InvalidValueError(reason) from error
        if self._strict:
            raise error
        self._failures().count(f"not recorded: {reason}", dropped={plugin: 1})

    def _failures(self) -> Failures:
        """Counts the values that the run drops: the recorder's while the run is open, then the run's own."""
        recorders = [] if self._is_closed else self._recorders()
        return recorders[0].failures if recorders else self._own_failures

    def _recorders(self) -> list[Recorder]:
        """The recorders of the callbacks, usually one or none."""
        found = (callback.recorder for callback in self._callbacks.callbacks)
        return [recorder for recorder in found if recorder is not None]

    def _recorder_of_steps(self) -> Recorder | NoRecorder:
        """The recorder that may take plain steps: that of the only callback with hooks for steps."""
        at_steps = self._callbacks.at_steps
        # A step may go without hooks if there are no callbacks, or if the only one with hooks for it records.
        if not self._callbacks.callbacks:
            return NoRecorder(math.inf, self._own_failures)
        recorder = at_steps[0].recorder if len(at_steps) == 1 else None
        return NoRecorder(-math.inf, self._own_failures) if recorder is None else recorder

    @guarded()
    def _count(self, reason: str, dropped: Mapping[str, int] = NONE) -> None:
        """Count a failure, and the values that it costs, by plugin."""
        self._failures().count(reason, dropped=dropped)

    @guarded()
    def _drop(self, values: Mapping[str, int]) -> None:
        """Count values by plugin that a failure costs which was counted."""
        self._failures().drop(values)

    def _record_given(self) -> None:
        """Record the values given since the last step ended, at that step."""
        logged, values = self._given.take()
        for recorder in self._recorders():
            self._record(recorder, self.step, logged, values)
        self._check_finite(logged)

    def _record(
        self, recorder: Recorder | NoRecorder, step: int, logged: dict[str, Scalar], values: Sequence[Value]
    ) -> None:
        """Have the values of a step recorded; leaves the run with an exception that passes."""
        try:
            if not self._own_guard.done("recording", recorder.record, step, logged, values):
                self._drop(counted(logged, values))
        except BaseException as error:
            self._leave(error)
            raise

    def _check_finite(self, logged: Mapping[str, Scalar]) -> None:
        """Look for NaN among numbers that were recorded; leaves the run if they have to stop the training."""
        try:
            self._own_guard.call("the search for NaN", self._finite.look, self.step, logged)
        except BaseException as error:
            self._leave(error)
            raise


def weakly(method: Callable[P, R], otherwise: Callable[P, R]) -> Callable[P, R]:
    """A function that calls a bound method without keeping its object; once that is gone, `otherwise`."""
    reference = weakref.WeakMethod(method)

    def call(*args: P.args, **named: P.kwargs) -> R:
        return (reference() or otherwise)(*args, **named)

    return call


def _flat(given: Mapping[Any, object], prefix: str = "", level: int = 1) -> Iterator[tuple[str, object]]:
    """The items of a mapping; those of a mapping inside of it are named <outer>/<inner>.

    Raises InvalidTypeError for a name that is not text.
    """
    for name, value in given.items():
        if not isinstance(name, str):
            where = f" inside of {prefix[:-1]!r}" if prefix else ""
            check_type(f"the name of a value{where}", name, str)
        if isinstance(value, Mapping) and level < MAX_NESTING:
            yield from _flat(value, f"{prefix}{name}/", level + 1)
        else:
            yield (f"{prefix}{name}" if prefix else name), value


def _array_of(field: str, value: object) -> object:
    """Numbers in (nested) lists as an array; anything else as it is.

    Raises InvalidValueError for a list of lists whose lengths differ.
    """
    if not isinstance(value, (list, tuple)):
        return value
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InvalidValueError(
            f"{field} must be a list of numbers, or of lists of the same length, got {len(value)} items that "
            "do not form an array; pad them"
        ) from error
