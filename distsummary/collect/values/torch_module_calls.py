"""Follows the calls of a model's modules in its next forward pass, by hooks that are removed afterwards.

The hooks change nothing: neither arguments, results nor random state. torch.compile never sees them: compiled
modules get none, and while anything is being compiled, the others are removed too, since a compilation that
finds hooks is repeated when they are gone.
"""

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from distsummary.base.guard import ErrorSink, Guard
from distsummary.format.graph import Names
from distsummary.frameworks.torch_hook import Hook
from distsummary.frameworks.torch_modules import wrapped as wrapped_by
from distsummary.frameworks.torch_private import compiled_from, is_compiled_in_place, watch_compilations

# So many calls of a module are followed: a graph with each step of a recurrent cell would be no help.
MAX_CALLS = 16


class ModulePlace(NamedTuple):
    """A module in a model.

    `path`: its name, such as "encoder.layers.0.linear1", empty for the model itself. `scope`: the same as a
    viewer shows it, "encoder/layers.0/linear1": lists of modules are no level of their own. `is_seen`:
    whether its calls may be followed.
    """

    module: nn.Module
    path: str
    scope: str
    is_seen: bool


def places(network: nn.Module) -> Iterator[ModulePlace]:
    """All modules of a model, each once, without DDP and DataParallel around it.

    A compiled module comes before the one that it was made from; both have the same path.
    """
    seen: set[int] = set()

    def walk(module: nn.Module, path: str, scope: str, is_seen: bool) -> Iterator[ModulePlace]:
        if id(module) in seen:
            return
        seen.add(id(module))
        inner = compiled_from(module)
        if inner is not None:
            yield ModulePlace(module, path, scope, is_seen)
            yield from walk(inner, path, scope, False)
            return
        if (wrapped := wrapped_by(module)) is not None:
            yield from walk(wrapped, path, scope, is_seen)
            return
        # A module that module.compile() has compiled is compiled together with its hooks.
        if is_compiled_in_place(module):
            is_seen = False
        # With hooks on it, torch computes such a layer in another way, with other bits.
        if isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer) and not module.training:
            is_seen = False
        yield ModulePlace(module, path, scope, is_seen)
        joint = "." if isinstance(module, nn.ModuleList | nn.ModuleDict) else "/"
        for name, child in module.named_children():
            shown = name.replace("/", "_")
            yield from walk(
                child,
                f"{path}.{name}" if path else name,
                f"{scope}{joint}{shown}" if scope else shown,
                is_seen,
            )

    yield from walk(network, "", "", True)


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A call of a module that has begun.

    Attributes:
        module: the module; of a compiled module, the one that was compiled.
        place: where it is in the model.
        scope: a unique name, as in `ModulePlace`, but made of the calls around it; empty for the model.
        number: 1 for the module's first call.
        is_outermost: whether no other module called it.
        calls: how many calls have begun in it.
        data: what the observer keeps with the call.
    """

    module: nn.Module
    place: ModulePlace
    scope: str
    number: int
    is_outermost: bool
    calls: int = 0
    data: Any = None


class ModuleCalls:
    """Follows the module calls of the model's next forward pass, MAX_CALLS of a module at most.

    Subclasses override `begin` and `end`, and draw a graph of the calls.

    A model whose parts are called one by one (such as a generator and a discriminator) has one pass for each
    part. What repeats a pass, such as a second batch or activation checkpointing, is not followed.

    Args:
        network: the model; hooks are on it until `close`.
        failed: called with an exception that ended the observation, of a subclass too.
    """

    def __init__(self, network: nn.Module, failed: Callable[[Exception], None]) -> None:
        counted = ErrorSink(failed)
        self._guard = Guard(lambda: counted, self.close)
        self._begin_hook = self._guard.wrap("graph", self._began)
        self._end_hook = self._guard.wrap("graph", self._ended)
        self._reinstall = self._guard.wrap("graph", self._install)
        self._suspend = self._guard.wrap("graph", self._suspended)
        self._places = {id(place.module): place for place in places(network)}
        # Module and call; None instead of a call that is not followed, and of those inside.
        self._stack: list[tuple[nn.Module, Call | None]] = []
        self._counted: Counter[int] = Counter()
        self._scopes = Names()
        self._thread = 0
        self._handles: list[Any] = []
        self._is_open = True
        self._was_removed = False  # for a compilation
        self._watch: Callable[[], None] | None = None  # ends the callbacks of compilations
        self._install()
        self.check_compilations()

    def begin(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call begins, in the thread that makes it."""
        raise NotImplementedError

    def end(self, call: Call, output: object) -> None:
        """A call ends; after an exception `output` is None."""
        raise NotImplementedError

    @property
    def is_ready(self) -> bool:
        """Whether a pass has begun, or none will be seen because the model is compiled."""
        return bool(self._counted) or self._was_removed or not any(p.is_seen for p in self._places.values())

    def check_compilations(self) -> None:
        """Register with torch.compile, if it was imported since (it takes a second to import)."""
        compiler = sys.modules.get("torch._dynamo")
        if self._watch is None and self._is_open and compiler is not None:
            # The new hooks are left alone by torch.compile, and still called outside of compiled code.
            self._remove()
            self._install()
            self._watch = watch_compilations(self._suspend, self._reinstall)

    def close(self) -> None:
        """Remove the hooks; a second call does nothing."""
        self._is_open = False
        self._remove()
        self._stack.clear()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch()

    def _install(self, _: object = None) -> None:
        if not self._is_open or self._handles:
            return
        compiler = sys.modules.get("torch._dynamo")
        begin, end = self._begin_hook, self._end_hook
        if compiler is not None:
            begin, end = compiler.disable(begin), compiler.disable(end)
        for place in self._places.values():
            module = place.module
            if place.is_seen:
                # A scripted or otherwise closed module takes no hooks.
                with contextlib.suppress(Exception):
                    self._handles.append(
                        module.register_forward_pre_hook(Hook(None, begin), with_kwargs=True)
                    )
                    self._handles.append(
                        module.register_forward_hook(Hook(None, end), with_kwargs=True, always_call=True)
                    )

    def _suspended(self, _: object) -> None:
        self._was_removed = True
        self._remove()

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _began(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        here = threading.get_ident()
        # Only the first thread is followed: another one would mix its calls with these.
        self._thread = self._thread or here
        place = self._places.get(id(module))
        if not self._is_open or here != self._thread or place is None:
            return
        call = self._call(module, place)
        self._stack.append((module, call))
        if call is not None:
            self.begin(call, args, kwargs)

    def _call(self, module: nn.Module, place: ModulePlace) -> Call | None:
        outer = self._stack[-1][1] if self._stack else None
        counted = self._counted[id(module)]
        # A repeated pass is not followed, nor is a call inside of one that is not followed.
        if (outer is None and (self._stack or counted)) or counted >= MAX_CALLS:
            return None
        self._counted[id(module)] += 1
        inner = compiled_from(module)
        if outer is None:
            scope = place.scope
        else:
            outer.calls += 1
            own = place.scope.removeprefix(f"{outer.place.scope}/")
            scope = "/".join(filter(None, (outer.scope, own)))
        return Call(
            module=module if inner is None else inner,
            place=place,
            scope=self._scopes.unique(scope) if scope else "",
            number=counted + 1,
            is_outermost=outer is None,
        )

    def _ended(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:
        if not self._is_open or threading.get_ident() != self._thread:
            return
        # A call that began before the hooks were there is not on the stack.
        if all(begun is not module for begun, _ in self._stack):
            return
        # Calls inside of this one that an exception ended, without their hooks being called, end with it.
        while True:
            begun, call = self._stack.pop()
            if call is not None:
                self.end(call, output if begun is module else None)
            if begun is module:
                return
