"""Claims: the page has what the files give, and each verdict follows from its checks."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from scaling.errors import StudyError
from scaling.study.claims import Check, Claim, check_all, checked, markdown, read_claims

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs" / "claims").glob("*.yaml"))
VERDICTS = {
    "fcn-cntk-2": "holds under an assumption",
    "fcn-torch-2": "holds under an assumption",
    "fcn-tensorflow-2": "holds under an assumption",
    "fcn-torch-4": "holds under an assumption",
    "exchange-seconds": "does not hold here",
    "cublas-transposed": "does not hold here",
    "flux-200": "does not hold here",
    "convergence-order": "holds under an assumption",
}


@pytest.fixture(scope="module")
def found():
    return {claim.id: checked(claim, path.parent) for path in FILES for claim in read_claims(path).claims}


def test_page_and_readme_have_every_verdict_as_it_is_computed(found):
    read = {path: read_claims(path) for path in FILES}
    page = markdown(read, check_all(read))
    assert (ROOT / "docs" / "background" / "claims.md").read_text(encoding="utf-8") == page
    names = ("holds", "holds under an assumption", "does not hold here", "not testable")
    counts = [sum(one.verdict == name for one in found.values()) for name in names]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    said = re.search(r"Of (\d+) claims .* \[(\d+) hold under .* (\d+) do not \(", readme)
    assert [int(count) for count in said.groups()] == [sum(counts), counts[0] + counts[1], counts[2]]
    assert counts[3] == 0


def test_verdicts_of_the_papers_claims(found):
    assert {name: found[name].verdict for name in VERDICTS} == VERDICTS
    assert "sums on the CPU, dual-k80-one-link" in found["fcn-torch-4"].assumption


def folder(tmp_path: Path, **seconds: float) -> Path:
    rows = "".join(f"{name},{value},id-{name}\n" for name, value in seconds.items())
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "summary.csv").write_text(f"aggregator,iteration_s,cell_id\n{rows}")
    return tmp_path


def check(of: str, over: str | None = None, **bounds) -> dict:
    cells = {name: {"folder": "here", "where": {"aggregator": name}} for name in (of, over) if name}
    return {"of": cells[of], "over": over and cells[over], **bounds}


@pytest.mark.parametrize(("checks", "verdict", "assumption"), [
    ([], "not testable", ""), ([check("a", "b", most=0.5)], "holds", ""),
    ([check("a", "b", gain=True, least=0.5), check("a", most=0.9)], "does not hold here", ""),
    ([check("a", most=0.9), check("a", most=1, assuming="x")], "holds under an assumption", "x"),
    ([check("a", most=1), check("a", most=0.9, assuming="x")], "holds", ""),
    ([check("a", most=1, assuming="x"), check("a", most=0.9, assuming="x")], "does not hold here", ""),
])  # fmt: skip
def test_verdict_follows_from_the_checks(tmp_path, checks, verdict, assumption):
    claim = Claim.model_validate({"id": "one", "claim": "a is fast", "because": "so", "checks": checks})
    result = checked(claim, folder(tmp_path, a=1.0, b=2.0))
    assert (result.verdict, result.assumption) == (verdict, assumption)


def test_a_check_without_a_cell_and_a_file_of_another_form_are_named(tmp_path):
    claim = Claim.model_validate({"id": "1", "claim": "c", "because": "", "checks": [check("c", most=1)]})
    with pytest.raises(StudyError, match=r"here: iteration_s where .*: no cell fits"):
        checked(claim, folder(tmp_path, a=1.0))
    words = {"of": {"folder": "here", "column": "aggregator"}, "most": 1}
    with pytest.raises(StudyError, match="column aggregator has no numbers"):
        checked(claim.model_copy(update={"checks": [Check.model_validate(words)]}), tmp_path)
    for wrong, why in (({}, "needs least or most"), ({"gain": True, "most": 1}, "name that too")):
        with pytest.raises(ValidationError, match=why):
            Check.model_validate(check("a", **wrong))
    path = tmp_path / "wrong.yaml"
    path.write_text("source: x\nclaims: [{id: a, claim: b, because: c, check: 1}]\n")
    with pytest.raises(StudyError, match=r"wrong.yaml: claims.0.check: .*check-claims.md"):
        read_claims(path)


def test_pairs_of_cells_are_checked_each_at_the_value_that_both_have(tmp_path):
    (tmp_path / "here").mkdir()
    rows = ["a,0,1.0", "a,1,3.0", "a,2,9.0", "b,0,2.0", "b,1,2.992", "c,5,1.0"]
    (tmp_path / "here" / "summary.csv").write_text("\n".join(["aggregator,seed,iteration_s", *rows]))

    def found(other: str = "b", **words: object) -> tuple[str, bool]:
        pair = {"each": "seed", **check("a", other, most=1, **words)}
        claim = Claim.model_validate({"id": "1", "claim": "c", "because": "", "checks": [pair]})
        return checked(claim, tmp_path).found[""][0]

    assert found() == ("0.5 to 1.003 (at most 1; seed 0, 1)", False)
    assert found(gain=True, least=-0.1) == ("-0.3% to 50.0% (-10.0% to 100.0%; seed 0, 1)", True)
    with pytest.raises(StudyError, match="no seed has cells of both"):
        found("c")
    with pytest.raises(ValidationError, match="both must be cells"):
        Check.model_validate({**check("a", most=1), "each": "seed"})


def test_of_several_cells_one_is_taken_only_where_the_claim_says_which(tmp_path):
    here = folder(tmp_path, a=1.0, b=2.0)

    def found(**taken: str) -> str:
        words = {"of": {"folder": "here", **taken}, "most": 1.5}
        claim = Claim.model_validate({"id": "1", "claim": "c", "because": "", "checks": [words]})
        ((text, _),) = checked(claim, here).found[""]
        return text

    assert found(take="least") == "1 (at most 1.5; of several cells the least)"
    assert found(take="greatest") == "2 (at most 1.5; of several cells the greatest)"
    with pytest.raises(StudyError, match=r"2 cells fit \(id-a, id-b\).*aggregator.*`take: least`"):
        found()
    (here / "here" / "summary.csv").write_text("iteration_s,cell_id\n1,x\n,y\n")
    with pytest.raises(StudyError, match="cells y have none"):
        found(take="least")
