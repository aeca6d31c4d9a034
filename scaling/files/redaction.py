"""Takes secrets out of what is recorded or printed, by the name of an option, variable or key and by form."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

REDACTED = "REDACTED"

_INSIDE = ("secret", "passw", "passphrase", "passcode", "credential")
_AT_END = re.compile(r"(?:token|apikey|accesskey|privatekey|pwd|sshpass|webhooks?(?:ur[li]s?)?)$")
_WHOLE = "key keys auth authorization bearer pass pat pw jwt sig signature cookie"
_OF_TEXT = "pad eos bos unk mask sep cls eot end start stop special image audio prefix suffix"
_OF_TABLES = "sort by primary foreign metric monitor image label text target group dict index column feature"
_HARMLESS = {"token": _OF_TEXT, "key": _OF_TABLES, "keys": "num dict sort"}  # words before it, no secret

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]")
_FOLDERS = ("PWD", "OLDPWD")
_NO_SECRET = re.compile(r"(?i)none|null|true|false|value")
_NUMBER = re.compile(r"[\d.,]+")
_LEAST_LENGTH = 6  # of a variable's value, to be looked for in texts

_NAME = re.compile(
    r"(?i)(?:secret|token|credential|webhook|key|auth|bearer|pwd|pw|pass|pat|jwt|sig|signature|cookie)"
    r"[\w-]{0,64}"
)
_VALUE = re.compile(
    r"""(?i)(?:(?:bearer|basic|token)\s+)?((?:'[^'\n]*'|"(?:[^"\\\n]|\\.)*"|\\.|[^\s'"\\,;&)\]}])+)"""
)
_TO_QUOTE = re.compile(r"""([^'\n]+(?:'"'"'[^'\n]*)*)""")
_BETWEEN = re.compile(r"""(["']?)(\s*=\s*|\s*:\s*|\s+)""")
_IN_URL = re.compile(r"""(?<=://)[^\s/'"<>@]+(?:@[^\s/'"<>@]+)*@""")
_KNOWN_FORMS = re.compile(
    r"\b(?:hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[abps]-|AKIA|ASIA)[A-Za-z0-9_-]{16,}"
    r"|(?i:\bbearer)\s+[\w.~+/-]{8,}=*"
    r"|\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?"
    r"|(?<=hooks\.slack\.com/services/)[\w/]+"
)
_WEB_PROGRAMS = ("curl", "wget", "http", "https", "xh", "xhs")
_WEB_PROGRAM = re.compile(rf"(?<![\w.:=-])(?:{'|'.join(_WEB_PROGRAMS)})(?=\s)")
_OF_CURL = re.compile(r"(-[sSfkLvinIGOgjN]*[uU]|--user|--proxy-user)(=?)(.*)", re.DOTALL)
_OF_OTHERS = re.compile(r"(-[ua]|--user|--auth)(=?)(.*)", re.DOTALL)  # with user:password
_SHELL_WORD = re.compile(
    r"""(?P<end>[;&|()]|(?<!\\)\n)|(?:'[^']*'|"(?:[^"\\]|\\.)*"|\\[^\n]|[^\s'"\\;&|()])+""", re.DOTALL
)


def is_secret(name: str) -> bool:
    """Whether an option, variable or key of this name looks like a secret: HF_TOKEN, --api-key, apiKey."""
    words = _WORD.findall(name.rstrip("0123456789_-"))
    if name in _FOLDERS or not words:
        return False
    if len(words) > 1 and words[-2].lower() in _HARMLESS.get(words[-1].lower(), "").split():
        return False
    last, joined = words[-1].lower(), "".join(words).lower()
    return last in _WHOLE.split() or bool(_AT_END.search(joined)) or any(word in joined for word in _INSIDE)


def redacted(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """The text without values of secrets: those that `redacted_form` sees, and those of variables."""
    for name, value in environ.items():
        if len(value) >= _LEAST_LENGTH and value in text and is_secret(name) and not _harmless(name, value):
            text = text.replace(value, REDACTED)
    return redacted_form(text)


def redacted_form(text: str) -> str:
    """The text without what looks like a secret: `--api-key X`, `HF_TOKEN=X`, `https://user:X@host`, hf_X."""
    text = _KNOWN_FORMS.sub(REDACTED, _IN_URL.sub(f"{REDACTED}@", text))
    text = _users_redacted(text)
    parts, end = [], 0
    for found in _NAME.finditer(text):
        if found.start() < end:
            continue
        span = _value_of(text, found)
        if span is not None:
            parts += [text[end : span[0]], REDACTED]
            end = span[1]
    return "".join([*parts, text[end:]])


def _users_redacted(text: str) -> str:
    """The text without passwords of users, where a program of the web is called in it."""
    parts, end = [], 0
    for found in _WEB_PROGRAM.finditer(text):
        if found.start() < end:
            continue
        before = text[max(0, found.start() - 64) : found.start()].split()[-1:]
        matches = _SHELL_WORD.finditer(text, found.start())
        raw = list(takewhile(lambda match: match["end"] is None, matches))
        words = ["".join(shlex.split(match[0])) for match in raw]
        shown = _words_without_passwords([*before, *words])[len(before) :]
        for match, word, safe in zip(raw, words, shown, strict=True):
            if word != safe:
                parts += [text[end : match.start()], shlex.quote(safe)]
                end = match.end()
        parts.append(text[end : raw[-1].end()])
        end = raw[-1].end()
    return "".join([*parts, text[end:]])


def _words_without_passwords(words: Sequence[str]) -> list[str]:
    """The words of a command, without passwords of users behind the name of a program of the web."""
    shown: list[str] = []
    options, is_user = None, False
    for before, word in zip(["", *words], words, strict=False):
        name, safe = word.rpartition("/")[2], word
        found = options.fullmatch(word) if options else None
        if is_user:
            safe, is_user = _without_password(word), False
        elif found:
            safe, is_user = f"{found[1]}{found[2]}{_without_password(found[3])}", not found[2] + found[3]
        elif name in _WEB_PROGRAMS and not (name[0] in "hx" and before.startswith("-")):  # --network http
            options = _OF_CURL if name == "curl" else _OF_OTHERS
        shown.append(safe)
    return shown


def _without_password(user: str) -> str:
    name, colon, password = user.partition(":")
    if not colon or password.startswith(REDACTED):
        return user
    return f"{name}:{REDACTED}" if password else f"{REDACTED}:"  # a key alone: `sk_test_x:`


def _value_of(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    """Where the value of the secret stands whose name `found` is part of."""
    before = re.search(r"('?)([\w.-]*)$", text[max(0, found.start() - 64) : found.start()])
    assert before is not None
    name = before[2].rpartition(".")[2] + found[0]
    between = _BETWEEN.match(text, found.end())
    if between is None or not is_secret(name):
        return None
    quote, sign = between[1], between[2].strip()
    is_prose = name.lower() in ("key", "keys") and not quote
    is_option = (before[2] + found[0]).startswith("-")
    if (not sign and not is_option) or (sign == ":" and is_prose):
        return None
    in_quotes = before[1] and sign == "=" and not quote  # the word is quoted, not the value alone
    value = (_TO_QUOTE if in_quotes else _VALUE).match(text, between.end())
    if value is None or (not sign and value[1].startswith("--")) or _harmless(name, value[1].strip("'\"")):
        return None
    start, end = value.span(1)
    is_quoted = end - start > 1 and text[start] == text[end - 1] and text[start] in "'\""
    return (start + 1, end - 1) if is_quoted else (start, end)


def _harmless(name: str, value: str) -> bool:
    is_number = bool(_NUMBER.fullmatch(value)) and name.lower().endswith("token")  # --max-token 512
    return is_number or bool(_NO_SECRET.fullmatch(value))


def redacted_command(words: Sequence[str]) -> str:
    """A command as it is typed in a shell, with secrets redacted."""
    parts = (
        redacted_form(word) if word.startswith(("{", "[")) else _users_redacted(word)
        for word in _words_without_passwords(words)
    )
    return redacted_form(shlex.join(parts))


def redacted_document(value: Any, name: str = "") -> Any:
    """What is written as YAML or JSON, with secrets redacted by their keys and by form."""
    if isinstance(value, Mapping):
        return {key: redacted_document(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_document(item, name) for item in value]
    if value == "" or isinstance(value, bool) or not isinstance(value, str | int):
        return value
    if is_secret(name) and not _harmless(name, str(value)):
        return REDACTED
    return redacted_form(value) if isinstance(value, str) else value
