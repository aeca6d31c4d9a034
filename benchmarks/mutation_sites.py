"""Where the core can be changed by a small fault, and which such mutants a seed draws.

A mutant is one replaced piece of one source file. The kinds are those of mutation testing (T. A. Budd,
"Mutation Analysis of Program Test Data", 1980) that fit Python and tensors. Left out is what no test should
hold: docstrings, type hints, texts and their formats, messages of errors, own invariants (`assert`), and the
files that only say how a picture is drawn.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CORE = (
    *(
        f"scaling/{package}"
        for package in (
            *("collectives", "codecs", "aggregators", "training", "measure", "analysis", "report"),
            *("prediction", "store"),
        )
    ),
    "launchers",
)  # fmt: skip

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"), ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}
COPIES = ("clone", "copy", "contiguous")
TEXT_CALLS = ("print", "warn", "echo", "info", "debug", "warning", "TypeVar", "isinstance")
PICTURE_FILES = ("drawing", "figure_style")


@dataclass(frozen=True)
class Mutant:
    """A file with one piece replaced.

    Attributes:
        kind: comparison, arithmetic, constant, logic, opposite, copy, swap, slice, return or removal.
        file: path in the repository.
        start, stop: bytes of the file that are replaced.
        line: of the first of them.
        was, now: the piece, and what replaces it.
    """

    kind: str
    file: str
    start: int
    stop: int
    line: int
    was: str
    now: str

    def apply(self, source: bytes) -> bytes:
        """The file's new content."""
        assert source[self.start : self.stop] == self.was.encode(), "the source that it was drawn from"
        return source[: self.start] + self.now.encode() + source[self.stop :]


class _Sites:
    """Walks one file."""

    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source
        lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))

    def all(self) -> Iterator[Mutant]:
        yield from self._below(ast.parse(self._source), "")

    def _span(self, node: ast.AST) -> tuple[int, int]:
        place: Any = node  # of those that are mutated: all have a place
        at = self._starts[place.lineno - 1] + place.col_offset
        return at, self._starts[place.end_lineno - 1] + place.end_col_offset

    def _text(self, node: ast.AST) -> str:
        start, stop = self._span(node)
        return self._source[start:stop].decode()

    def _at(self, kind: str, start: int, stop: int, now: str) -> Mutant:
        line = self._source.count(b"\n", 0, start) + 1
        return Mutant(kind, self._file, start, stop, line, self._source[start:stop].decode(), now)

    def _whole(self, kind: str, node: ast.AST, now: str) -> Mutant:
        return self._at(kind, *self._span(node), now)

    def _between(self, kind: str, left: ast.AST, right: ast.AST, was: str, now: str) -> Iterator[Mutant]:
        """The operator between two operands."""
        first, last = self._span(left)[1], self._span(right)[0]
        at = self._source.find(was.encode(), first, last)
        if at >= 0:
            yield self._at(kind, at, at + len(was), now)

    def _below(self, node: ast.AST, function: str) -> Iterator[Mutant]:
        if _is_left_out(node):
            return
        yield from self._here(node, function)
        function = node.name if isinstance(node, ast.FunctionDef) else function
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_comment"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._below(child, function)

    def _here(self, node: ast.AST, function: str) -> Iterator[Mutant]:
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
                yield from self._between("comparison", left, right, *COMPARISONS[type(operator)])
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            if not any(_is_text(side) for side in (node.left, node.right)):
                yield from self._between("arithmetic", node.left, node.right, *ARITHMETIC[type(node.op)])
        elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
            was, now = ARITHMETIC[type(node.op)]
            yield from self._between("arithmetic", node.target, node.value, f"{was}=", f"{now}=")
            yield self._whole("removal", node, "pass")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            changed = not node.value if isinstance(node.value, bool) else node.value + 1
            yield self._whole("constant", node, repr(changed))
        elif isinstance(node, ast.BoolOp):
            was, now = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from self._between("logic", left, right, was, now)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._whole("logic", node, f"({self._text(node.operand)})")
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
                yield self._whole("logic", node.test, f"not ({self._text(node.test)})")
        elif isinstance(node, ast.Call):
            yield from self._calls(node)
        elif isinstance(node, ast.Slice):
            if node.lower is not None:
                yield self._whole("slice", node.lower, f"({self._text(node.lower)}) + 1")
            if node.upper is not None:
                yield self._whole("slice", node.upper, f"({self._text(node.upper)}) - 1")
        elif isinstance(node, ast.Return) and node.value is not None:
            if not isinstance(node.value, ast.Constant):
                yield self._whole("return", node.value, "None")
        elif (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)) or (
            isinstance(node, ast.Assign) and function != "__init__" and _changes_state(node)
        ):
            yield self._whole("removal", node, "pass")

    def _calls(self, node: ast.Call) -> Iterator[Mutant]:
        name = _called(node)
        start, stop = self._span(node.func)
        if name in OPPOSITES:
            yield self._at("opposite", stop - len(name), stop, OPPOSITES[name])
        if name in COPIES and isinstance(node.func, ast.Attribute) and not node.args and not node.keywords:
            yield self._whole("copy", node, self._text(node.func.value))
        if name == "range" and len(node.args) in (1, 2):
            yield self._whole("slice", node.args[-1], f"({self._text(node.args[-1])}) - 1")
        elif len(node.args) > 1 and name not in OPPOSITES and not any(map(_is_starred, node.args[:2])):
            first, second = node.args[:2]
            if ast.dump(first) != ast.dump(second):
                start, stop = self._span(first)[0], self._span(second)[1]
                gap = self._source[self._span(first)[1] : self._span(second)[0]].decode()
                yield self._at("swap", start, stop, f"{self._text(second)}{gap}{self._text(first)}")


def _changes_state(node: ast.Assign) -> bool:
    return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def _is_starred(node: ast.AST) -> bool:
    return isinstance(node, ast.Starred)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.FunctionDef):
        names = {
            getattr(decorator, "id", getattr(decorator, "attr", "")) for decorator in node.decorator_list
        }
        return bool(names & {"overload", "abstractmethod"})
    if isinstance(node, ast.If):
        return getattr(node.test, "id", "") == "TYPE_CHECKING"
    if isinstance(node, ast.Subscript):
        return getattr(node.value, "id", "") in ("Literal", "Callable", "Annotated")
    return isinstance(node, ast.Call) and _called(node) in TEXT_CALLS


def sites(root: Path, file: str) -> list[Mutant]:
    """All mutants of a file, in its order."""
    return list(_Sites(file, (root / file).read_bytes()).all())


def is_python(root: Path, mutant: Mutant) -> bool:
    """Whether the changed file still parses."""
    try:
        ast.parse(mutant.apply((root / mutant.file).read_bytes()))
    except SyntaxError:
        return False
    return True


def core_files(root: Path) -> list[str]:
    """The core's, in the order of their names."""
    files = (path for package in CORE for path in sorted((root / package).rglob("*.py")))
    return [str(path.relative_to(root)) for path in files if not path.name.startswith(PICTURE_FILES)]


def draw(root: Path, seed: int, count: int) -> list[Mutant]:
    """`count` mutants: the packages of the core in turn, a kind of fault at random, a place at random.

    It is a pure function of the seed and the sources (and of the Python that reads them).
    """
    generator = random.Random(seed)
    by_package: list[dict[str, list[Mutant]]] = []
    for package in CORE:
        kinds: dict[str, list[Mutant]] = {}
        for file in core_files(root):
            if file.startswith(f"{package}/"):
                for mutant in sites(root, file):
                    kinds.setdefault(mutant.kind, []).append(mutant)
        by_package.append(kinds)
    drawn: list[Mutant] = []
    while len(drawn) < count:
        kinds = by_package[len(drawn) % len(CORE)]
        left = kinds[generator.choice(sorted(name for name, left in kinds.items() if left))]
        mutant = left.pop(generator.randrange(len(left)))
        if is_python(root, mutant):
            drawn.append(mutant)
    return drawn
