"""No secret of these tables is recorded, and ordinary names and values are untouched.

A table for each subject. Each of its cases notices a change of some rule that the others do not notice.
"""

import json
from typing import Any

from distsummary.base.redaction import REDACTED, redacted

SECRET = "needleN063x"
DIGITS = "9c1185a5c5e9fc54612808977ee8f548b2258d31"  # of a commit
# Names of settings whose value is secret, in the spellings of settings, environments and command lines.
NAMES = """
password passwd passphrase secret apikey authorization dsn connection_string sas_url webhook cookie session_id
jwt secretkey otp salt gcp_key_json service_account_json gitlab_pat dbpass smtpPass passkey PHPSESSID
KEYSTORE_PASS OPENAIKEY hf_token ssh_pass_phrase
"""
# How tokens of services begin. After it come 32 digits that alone are no secret.
SHAPES = """
ghp_ github_pat_ glpat- hf_ sk-1 rk_1 whsec_ xoxb- xapp- AIza ya29. GOCSPX- eyJabcdef. pypi- npm_ SG.abcdefgh.
dckr_pat_ gsk_ r8_ nvapi- dop_v1_ hvs. lin_api_ shpat_ tskey- pplx- glc_ glsa_ dapi AGE-SECRET-KEY-1 PMAK-
key- NRAK- figd_ ATATT3 ntn_ sntrys_ sbp_ 12345678:AA
"""
TEXTS = [  # a text, and the part that must go
    ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    ("ASIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE"),
    ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("AWS wJalrXUtnFEMI/K7MDENG/needleE8", "needle"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIB\nq7\n-----END RSA PRIVATE KEY-----", "MIIEpAIB\nq7"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz", "b3BlbnNz"),
    ("https://x.blob.core.windows.net/c?sv=2020&sig=Zm9vYmFyYmF6%2Bqux%3D", "Zm9vYmFy"),
    ("https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIAIOSFODNN7EXAMPLE&X-Amz-Signature=needle3", "needle"),
    ("https://hooks.slack.com/services/T0000/B0000/needleneedle4xxxxxxxx", "needle"),
    ("https://discord.com/api/webhooks/112233445566778899/needleAbCdEfGhIjKlMnOpQrStUvWxYz012_-A", "needle"),
    ("https://tok123needle12:@github.com/a/b", "needle"),
    ("https://svc:a#b/c?d9@artifacts.lab.example/simple", "a#b/c?d9"),
    ("Bearer needleneedle5", "needle"),
    ("Basic bmVlZGxlbmVlZGxl", "bmVl"),
    ("Driver=x;Uid=sa;Pwd=needleneedle10;", "needle"),
    ("auth=('user', 'needle')", "needle"),
    ("machine api.wandb.ai login user password needle", "needle"),
    ("<password>needle</password>", "needle"),
    ("invalid literal: token 'needle' rejected", "needle"),
    ("AuthenticationError: Incorrect API key provided: needle", "needle"),
    ("run --db-password needle --lr 1", "needle"),
    ("CalledProcessError: Command '['tool', '--token', 'proc-err-11']' returned 1.", "proc-err-11"),
    (r"Namespace(password='it\'s-quoted-6', lr=0.1)", "s-quoted-6"),
    (r'{"password": "ab\"cd-77"}', "cd-77"),
    ("InvalidToken: Fernet key secretKey -> 'arrow-15-zz'; api_key => \"arrow-16-zz\"", "arrow-16-zz"),
]
COMMANDS = [  # the arguments of a program, and the part that must go
    ("train.py -p needle1", "needle"),
    ("train.py password needle1", "needle"),
    ("train.py --credentials needle1 needle2", "needle"),
    ("train.py --pw needle1", "needle"),
    ("train.py --bearer needle1", "needle"),
    ("train.py --password --dash-led-77 --epochs 3", "led-77"),
    ("curl -u trainer:icicle!9 https://api.lab.example/x", "icicle!9"),
    ("curl --user trainer:icicle!8 https://api.lab.example/x", "icicle!8"),
    ("redis-cli -h cache -a red-auth-10 ping", "red-auth-10"),
    ("train.py --opts MODEL.DEPTH 50 LOGGER.API_TOKEN yacs-list-11", "yacs-list-11"),
    (f"wandb login {DIGITS}", DIGITS),
]
CODE = [
    'call("https://x/?access_token=needle", headers={"Authorization": "Bearer needle"}, password="needle", )',
    "wait(1)  # password: needle",
    'login(password, "needle1")',
    'f(key="needle1"',
    'subprocess.run("mysql -ulab -pneedle runs < a.sql", shell=True)',
]
ORDINARY_NAMES = """
num_keys turkey forward_pass pass_through pad_token bos_token mask_token attention_key_bias add_special_tokens
primary_key sort_key foreign_key cache_key hf_token_path
"""
COUNTS = "tokens_per_second keys"
ORDINARY_TEXTS = [
    "https://example.org/data.tar.gz?version=2", "git@github.com:a/b.git", "no key 'layer1.weight'",
    "Basic training of a network", "Config(password=None, token=None, use_auth=True)",
    "OpenHermes2.5UltraChat200kFilteredDedupV3Long", "sk_classification_multi_label",
]  # fmt: skip
ORDINARY_CODE = [
    'x = batch["tokens"].to(device)',
    'loss = model(batch["image"], key="label")',
    'num_tokens += batch["attention_mask"].sum().item()',
    f'assert sha256(path) == "{DIGITS[:32]}{DIGITS[:32]}"',
]
STRUCTURES: list[tuple[Any, Any]] = [  # a structure, and what is recorded of it
    (r"Namespace(password='it\'s-quoted-5', lr=0.1)", f"Namespace(password={REDACTED}, lr=0.1)"),
    ({"commit": DIGITS, "wandb_key": DIGITS}, {"commit": DIGITS, "wandb_key": REDACTED}),
    (
        {"p": 0.5, "pin": 1234, "auth": True, "token": None, "creds": {"user": "a", "codes": [1, "b"]}},
        {"p": 0.5, "pin": REDACTED, "auth": True, "token": None,
         "creds": {"user": REDACTED, "codes": [REDACTED, REDACTED]}},
    ),
    ({"passwords": ["cedar-11", "birch-22"]}, {"passwords": [REDACTED, REDACTED]}),
    ({"smtp": {"host": "mail", "pass": "violet-rain-3"}}, {"smtp": {"host": "mail", "pass": REDACTED}}),
    ({"ghp_" + "a1B2" * 9: 1}, {REDACTED: 1}),
    (
        [{"name": "HF_TOKEN", "value": "needle"}, {"name": "HOME", "value": "/root"}],
        [{"name": "HF_TOKEN", "value": REDACTED}, {"name": "HOME", "value": "/root"}],
    ),
    ({"name": "ci", "token": "needle1"}, {"name": "ci", "token": REDACTED}),
    (["--password", "--lr", "1"], ["--password", "--lr", "1"]),  # an option without its value hides no other
    (["--use-auth", "-v", "train"], ["--use-auth", "-v", "train"]),
    (["get", "--proxy-user", "bob:hunter2"], ["get", "--proxy-user", f"bob:{REDACTED}"]),
    (["python", "-u", "train.py"], ["python", "-u", "train.py"]),
    (["get", "-u", "http://host:80/"], ["get", "-u", "http://host:80/"]),
]  # fmt: skip


def test_what_a_secret_name_holds_is_hidden() -> None:
    for name in NAMES.split():
        assert redacted({name: SECRET}) == {name: REDACTED}
        assert redacted([SECRET, 0.5], name)[0] == REDACTED
        assert SECRET not in redacted(f"Settings({name}='{SECRET}', lr=1)")


def test_the_shape_or_the_place_of_a_secret_gives_it_away() -> None:
    shapes = [(f"it is {shape}{DIGITS[:32]}", DIGITS[:32]) for shape in SHAPES.split()]
    for text, secret in (*TEXTS, *shapes):
        assert secret in text
        for found in (redacted({"note": text}), redacted([text, 1]), redacted(json.dumps([text]))):
            assert secret not in str(found), text
            assert redacted(found) == found


def test_a_command_line_is_recorded_without_secrets() -> None:
    for command, secret in COMMANDS:
        arguments = command.split()
        found = redacted([*arguments, "--lr", "0.1"])
        assert secret not in str(found), command
        assert (found[0], found[-2:]) == (arguments[0], ["--lr", "0.1"])


def test_a_line_of_code_is_recorded_without_secrets() -> None:
    assert [line for line in CODE if "needle" in redacted(line, is_code=True)] == []


def test_an_ordinary_name_keeps_its_values() -> None:
    for name in ORDINARY_NAMES.split():
        source = {name: ["a", 5], "x": {name: "adamW2"}, "repr": f"Settings({name}='adamW2', lr=1)"}
        assert redacted(source) == source
        arguments = ["train.py", f"--{name}", "adamW2", f"{name}=3"]
        assert redacted(arguments) == arguments


def test_numbers_of_tokens_and_keys_stay() -> None:
    for name in COUNTS.split():
        source = {name: 1024, "x": {name: [0.5, "1e9"]}, "repr": f"Settings({name}=1_024, lr=1)"}
        assert redacted(source) == source
        assert redacted([f"--{name}", "10", f"{name}=3"]) == [f"--{name}", "10", f"{name}=3"]


def test_ordinary_texts_and_lines_of_code_are_untouched() -> None:
    for text in ORDINARY_TEXTS:
        assert redacted({"note": text}) == {"note": text}
        assert redacted([text, 1]) == [text, 1]
    for line in ORDINARY_CODE:
        assert redacted(line, is_code=True) == line


def test_of_a_structure_only_its_secrets_are_replaced() -> None:
    for given, expected in STRUCTURES:
        assert redacted(given) == expected
