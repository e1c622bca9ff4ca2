"""Wrong names of arguments."""

import pytest

import distsummary as ds
from distsummary.diagnosis.alert_sender import check_on_alert
from distsummary.errors import InvalidTypeError, InvalidValueError


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("histogram", "did you mean histograms"),
        ("Config", "did you mean config"),
        ("project", "the directory above the run is the project"),
        ("colour", "its arguments are"),
    ],
)
def test_an_unknown_argument_gets_the_nearest_name(name: str, said: str) -> None:
    with pytest.raises(InvalidTypeError, match=f"init has no argument '{name}'; {said}"):
        ds.init("runs/a", **{name: 1})


@pytest.mark.parametrize(
    "url",
    ["http://", "https://[::1", "http://h:99999/", "http://a b/", "ftp://h/", "hooks.example", "http://h\n/"],
)
def test_a_url_to_which_nothing_can_be_posted_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidValueError, match="on_alert must be a function or a URL with a host"):
        check_on_alert(url, aggregate=True)
