"""The processor that computes, by name: results are the same bits where this is the same."""

import platform
from functools import cache
from pathlib import Path


@cache
def processor() -> str:
    """The machine's kind and, where Linux tells it, the processor's name."""
    return f"{platform.machine()} {_model_name()}".strip()


def _model_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
