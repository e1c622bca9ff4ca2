"""No secret of these tables is recorded, and ordinary names and values are untouched."""

import json
from pathlib import Path
from typing import Any

import pytest

from distsummary.base.redaction import REDACTED, redacted

X = "needleN063x"
# Names of settings whose value is secret, in the spellings of settings, environments and command lines.
NAMES = """
password passwd db_password dbPassword userPassword PGPASSWORD MYSQL_PWD pwd passphrase secret client_secret
clientSecret aws_secret_access_key AWS_SECRET_ACCESS_KEY aws_session_token apikey apiKey api_key x-api-key
OPENAI_API_KEY WANDB_API_KEY hf_token hfToken HF_TOKEN accessToken access_token refresh_token id_token bearer
authorization Authorization auth auth_header private_key privateKey ssh_key signing_key encryption_key dec_key
enc_key dsn connection_string sas_url webhook slack_webhook cookie session_id jwt tokens secretkey secret_key
credentials creds pin otp salt ssh_passphrase mytoken token_str gcp_key_json service_account_json kaggle_key
key keys license_key app_key account_key storage_account_key token.value token2 mypassword
p token api_token --hf-token token_2 valid_token launchpad_token token_identity
DB_PASS smtpPassword gitlab_pat XSRF-TOKEN kubeconfigToken SLACK_SIGNING_SECRET ftp.passwd oauth2ClientSecret
ANTHROPIC_AUTH_TOKEN masterKey
SENTRY_DSN GH_PAT dbpass passkey PHPSESSID REDIS_AUTH SECRET_KEY_BASE KEYSTORE_PASS csrftoken OPENAIKEY
"""
AB = "aBcD"
A1 = "a1B2"
VALUES = [  # a text, and the part that must go
    *[(text, text) for text in [
        "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "ghp_" + A1 * 9, "ghu_" + A1 * 9, "ghr_" + A1 * 9, "github_pat_11ABCDEFG0" + A1 * 9,
        "glpat-" + A1 * 5,
        "hf_" + AB * 8, "sk-" + AB * 10, "sk-proj-" + AB * 10, "sk-ant-api03-" + AB * 10,
        "xoxb-123456789012-" + AB * 6, "xapp-1-" + AB * 8, "AIza" + "SyA1b2C3d4" * 3 + "aBcDe",
        "ya29." + "a1B2c3" * 8, "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\n-----END RSA PRIVATE KEY-----",
        "pypi-AgEIcHlwaS5vcmc" + AB * 8, "npm_" + AB * 9, "SG." + AB * 5 + "." + AB * 10, "sk_live_" + AB * 6,
        "rk_live_" + AB * 6, "dckr_pat_" + AB * 7, "glrt-" + A1 * 5, "gsk_" + A1 * 13, "hvs.CAESI" + A1 * 12,
        "nvapi-" + A1 * 15, "dop_v1_" + "0123456789abcdef" * 4,
        "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk",
    ]],
    ("DefaultEndpointsProtocol=https;AccountName=x;AccountKey=Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4==", "Zm9v"),
    ("https://x.blob.core.windows.net/c?sv=2020&sig=Zm9vYmFyYmF6%2Bqux%3D", "Zm9vYmFy"),
    ("postgres://user:hunter2needle@db/x", "hunter2"),
    ("https://api.example/x?access_token=needleneedle1", "needle"),
    ("https://maps.example/?key=needleneedle2", "needle"),
    ("https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIAIOSFODNN7EXAMPLE&X-Amz-Signature=needle3",
     "needle"),
    ("https://hooks.slack.com/services/T0000/B0000/needleneedle4xxxxxxxx", "needle"),
    ("https://discord.com/api/webhooks/112233445566778899/needleAbCdEfGhIjKlMnOpQrStUvWxYz0123456789_-A",
     "needle"),
    ("Bearer needleneedle5", "needle"),
    ("Basic bmVlZGxlbmVlZGxl", "bmVl"),
    ("Authorization: Bearer needleneedle6", "needle"),
    ("password=needleneedle7", "needle"),
    ('{"password": "needleneedle8"}', "needle"),
    ("mysql+pymysql://root:needle9@h/db", "needle"),
    ("Driver=x;Uid=sa;Pwd=needleneedle10;", "needle"),
    ("https://user:pa@ss@host/", "ss@"),
    ("https://oauth2:glpat-xxxxxxxxneedle11@gitlab.com/x.git", "needle"),
    ("https://tok123needle12:@github.com/a/b", "needle"),
    ("redis://:Tr0ub4dor@cache:6379/0", "Tr0ub4dor"),
    ("export HF_TOKEN=Tr0ub4dor", "Tr0ub4dor"),
    ("Endpoint=sb://x.net/;SharedAccessKeyName=Root;SharedAccessKey=Tr0ub4dorabcdefghijklmnop=", "Tr0ub4dor"),
    # what errors say
    ("could not connect to postgres://u:needleE1@h/db", "needle"),
    ("401 for token=needleE2", "needle"),
    ("401 for url https://h/?access_token=needleE3", "needle"),
    ("bad header Authorization: Bearer needleE4", "needle"),
    ("login failed (password: needleE5)", "needle"),
    ("KeyError {'api_key': 'needleE6'}", "needle"),
    ("AWS wJalrXUtnFEMI/K7MDENG/needleE8", "needle"),
    ("dbPassword='needleE9'", "needle"),
    ("Client(password='needleOB1', api_key=needleOB3)", "needle"),
    ("Client(headers={'Authorization': 'Bearer needleOB4'})", "needle"),
    ("Client(key='needleOB2')", "needle"),
    (r'{\"password\": \"needle\"}', "needle"),
    ("auth=('user', 'needle')", "needle"),
    ("Cookie: session=Tr0ub4dor; theme=dark", "Tr0ub4dor"),
    ("machine api.wandb.ai login user password Tr0ub4dor", "Tr0ub4dor"),
    ("curl -sS -u bob:Tr0ub4dor https://files.example.com/a.tar | tar x", "Tr0ub4dor"),
    ("HTTPSConnectionPool(host='x'): Max retries exceeded with url: /v1?api_key=Tr0ub4dor (Caused by x)",
     "Tr0ub4dor"),
    ("environ({'HOME': '/root', 'HF_TOKEN': 'Tr0ub4dor'})", "Tr0ub4dor"),
    ('token = "Tr0ub4dor"', "Tr0ub4dor"),
    ("<password>Tr0ub4dor</password>", "Tr0ub4dor"),
    ("invalid literal: token 'Tr0ub4dor' rejected", "Tr0ub4dor"),
    ("AuthenticationError: Incorrect API key provided: Tr0ub4dor", "Tr0ub4dor"),
    ("connection failed; dsn=host=h user=u password=Tr0ub4dor", "Tr0ub4dor"),
    ("http://corp\\user:Tr0ub4dor@proxy:8080", "Tr0ub4dor"),
    ("403 for url: https://h/d?X-Amz-Security-Token=Tr0ub4dor&a=1", "Tr0ub4dor"),
    ("run --db-password Tr0ub4dor --lr 1", "Tr0ub4dor"),
    ("s3:/AKIAIOSFODNN7EXAMPLE:Tr0ub4dor@bucket/x", "Tr0ub4dor"),  # what pathlib makes of a URL
    ("Incorrect API key provided: sk-Tr0ub4dorAbCdEfGhIjKlMnOpQrStUvWxYz. You can find", "Tr0ub4dor"),
]  # fmt: skip
COMMANDS = (
    """
--password X|--password=X|-p X|--db-password X|--dbPassword=X|--token -X|db.password=X|+db.password=X
--set password=X|--header Authorization:_Bearer_X|--api_key:X|--hf-token X|--env HF_TOKEN=X|--url https://u:X@h/
--url https://h/?token=X|--config {"password":_"X"}|password X|--credentials X X|--secret-key X|--wandb-key X
--key X|PASSWORD=X|--pw X|--authToken=X|--bearer X|--wandb.api_key X|PGPASSWORD=X train.py|--hub_token X
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
CODE = [
    'call("https://x/?access_token=X", headers={"Authorization": "Bearer X"}, password="X", )',
    'os.environ["HF_TOKEN"] = "X"', "client = Client(api_key='X', timeout=3)", "session.login(user, pw='X')",
    'parser.add_argument("--password", default="X")', "wait(1)  # password: X", 'login(password, "X")',
    'f(token=f"X{i}")', 'connect("postgres://u:X@h/db")', 'f(key="X"',
    'headers = {"x-goog-api-key": "X"}', 'openai.api_key = "X"', 'wandb.login(key="X")',
]  # fmt: skip
ORDINARY = """
author authors keyboard monkey tokenizer tokenizer_name passenger passengers key_dim num_keys key_size
query_key_norm keypoints turkey donkey hockey compass bypass passes n_passes forward_pass pass_rate passive
secretary authority authentic pinned pin_memory spinner opinion salty basalt cookiecutter crediting accredited
hash commit checksum run_id sha256 pad_token bos_token eos_token_id special_tokens vocab_size mask_token
monkey_patch keyframe keyword keywords attention_key_bias sessions bearing author_email hotkey_layout tokenize
add_special_tokens primary_key sort_key foreign_key cache_key key_padding_mask patience pattern path
patch_size batch_size lr optimizer seed weight_decay warmup_steps mask_token_str hf_token_path PAD_TOKEN
"""
COUNTS = """
num_tokens tokens_per_second max_tokens token_count n_tokens total_tokens image_tokens token_dropout
tokens keys
"""
TEXTS = [
    "0123456789abcdef0123456789abcdef01234567", "9c1185a5c5e9fc54612808977ee8f548b2258d31",
    "ResNet50_IMAGENET1K_V2",
    "5d41402abc4b2a76b9719d911017c592", "2026-01-31T23:59:59", "/data/ILSVRC2012/train/n01440764/x.JPEG",
    "https://example.org/data.tar.gz?version=2", "TransformerEncoderLayerNorm2Model",
    "git@github.com:a/b.git",
    "size mismatch for key: layer1.weight", "KeyError: 'loss'", "tokens: 1,024",
    "loss=0.25, lr=1e-3, tokens=5",
    "tcp://127.0.0.1:29500", "python -m torch.distributed.run --nproc-per-node 4 train.py",
    "key=lambda", "[CLS]",
    "unexpected keyword argument 'token'", "no key 'layer1.weight'", "x <b>bold</b>",
    "Basic training of a network", "meta-llama/Llama-3.1-8B-Instruct", "550e8400-e29b-41d4-a716-446655440000",
    "Config(password=None, token=None, use_auth=True)", "InvalidTokenError: no more tokens",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES.split())
def test_what_a_secret_name_holds_is_hidden(name: str) -> None:
    assert redacted({name: X}) == {name: REDACTED}
    assert redacted([X, 0.5], name)[0] == REDACTED
    assert X not in redacted(f"Settings({name}='{X}', lr=1)")


@pytest.mark.parametrize(("text", "secret"), VALUES)
def test_the_shape_or_the_place_of_a_secret_gives_it_away(text: str, secret: str) -> None:
    assert secret in text
    for found in (redacted({"note": text}), redacted([text, 1]), redacted(json.dumps([text]))):
        assert secret not in str(found)
        assert redacted(found) == found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_line_is_recorded_without_secrets(command: str) -> None:
    arguments = [
        part.replace("_Bearer", " Bearer").replace("_X", " X").replace('_"', ' "')
        for part in command.split(" ")
    ]
    found = redacted(["train.py", *(part.replace("X", "needleA16") for part in arguments), "--lr", "0.1"])
    assert "needle" not in str(found)
    assert found[0] == "train.py"
    assert found[-2:] == ["--lr", "0.1"]


@pytest.mark.parametrize("line", CODE)
def test_a_line_of_code_is_recorded_without_secrets(line: str) -> None:
    assert "needle" not in redacted(line.replace("X", "needleS1"), is_code=True)


@pytest.mark.parametrize("name", ORDINARY.split())
def test_an_ordinary_name_keeps_its_values(name: str) -> None:
    source = {name: ["a", 5], "x": {name: "adamW2"}, "repr": f"Settings({name}='adamW2', lr=1)"}
    assert redacted(source) == source
    assert redacted(["train.py", f"--{name}", "adamW2", f"{name}=3"]) == [
        "train.py",
        f"--{name}",
        "adamW2",
        f"{name}=3",
    ]


@pytest.mark.parametrize("name", COUNTS.split())
def test_numbers_of_tokens_and_keys_stay(name: str) -> None:
    source = {name: 1024, "x": {name: [0.5, "1e9"]}, "repr": f"Settings({name}=1_024, lr=1)"}
    assert redacted(source) == source
    assert redacted([f"--{name}", "10", f"{name}=3"]) == [f"--{name}", "10", f"{name}=3"]


@pytest.mark.parametrize("text", TEXTS)
def test_an_ordinary_text_is_untouched(text: str) -> None:
    assert redacted({"note": text}) == {"note": text}
    assert redacted([text, 1]) == [text, 1]


@pytest.mark.parametrize("line", [
    "tokens = tokenizer(batch)", 'x = batch["tokens"].to(device)',
    'loss = model(batch["image"], key="label")',
    "for key, value in state.items():", "dist.all_reduce(x, op=dist.ReduceOp.SUM)", 'open("data/train.txt")',
])  # fmt: skip
def test_an_ordinary_line_of_code_is_untouched(line: str) -> None:
    assert redacted(line, is_code=True) == line


def test_40_hexadecimal_digits_are_a_secret_only_under_its_name() -> None:
    digits = "0123456789abcdef0123456789abcdef01234567"
    assert redacted({"commit": digits, "wandb_key": digits}) == {"commit": digits, "wandb_key": REDACTED}


def test_numbers_are_hidden_where_they_may_be_a_password_and_bools_stay() -> None:
    source = {
        "p": 0.5,
        "pin": 1234,
        "password": 1,
        "auth": True,
        "token": None,
        "creds": {"user": "a", "codes": [1, "b"]},
    }
    assert redacted(source) == {
        "p": 0.5, "pin": REDACTED, "password": REDACTED, "auth": True, "token": None,
        "creds": {"user": REDACTED, "codes": [REDACTED, REDACTED]},
    }  # fmt: skip


def test_an_option_without_a_value_hides_no_other_option() -> None:
    assert redacted(["--password", "--lr", "1"]) == ["--password", "--lr", "1"]
    assert redacted(["--use-auth", "-v", "train"]) == ["--use-auth", "-v", "train"]


def test_a_secret_is_no_part_of_a_name() -> None:
    assert redacted({"ghp_" + A1 * 9: 1}) == {REDACTED: 1}


def test_a_variable_with_the_name_of_a_secret_is_hidden() -> None:
    source = [{"name": "HF_TOKEN", "value": "needle"}, {"name": "HOME", "value": "/root"}]
    assert redacted(source) == [{"name": "HF_TOKEN", "value": REDACTED}, {"name": "HOME", "value": "/root"}]


def texts(value: Any) -> str:
    """All names and values of a structure."""
    if isinstance(value, dict):
        return "\0".join(texts(one) for pair in value.items() for one in pair)
    return "\0".join(map(texts, value)) if isinstance(value, (list, tuple)) else str(value)


def reviewed(kind: str) -> list[Any]:
    """Cases of people who had not read the detector: of a `secret` that must go, or of what must stay."""
    lines = Path(__file__).with_name("reviewed_secrets.jsonl").read_text(encoding="utf-8").splitlines()
    return [case for case in map(json.loads, lines) if kind in case]


@pytest.mark.parametrize("case", reviewed("secret"), ids=lambda case: case["secret"][:30])
def test_secrets_that_a_reviewer_wrote_are_hidden(case: dict[str, Any]) -> None:
    assert case["secret"] in texts(case["given"])
    assert case["secret"] not in texts(redacted(case["given"], is_code=case["kind"] == "source"))


@pytest.mark.parametrize("case", reviewed("keep"), ids=lambda case: case["keep"][:30])
def test_ordinary_things_that_a_reviewer_wrote_stay(case: dict[str, Any]) -> None:
    assert case["keep"] in texts(redacted(case["given"], is_code=case["kind"] == "source"))
