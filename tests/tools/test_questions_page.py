"""The answers of docs/how-to/questions.md are those that the commands give today."""

import pytest

from tools.questions_page import PAGE, QUESTIONS, ROOT, page


@pytest.mark.quality
def test_answers_of_the_committed_folders_are_current(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "python tools/questions_page.py"
    assert all(f"**{question}**" in text for question in QUESTIONS)
