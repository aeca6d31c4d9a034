"""No secret is recorded or printed: options, variables, keys, addresses; and nothing else is taken out."""

import json
import shlex
from pathlib import Path

import pytest

from scaling.files.redaction import REDACTED, redacted, redacted_command, redacted_document
from scaling.measure.environment import collect
from scaling.store import ResultsFolder, RunRecord
from scaling.store.archive import opened
from scaling.store.files import redact_file

ROOT = Path(__file__).parents[2]
VALUE = "s3cr3t'va\"lue"

NAMES = [
    "api-key", "api_key", "apiKey", "key", "hf_token", "accessToken", "password", "db-passwd", "secret",
    "client_secret", "aws_secret_access_key", "credentials", "auth", "TOKEN2",
]  # fmt: skip
VARIABLES = [
    "HF_TOKEN", "TORCH_HUB_TOKEN", "WANDB_API_KEY", "NCCL_X_PASSWORD", "HOROVOD_SECRET_KEY", "MYSQL_PWD",
    "PGPASSWORD", "SSHPASS",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("secret", ["abc1", "a b", VALUE, "-x", "$(id)"])
def test_command_shows_no_value_of_a_secret_option(name, secret):
    for words in (
        ["train.py", f"--{name}", secret, "--lr", "0.1"],
        ["train.py", f"--{name}={secret}", "--lr", "0.1"],
        ["train.py", f"workloads.0.dataset.{name}={secret}", "--lr", "0.1"],
        ["env", f"{name}={secret}", "train.py", "--lr", "0.1"],
    ):
        shown = shlex.split(redacted_command(words))
        assert shown == [word.replace(secret, REDACTED) if "train" not in word else word for word in words]


@pytest.mark.parametrize("name", NAMES + VARIABLES)
def test_keys_of_documents_are_redacted(name):
    expected = {"a": [{name: REDACTED}, {name: [REDACTED, ""]}]}
    assert redacted_document({"a": [{name: "x1"}, {name: ["x2", ""]}]}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "https://{}@host/x.git", "https://host/?a=1&token={}&b=2", "Bearer {}",
        "Authorization: Basic {}", '{{"api_key": "{}", "b": 1}}', "{{'password': '{}'}}", "api_key: {}\nb: 2",
        "export HF_TOKEN={}", "AccountKey={};x=1", "failed: 401 for url https://h/x?access_token={}",
        "wget --user=me:{} h", "http -a me:{} h", "xh -u me:{} h", "curl -u {}: h",
        "x=$(curl \\\n -u me:{} h)", '{{"command": "curl -u me:{} h"}}', "fetch http://{}@host:80/x?a@b",
    ],
)  # fmt: skip
def test_texts_show_no_secret_and_keep_what_stands_around_it(text):
    shown = redacted(text.format("abcd1234"), {})
    assert shown == (REDACTED if text == "Bearer {}" else text.format(REDACTED))
    assert redacted(shown, {}) == shown


@pytest.mark.parametrize(
    "words",
    [
        ["--pw", "{}"], ["--passcode", "{}"], ["--bearer", "{}"], ["--api.key", "{}"],
        ["--logger.api.key={}"],
        ["--webhook", "{}"], ["--slack-webhook", "{}"], ["--webhook-url", "{}"],
        ["--to", "https://hooks.slack.com/services/{}"], ["--config", "{{'api_key': '{}'}}"],
        ["--config", '{{"api_key": "{}", "lr": 1}}'],
    ],
)  # fmt: skip
def test_command_shows_no_secret_of_other_forms(words):
    typed = [["train.py", *(word.format(text) for word in words), "--lr", "1"] for text in ("x1s", REDACTED)]
    assert shlex.split(redacted_command(typed[0])) == typed[1]


@pytest.mark.parametrize("password", ["pa$$w0rd!", "p@ss#1", "12345", 'it\'s "a b"; x', "a:b"])
@pytest.mark.parametrize("options", ["-u {}", "--user {}", "--user={}", "-u{}", "-fsSu {}", "-U {}"])
@pytest.mark.parametrize("program", ["curl", "sudo -n /usr/bin/curl"])
def test_password_of_a_user_is_not_shown_in_commands_of_the_web(password, options, program):
    typed, expected = (
        [*program.split(), *(word.format(f"me:{text}") for word in options.split()), "http://x"]
        for text in (password, REDACTED)
    )
    assert redacted_command(typed) == shlex.join(expected)
    text = "cd /x && {}; docker run -u 1:2 i"
    of_shell = [["sh", "-c", text.format(shlex.join(words))] for words in (typed, expected)]
    assert redacted_command(of_shell[0]) == shlex.join(of_shell[1])


@pytest.mark.parametrize(
    "command",
    [
        "docker run --user root:root x", "docker run -u 1000:1000 curlimages/curl h", "rsync -u n1:/data/x y",
        "docker run --network http -u root:root x", "python -u module:Class", "train.py --webhook-port 80",
        "train.py --webhook-timeout 3", "curl -u me h", "curl h; docker run -u 10:20 x",
    ],
)  # fmt: skip
def test_users_groups_and_hosts_of_other_programs_stay(command):
    assert redacted(command, {}) == command
    assert redacted_command(["sh", "-c", command]) == shlex.join(["sh", "-c", command])
    if ";" not in command:
        assert redacted_command(command.split()) == command


def test_tokens_passwords_of_addresses_and_values_of_variables_go_wherever_they_stand():
    signed = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.s-1_g"
    assert redacted_command(["train.py", "--neptune", signed]) == f"train.py --neptune {REDACTED}"
    assert redacted("fetch http://u:p@ss@host:80/x?a@b", {}) == f"fetch http://{REDACTED}@host:80/x?a@b"
    variables = {"MY_TOKEN": "plainwords", "PWD": "/home/me", "A_KEY": "short", "NAME": "resnet56"}
    shown = redacted("it is plainwords in /home/me, short resnet56", variables)
    assert shown == f"it is {REDACTED} in /home/me, short resnet56"
    assert redacted("login with hf_abcdefghijklmnopqrst", {}) == f"login with {REDACTED}"


@pytest.mark.parametrize(
    "text",
    [
        "--max-token 512", "--pad-token X", "--eos_token </s>", "imageToken: <image>",
        "--sort-key size", "--num-keys 4", "--tokenizer gpt2", "--token-dropout 0.1", "KeyError: 'foo'",
        "Unexpected key: l.0", "tokens_per_s=3", "author=Bob", "monkey=1", "bypass=1", "path=abc",
        "passes: 3", "--api-key --lr 1", "git@github.com:x/y", "key_padding_mask=None", "token=None",
    ],
)  # fmt: skip
def test_other_texts_stay(text):
    assert redacted(text, {}) == text


def test_committed_results_and_studies_are_as_before():
    studies = [*ROOT.glob("results/reference/*-cpu/study.yaml"), *ROOT.glob("scaling/study/studies/*.yaml")]
    facts = [json.loads(path.read_text()) for path in ROOT.glob("results/reference/*/environment.json")]
    archive = opened(ROOT / "results/reference/converge-gpt-cpu", None)
    assert studies
    assert facts
    assert archive
    for value in [*(path.read_text() for path in studies), *facts, *archive.records.values()]:
        assert redacted_document(value) == value


def test_results_folder_and_environment_hold_no_secret(tmp_path, monkeypatch):
    for number, name in enumerate(VARIABLES):
        monkeypatch.setenv(name, f"{VALUE}{number}")
    monkeypatch.setattr("sys.argv", ["scaling", "run", "x", f"a.token={VALUE}", "--api-key", VALUE])
    folder = ResultsFolder(tmp_path)
    folder.write_study({"name": "x", "parts": [{"model": {"name": "m", "api_key": VALUE}}]})
    folder.write_environment(collect())
    cell = {"kind": "own", "device": "cpu", "world_size": 1, "model_parameters": {"token": VALUE}}
    record = RunRecord("0123456789ab", 0, cell)
    folder.start_run(record, {})
    folder.fail_run(record, f"it said {VALUE}1 and password={VALUE}")
    folder.finish_run(record, {}, [f"it said {VALUE}2"])
    log = tmp_path / "launches.log"
    log.write_bytes(f"a\r\nlogin {VALUE}3\n".encode() + b"\xff\n")
    redact_file(log)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 4
    assert [content for content in written if b"s3cr3t" in content] == []
    assert log.read_bytes() == b"a\r\nlogin REDACTED\n\xff\n"
    assert collect()["variables"]["TORCH_HUB_TOKEN"] == REDACTED  # the recorded and the current one are equal


def test_redaction_of_large_texts_is_linear(monkeypatch):
    import scaling.files.redaction as redaction

    counted = []
    value_of = redaction._value_of
    monkeypatch.setattr(redaction, "_value_of", lambda *a: counted.append(1) or value_of(*a))
    for unit in ("x", "key", "token=", "a://", "--key '", "@"):
        counted.clear()
        redacted(unit * 2000, {})
        assert len(counted) <= 2000
