"""The filter of a table of runs: `config.lr < 0.3 and name ~ 'sweep'` as a question that is put to each row.

    filter:     and, or, not and parentheses around comparisons
    comparison: COLUMN OPERATOR VALUE, or a COLUMN alone: whether it is there, and not false, 0 or empty
    operator:   < <= == != >= >, ~ (contains, in any case; * ? and [ab] as in a shell), in, not in
    value:      a number, 'text' or "text", true, false, none (nothing is there), nan, another COLUMN
    in:         COLUMN in (VALUE, VALUE), or 'text' in COLUMN, such as 'baseline' in tags

A column whose name holds spaces or other signs stands in quotes, left of its operator. Nothing is evaluated
but these: a filter may come from anyone who may read the runs.
"""

import fnmatch
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from distsummary.base.checks import check_type
from distsummary.base.columns import cut
from distsummary.errors import FilterError

MOST = 4000  # characters
MOST_DEPTH = 50  # of parentheses and of "not" in each other

Row: TypeAlias = Mapping[str, Any]  # column -> what is there; None, or no such key: nothing
Test: TypeAlias = Callable[[Row], bool]
Operand: TypeAlias = Callable[[Row], Any]

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))
    |(?P<word>[^\W\d][\w./:@%\#*-]*)
    |(?P<sign><=|>=|==|!=|[<>~(),])
    )""",
    re.VERBOSE | re.DOTALL,
)
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_COMPARISONS = (*_ORDERS, "==", "!=", "~")
_OPERATORS = (*_COMPARISONS, "in", "not")
_CONSTANTS = {"true": True, "false": False, "none": None, "nan": float("nan"), "inf": float("inf")}
_WORDS = ("and", "or", "not", "in")
_REMEDIES = {  # of signs of other languages
    "=": "equal is ==", "&": "write and", "|": "write or", "!": "write not, or != for unequal",
    "+": "there is no arithmetic", "-": "there is no arithmetic", "*": "there is no arithmetic",
    "/": "there is no arithmetic", "'": "the quote is not closed", '"': "the quote is not closed",
    "`": "a column with spaces in its name stands in ' or \"", "[": "a list stands in ( )",
}  # fmt: skip


class _Token(NamedTuple):
    """`kind`: "text", "number", "word", "sign" or "end". `at`: the index of its first character."""

    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """A word of the grammar in lower case; empty for any other token."""
        return self.text.lower() if self.kind == "word" else ""


class Filter:
    """A filter that was read; `holds` answers for a row.

    Args:
        text: the filter; empty: it holds for all rows.
        columns: those that there are; None: any name is one.

    Raises:
        FilterError: it is no filter, or names a column that there is not; the error points at the character.
        InvalidTypeError: it is no text.
    """

    def __init__(self, text: str, columns: Collection[str] | None = None) -> None:
        check_type("filter", text, str)
        self.text = text
        self._reader = _Reader(text, columns)
        self._test = self._reader.read() if text.strip() else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, each once, in their order."""
        return tuple(self._reader.names)

    def holds(self, row: Row) -> bool:
        """Whether it holds for a row; a comparison with what is not there, or of another kind, does not."""
        return self._test is None or self._test(row)


class _Reader:
    """Reads a filter from left to right, a function for each rule of the grammar."""

    def __init__(self, text: str, columns: Collection[str] | None) -> None:
        self._text, self._columns = text, columns
        self.names: dict[str, None] = {}
        if len(text) > MOST:
            raise FilterError(f"a filter may have {MOST} characters, got {len(text)}; name fewer values", 0)
        self._tokens = [*self._split()]
        self._depth = 0

    def read(self) -> Test:
        """The whole filter."""
        test = self._either()
        self._refuse_rest()
        return test

    def _split(self) -> Iterator[_Token]:
        at = 0
        while rest := self._text[at:].lstrip():
            at = len(self._text) - len(rest)
            found = _TOKEN.match(self._text, at)
            if found is None or found.lastgroup is None:
                sign = rest[0]
                remedy = _REMEDIES.get(sign, "a text stands in quotes")
                raise self._error(f"{sign!r} is no sign of a filter; {remedy}", at)
            yield _Token(found.lastgroup, found[found.lastgroup], at)
            at = found.end()
        yield _Token("end", "", len(self._text.rstrip()))

    @property
    def _next(self) -> _Token:
        return self._tokens[0]

    def _take(self) -> _Token:
        return self._tokens.pop(0) if len(self._tokens) > 1 else self._tokens[0]

    def _takes(self, *texts: str) -> bool:
        """Whether the next token is one of these signs or words, which is then taken."""
        is_one = self._next.text in texts if self._next.kind == "sign" else self._next.word in texts
        if is_one:
            self._take()
        return is_one

    def _error(self, reason: str, at: int) -> FilterError:
        return FilterError(f"{reason}, at character {at + 1} of the filter\n{pointed(self._text, at)}", at)

    def _refuse_rest(self) -> None:
        token = self._next
        if token.kind == "end":
            return
        if token.text in _COMPARISONS:
            raise self._error("a comparison has two sides; write: 1 < a and a < 2", token.at)
        if token.text == "(":
            raise self._error("there are no functions; expected and, or, or the end", token.at)
        if token.kind == "number" and token.text[0] in "+-":
            raise self._error("there is no arithmetic; expected and, or, or the end", token.at)
        raise self._error(f"expected and, or, or the end, got {cut(token.text, 40)!r}", token.at)

    def _either(self) -> Test:
        tests = [self._both()]
        while self._takes("or"):
            tests.append(self._both())
        return tests[0] if len(tests) == 1 else lambda row: any(test(row) for test in tests)

    def _both(self) -> Test:
        tests = [self._negated()]
        while self._takes("and"):
            tests.append(self._negated())
        return tests[0] if len(tests) == 1 else lambda row: all(test(row) for test in tests)

    def _negated(self) -> Test:
        token = self._next
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise self._error(f"it is nested deeper than {MOST_DEPTH} levels", token.at)
        if self._takes("not"):
            inner = self._negated()
            test: Test = lambda row: not inner(row)  # noqa: E731  # as the branches below
        elif self._takes("("):
            test = self._either()
            if not self._takes(")"):
                raise self._error("expected ) or an operator", self._next.at)
        else:
            test = self._comparison()
        self._depth -= 1
        return test

    def _comparison(self) -> Test:
        token = self._take()
        following = self._next.text if self._next.kind == "sign" else self._next.word
        if token.kind == "number" and following in _COMPARISONS:
            left = self._constant(float(token.text))
        elif token.kind == "text" and following in ("in", "not") and self._holds_column():
            return self._within(token)
        elif token.kind in ("word", "text") and token.word not in (*_WORDS, *_CONSTANTS):
            left = self._column(token)
        else:
            got = f", got {cut(token.text, 40)!r}" if token.text else ""
            raise self._error(f"expected a column, such as state{got}", token.at)
        if following in ("in", "not"):
            return self._among(left)
        if following not in _COMPARISONS:
            if token.kind == "text":
                raise self._error(f"expected an operator: {' '.join(_OPERATORS)}", self._next.at)
            return lambda row: is_true(left(row))
        self._take()
        return _compared(following, left, self._value())

    def _holds_column(self) -> bool:
        """Whether a column follows "in" or "not in", and no list."""
        after = self._tokens[1:3]
        if self._next.word == "not":
            after = after[1:] if after and after[0].word == "in" else []
        return bool(after) and after[0].text != "("

    def _takes_in(self) -> bool:
        """Take "in" (True) or "not in" (False)."""
        is_in = not self._takes("not")
        if not self._takes("in"):
            raise self._error("expected in", self._next.at)
        return is_in

    def _within(self, token: _Token) -> Test:
        """'text' in COLUMN."""
        is_in, text = self._takes_in(), unquoted(token.text)
        column = self._column(self._take())
        return lambda row: _contains(column(row), text) == is_in

    def _among(self, left: Operand) -> Test:
        """COLUMN in (VALUE, VALUE)."""
        is_in = self._takes_in()
        if not self._takes("("):
            raise self._error("expected ( and a list of values, such as ('failed', 'lost')", self._next.at)
        values = [self._value()]
        while self._takes(","):
            values.append(self._value())
        if not self._takes(")"):
            raise self._error("expected , or )", self._next.at)
        tests = [_compared("==", left, value) for value in values]
        return lambda row: any(test(row) for test in tests) == is_in

    def _value(self) -> Operand:
        """What stands right of an operator."""
        token = self._take()
        if token.kind == "number":
            return self._constant(float(token.text))
        if token.kind == "text":
            return self._constant(unquoted(token.text))
        if token.word in _CONSTANTS:
            return self._constant(_CONSTANTS[token.word])
        if token.kind == "word" and token.word not in _WORDS:
            return self._column(token, is_value=True)
        got = f", got {token.text!r}" if token.text else ""
        raise self._error(f"expected a number, a text in quotes, or a column{got}", token.at)

    def _constant(self, value: Any) -> Operand:
        return lambda row: value

    def _column(self, token: _Token, *, is_value: bool = False) -> Operand:
        name = unquoted(token.text) if token.kind == "text" else token.text
        if token.kind not in ("word", "text") or token.word in _WORDS:
            raise self._error("expected a column", token.at)
        if self._columns is not None and name not in self._columns:
            near = get_close_matches(name, self._columns, 3)
            hint = f"; the nearest are {', '.join(near)}" if near else ""
            if is_value:
                hint += f"; a text stands in quotes: '{name}'"
            if self._next.text == "(":
                hint = "; there are no functions"
            raise self._error(f"there is no column {cut(name, 80)!r}{hint}", token.at)
        self.names[name] = None
        return lambda row: row.get(name)


def pointed(text: str, at: int) -> str:
    """The line of a text that has the character `at`, and below it a mark at this character."""
    start = text.rfind("\n", 0, at) + 1
    line = text[start:].partition("\n")[0]
    # A character that controls a terminal would move the mark.
    shown = "".join(one if one.isprintable() else " " for one in line)
    return f"  {shown}\n  {' ' * (at - start)}^"


def unquoted(text: str) -> str:
    r"""The text in quotes; \' and \\ stand for a quote and a backslash."""
    return re.sub(r"\\(['\"\\])", r"\1", text[1:-1])


def is_true(value: Any) -> bool:
    """Whether something is there, and not false, 0, NaN or empty."""
    return bool(value) and value == value


def _compared(sign: str, left: Operand, right: Operand) -> Test:
    if sign == "==":
        return lambda row: _is_equal(left(row), right(row))
    if sign == "!=":
        return lambda row: not _is_equal(left(row), right(row))
    if sign == "~":
        return lambda row: _is_like(left(row), right(row))
    order = _ORDERS[sign]
    return lambda row: _is_ordered(order, left(row), right(row))


def _is_equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    # NaN equals NaN here: a filter asks for runs whose loss is NaN.
    return bool(left == right) or (left != left and right != right)


def _is_ordered(order: Callable[[Any, Any], bool], left: Any, right: Any) -> bool:
    is_comparable = all(isinstance(one, (int, float)) for one in (left, right)) or all(
        isinstance(one, str) for one in (left, right)
    )
    return is_comparable and order(left, right)


def _is_like(value: Any, pattern: Any) -> bool:
    if value is None or pattern is None:
        return False
    values = value if isinstance(value, (list, tuple)) else [value]
    wanted = _pattern(str(pattern))
    return any(wanted(str(one)) is not None for one in values)


@lru_cache(100)
def _pattern(text: str) -> Callable[[str], re.Match[str] | None]:
    # The translation is made of atomic groups, so that no pattern takes long on any text.
    return re.compile(fnmatch.translate(f"*{text}*"), re.IGNORECASE).match


def _contains(value: Any, text: str) -> bool:
    """Whether a list has a text, or a text contains it."""
    return isinstance(value, (list, tuple, str)) and text in value
