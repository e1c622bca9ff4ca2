"""Replaces secrets by *** in what leaves for a file, an alert or a page.

Three things give a secret away: its name (`db_password`), its shape (`ghp_...`), or its place (the login of a
URL). Names are split into words, so that `dbPassword` is one and `tokenizer` is none. Shapes are a table:
scanners such as detect-secrets judge the lines of a repository by plugins and entropy, and have no table of
names for settings or command lines. 40 hexadecimal digits are a commit or a checksum unless their name is
that of a secret.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

REDACTED = "***"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# How secret a name is: which of its values stay.
_NO, _MACHINE_MADE, _TEXT, _ANY = range(4)
_NOTHING = r"(?i:true|false|none|null|yes|no|on|off|\*+|)"
_NUMBERS = rf"{_NOTHING}|[-+\d.,eE_%\s()\[\]]*|<[^<>\s]{{1,30}}>|\[[A-Z]{{2,8}}\]"  # and tokens: <s>, [CLS]
_WORDS = r"[A-Z]?[a-z]+\d*(?:[._/][A-Z]?[a-z]+\d*|[._/]\d+)+"  # of a parameter, a path
_PLAIN = rf"{_NUMBERS}|[a-z]+(?:[;,|][a-z]+)*|(?:~?/|\.{{1,2}}/)?{_WORDS}"
_KEPT = {
    level: re.compile(kept) for level, kept in ((_MACHINE_MADE, _PLAIN), (_TEXT, _NUMBERS), (_ANY, _NOTHING))
}

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# The last word of a name that says something about a secret: password_file, token_type.
_ABOUT = _words(
    "path paths file filename dir directory folder type kind mode method scheme length len size count "
    "num number dim name names env var field index limit min max rate ratio enabled required timeout "
    "ttl expiry policy provider backend algorithm error exception warning"
)
_FORM = _words("str string value val json text txt data raw hex pem b base bytes header url uri")
_SECRET = re.compile(
    r".*(?:password|passwd|passphrase|passcode|secret)s?|(?:db|user|ftp|smtp|admin|root|my)pass|pword|pwd|pswd|pw|psk|creds?|credentials?|bearer|"
    r"jwt|dsn|t?otp|sas|(?:php)?sess(?:ion)?id|webhooks?|auth|authorization|o?auth(?:token|key)"
)
_LAST = dict.fromkeys(("cookie", "cookies", "pin", "pat"), _ANY) | dict.fromkeys(
    ("sig", "signature"), _MACHINE_MADE
)
_LAST["salt"] = _TEXT
_PAIRS = frozenset(
    [
        *itertools.product(["pass"], ["phrase", "word", "code"]),
        *itertools.product(["session"], ["id", "key"]),
        *[("service", "account"), ("connection", "string"), ("conn", "str")],
    ]
)
_KEY = re.compile(r"(.*?)keys?")
_KEY_OF = _words(
    "api pass access private secret signing encryption decryption encrypt enc dec account storage shared ssh "
    "gpg pgp master deploy auth service subscription license app consumer client aws gcp azure openai "
    "anthropic wandb kaggle hf stripe rsa host root admin crypto hmac cipher"
)
_OTHER_KEY = _words(
    "sort primary foreign cache dict index join partition group query hot n num max min total count"
)
_TOKEN = re.compile(r"(.*?)tokens?")
# With one of these words, a token is one of a vocabulary: pad_token, eos_token_id.
_VOCABULARY = _words("pad eos bos unk sep cls mask special start end stop sub n num min max count total")
_OF_TOKEN = _VOCABULARY | _words("id ids embedding embeddings dropout level mixer list")
_PASS = _words("forward backward first second last one two single multi n num per fast slow")

_OPAQUE = re.compile(r"(?<![\w+/=-])(?!/)[A-Za-z0-9+/]{28,}={0,2}(?![\w+/-])")
_PIECE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+|.")
_LENGTH = 3.2  # mean characters of the pieces of words; random characters have less
_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<=hooks\.slack\.com/services/)[\w/-]+"
    r"|(?<=/api/webhooks/)[\w/-]+"
    r"|(?<=/webhookb2/)[^\s\"']+"
    r"|(?<![A-Za-z0-9])(?:"
    r"gh[opsur]_\w{16,}|github_pat_\w{16,}|gl[a-z]{2,6}-[\w-]{16,}|hf_[A-Za-z0-9]{16,}"
    r"|[sr]k[-_](?=[\w-]*[A-Z0-9])[\w-]{16,}|whsec_\w{16,}|xox[a-z]-[\w-]{8,}|xapp-[\w-]{8,}|A(?:KIA|SIA|ROA|IDA)[A-Z0-9]{12,}"
    r"|AIza[\w-]{30,}|ya29\.[\w.-]{8,}|GOCSPX-[\w-]{16,}|eyJ[\w-]{6,}(?:\.[\w-]{4,})+|pypi-[\w-]{16,}"
    r"|npm_\w{16,}|SG\.[\w-]{8,}\.[\w-]{8,}|dckr_[a-z]{3}_[\w-]{16,}|gsk_\w{16,}|r8_\w{16,}|nvapi-[\w-]{16,}"
    r"|do[opr]_v1_\w{16,}|hv[bsr]\.[\w-]{16,}|lin_api_\w{16,}|shp[a-z]{2}_\w{16,}|tskey-[\w-]{12,}"
    r"|pplx-\w{16,}|gl(?:c|sa)_\w{16,}|dapi[0-9a-f]{32}|AGE-SECRET-KEY-1\w+|PMAK-[\w-]{16,}|key-[0-9a-f]{32}"
    r"|NRAK-\w{16,}|figd_[\w-]{16,}|ATATT3[\w=-]{16,}|ntn_\w{16,}|sntry[su]_[\w=-]{16,}|sbp_\w{16,}"
    r"|\d{8,10}:AA[\w-]{30,})"
    r"|(?<=bearer )(?=[\w.~+/=-]*[A-Z0-9])[\w.~+/=-]{8,}"
    r"|(?<=Bearer )[\w.~+/=-]{8,}"
    r"|(?<=Basic )(?=\w*[A-Z0-9])[\w+/=]{8,}",
    re.DOTALL,
)
# A login may hold what a URL should escape: user:a/b@host. A port is none: host:80/a@b.
_LOGIN = re.compile(r"(?<=\w:/)(/{0,2})(?:[^/\s\"'<>]+|[^/:@\s\"'<>]+:(?!\d{1,5}[/?#])[^\s\"'<>]{1,300})@")
_AFTER = re.compile(
    r"(?i)(?<![\w-])((?:set-)?cookie:\s*)[^\n\"'}]+"
    r"|\b(login\s+\S+\s+password\s+|(?:key|token|password|secret)\s(?:provided|given|received|used):\s)\S+"
)
# What follows these options and verbs of programs, in a text or a list of arguments.
_OF_PROGRAM = re.compile(
    r"(\b(?:curl\b[^\n|;]{0,300}?\s(?:-u|-U|--user|--proxy-user)[\s=]*[\"']?[^\s:\"']+:"
    r"|(?:mysql\w*|mariadb[\w-]*)\b[^\n|;]{0,300}?\s-p|sshpass\s+-p\s*"
    r"|redis-cli\b[^\n|;]{0,300}?\s-a\s+|wandb\s+login(?:\s+-\S+)*\s+))(?!-)[^\s\"']+"
)
_USERS = ("-u", "-U", "--user", "--proxy-user")  # options of curl and others: user:password
_NAME = re.compile(
    r"(?<![\w.-])(?P<dashes>--?)?(?P<name>[A-Za-z_][\w.-]*)"
    r"(?:\\*[\"']?\]?\s*(?::=|=>|[:=]{1,2})\s*|>(?=[^<>\n]+</)|\s(?=[\"'][^\s\"']+[\"'])"
    r"|(?(dashes)(?:\\*[\"'],\s*(?=\\*[\"'])|\s+)(?!--)|(?!)))"
)
_IS_NAME = re.compile(r"-{0,2}[A-Za-z_](?:[\w.]*|[A-Za-z.-]*)")
_QUOTED = (
    r"[rbfu]{0,2}(?<!\\)(?P<quote>\\*(?:\"\"\"|'''|[\"']))"
    r"(?P<quoted>(?:(?!(?P=quote))(?:\\.|.))*)(?:(?P=quote)|\Z)"
)
_LITERAL = re.compile(rf"{_QUOTED}|\#.*", re.DOTALL | re.IGNORECASE)
_VALUE = re.compile(
    rf"(?:(?:bearer|basic|digest|token|negotiate|apikey)\s+)?(?:{_QUOTED}"
    r"|[(\[{][^)\]}]*[)\]}]?|(?:[^\s\"'&,;)\]}]|,(?=\S))+)",
    re.DOTALL | re.IGNORECASE,
)


def redacted(value: Any, name: str = "", *, is_code: bool = False) -> Any:  # Any: what JSON holds
    """The value without secrets: a text, a number, or a structure of dicts, lists and tuples.

    A list of texts is read as a command line. Bools and None stay, whatever their name.

    Args:
        name: of the value, such as that of a setting.
        is_code: a text is a line of Python, in which only literals hold secrets.
    """
    return _code(value) if is_code else _redacted(value, _level(name))


def _redacted(value: Any, level: int) -> Any:
    if isinstance(value, Mapping):
        # Kubernetes has variables as dicts with a name and a value.
        if isinstance(name := value.get("name"), str) and "value" in value:
            value = {**value, "value": _redacted(value["value"], _level(name))}
        return {
            _text(name) if isinstance(name, str) else name: _redacted(one, max(level, _level(str(name))))
            for name, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        if level == _NO and value and all(isinstance(one, str) for one in value):
            return [*_command_line(value)]
        return [_redacted(one, level) for one in value]
    if isinstance(value, str):
        if level == _NO:
            return _text(value)
        return value if level < _ANY and _KEPT[level].fullmatch(value) else REDACTED
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return REDACTED if is_number and level == _ANY else value


def _level(name: str) -> int:
    """How secret the values of a name are."""
    # `-p` is an option of many programs, often for a password, and `p` is often a probability.
    if name == "p":
        return _MACHINE_MADE
    words = [word.lower() for word in _WORD.findall(name)]
    if any(pair in _PAIRS for pair in itertools.pairwise(words)):
        return _ANY
    # The last words may only say in which form the secret is, as in password_str.
    while len(words) > 1 and words[-1] in _FORM:
        words.pop()
    if not words or words[-1] in _ABOUT:
        return _NO
    level = max(_level_of_word(words, place) for place in range(len(words)))
    return max(level, _LAST.get(words[-1], _NO))


def _level_of_word(words: Sequence[str], place: int) -> int:
    word, is_last = words[place], place == len(words) - 1
    before = words[place - 1] if place else ""
    if _SECRET.fullmatch(word):
        return _ANY
    if match := _TOKEN.fullmatch(word):
        after = words[place + 1 : place + 2]
        return _NO if _VOCABULARY & {before, match[1]} or _OF_TOKEN & {*after} else _TEXT
    if match := _KEY.fullmatch(word):
        # What the key is of decides: api_key and apikey are secrets, sort_key is none.
        of = match[1] or before
        if of in _KEY_OF and (is_last or words[place + 1 :] == ["id"]):
            return _ANY
        return _MACHINE_MADE if is_last and not match[1] and of not in _OTHER_KEY else _NO
    if word == "pass" and is_last and before not in _PASS:
        return _ANY if before else _TEXT
    return _NO


def _command_line(arguments: Sequence[str]) -> Iterator[str]:
    # After an option for a secret, its value is hidden, or all values until the next option.
    hides, hides_all, is_later, before = _NO, False, False, ""
    for argument in _OF_PROGRAM.sub(rf"\1{REDACTED}", "\x1f".join(arguments)).split("\x1f"):
        match = re.match(r"(?:--?|\+{1,2}|/)?([A-Za-z_][\w.-]*)(?:([:=])|\Z)", argument)
        name, separator = (match[1], match[2]) if match else ("", "")
        # What has a digit may be a password that begins with dashes.
        may_be_value = hides == _ANY and re.search(r"\d", argument) and not separator
        is_option = (argument.startswith("--") and not may_be_value) or (
            argument.startswith("-") and len(argument) == 2
        )
        level = _level(name)
        before, option = argument, before
        user, is_login, rest = argument.partition(":")
        if option in _USERS and is_login and rest and not rest.startswith("//"):
            yield f"{user}:{REDACTED}"
        elif hides and not is_option and not (is_later and separator):
            yield argument if _KEPT[hides].fullmatch(argument) else REDACTED
            hides, is_later = hides if hides_all else _NO, True
        elif level and separator and match:
            value = argument[match.end() :]
            yield argument[: match.end()] + (value if _KEPT[level].fullmatch(value) else REDACTED)
            hides = _NO
        else:
            yield _text(argument)
            is_named = not separator and (argument.startswith("-") or "." in name or level == _ANY)
            hides = (level if argument.startswith("-") else _MACHINE_MADE) if level and is_named else _NO
            hides_all, is_later = argument.startswith("-") and name.endswith("s"), False


def _text(text: str) -> str:
    """The text without what looks like a secret, and without the values of names that are secret."""
    text = _OF_PROGRAM.sub(rf"\1{REDACTED}", _AFTER.sub(rf"\1\2{REDACTED}", _shapes(text)))
    parts, place = [], 0
    while match := _NAME.search(text, place):
        parts.append(text[place : match.end()])
        place = match.end()
        level = _level(match["name"])
        # In the query of a URL, a key may look like a plain word, so no value of such a name is kept.
        if match.start() and text[match.start() - 1] in "?&":
            level = _ANY if level else _NO
        value = _VALUE.match(text, place) if level else None
        if value is not None:
            bare = value[0] if value["quoted"] is None else value["quoted"]
            is_kept = _KEPT[level].fullmatch(bare)
            parts.append(value[0] if is_kept else REDACTED)
            # In JSON around a repr, such a quote may be a part of the value: it\\'s for it\'s.
            is_end_unknown = not is_kept and bare.endswith("\\")
            place = len(text) if is_end_unknown else value.end()
    return "".join([*parts, text[place:]])


def _shapes(text: str) -> str:
    text = _SHAPES.sub(REDACTED, _LOGIN.sub(rf"\1{REDACTED}@", text))
    return _OPAQUE.sub(lambda match: REDACTED if _is_random(match[0]) else match[0], text)


def _is_random(text: str) -> bool:
    """Whether letters of both cases and digits change as often as in random bytes in base64."""
    kinds = (r"[a-z]", r"[A-Z]", r"\d")
    is_mixed = text.count("/") <= 3 and all(re.search(kind, text) for kind in kinds)
    return is_mixed and len(text) < _LENGTH * len(_PIECE.findall(text))


def _code(line: str) -> str:
    """A line of Python without secrets in its literals and its comment.

    Where it has the name of a secret, only names and plain words stay: f("--password", default="***").
    """
    level = max(map(_level, re.findall(r"[A-Za-z_]\w+", line)), default=_NO)

    def clean(match: re.Match[str]) -> str:
        if match["quote"] is None:
            return _text(match[0])
        before, bare = line[: match.start()].rstrip()[-1:], match["quoted"]
        if not level:
            return match[0].replace(bare, _text(bare))
        # A literal that is itself the name of a secret stays, unless it is assigned to a name.
        is_name = before not in ("=", ":") and _IS_NAME.fullmatch(bare) and _level(bare)
        return match[0] if is_name or _KEPT[level].fullmatch(bare) else match[0].replace(bare, REDACTED)

    return _shapes(_LITERAL.sub(clean, line))
