"""Importing distsummary is light, and every public name is there when it is asked for."""

import pytest

import distsummary


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="'no_such_name'"):
        distsummary.no_such_name  # noqa: B018  # the access is what is tested
