"""Waits for modules that a script imports later: a function is called as soon as one has been imported."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeAlias

from distsummary.base.health import note_absent
from distsummary.base.terminal import announced

Use: TypeAlias = Callable[[Any], None]


def after_import(name: str, use: Use) -> None:
    """Call `use` with the module of this name: now if it has been imported, else at the end of its import.

    What `use` raises is reported in a line and in `health()`, and the import succeeds.
    """
    if (module := sys.modules.get(name)) is not None:
        _call(use, module)
        return
    finder = next((each for each in sys.meta_path if isinstance(each, _Finder)), None)
    if finder is None:
        sys.meta_path.insert(0, finder := _Finder())
    finder.waiting.setdefault(name, []).append(use)


class _Finder(MetaPathFinder):
    """Finds nothing itself: has the loader that others find call those who wait for its module."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Use]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        found = (each.find_spec(fullname, path, target) for each in sys.meta_path if each is not self)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                for use in self.waiting.pop(fullname, ()):
                    _call(use, module)

            # The loader belongs to this spec alone, so no other import is changed.
            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _call(use: Use, module: ModuleType) -> None:
    try:
        use(module)
    except Exception as error:
        reason = f"{module.__name__} is not followed: {type(error).__name__}: {error}"
        note_absent(reason, logs=False)
        announced(f"distsummary: {reason}")
