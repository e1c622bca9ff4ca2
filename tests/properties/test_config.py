"""Whatever JSON can hold is read as a configuration without an exception, and no secret gets through."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from distsummary.base.redaction import redacted
from distsummary.collect.config import MAX_ENTRIES, read_config

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.text() | st.integers() | st.none() | st.sampled_from(["password", "a.b", "a", "b"])
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner) | st.tuples(inner, inner),
    max_leaves=50,
)


@given(st.dictionaries(KEYS, JSON))
def test_json_like_data_become_strict_json_and_flat_values(source: dict[Any, Any]) -> None:
    config = read_config(source, is_quiet=True)
    json.dumps(config.nested, allow_nan=False).encode()
    assert len(config.flat) <= MAX_ENTRIES
    for name, value in config.flat.items():
        assert isinstance(value, (str, int, float))
        name.encode()
        str(value).encode()


@given(st.dictionaries(st.sampled_from(["lr", "token", "auth", "opt"]), JSON))
def test_what_a_secret_name_holds_is_hidden(source: dict[str, Any]) -> None:
    nested = read_config({"api_key": source}, is_quiet=True).nested["api_key"]

    def leaves(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [leaf for one in value.values() for leaf in leaves(one)]
        return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list) else [value]

    assert all(leaf is None or isinstance(leaf, bool) or leaf == "***" for leaf in leaves(nested))


@given(st.dictionaries(st.text(min_size=1), st.integers() | st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_are_kept_exactly(source: dict[str, float]) -> None:
    plain = {name: number for name, number in source.items() if not _is_changed(name, number)}
    assert read_config(plain, is_quiet=True).nested == plain


def _is_changed(name: str, number: float) -> bool:
    """Whether a value is hidden because of its name, or the name is escaped or looks like a secret itself."""
    is_escaped = name.encode(errors="replace").decode() != name
    return is_escaped or redacted({name: number}) != {name: number}
