"""What the project's modules import, use and write, read from their source."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import networkx as nx


@dataclass(frozen=True)
class Import:
    """One imported module, as it is written; `late` if it is not run when the importing module is."""

    target: str
    line: int
    late: bool


@dataclass(frozen=True)
class Module:
    """A module of the project by its dotted name."""

    name: str
    tree: ast.Module
    is_package: bool = False

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> list[Import]:
        """What it imports at run time: not what only type checkers see."""
        return list(self._imports(self.tree, late=False, typing=False))

    @cached_property
    def all_imports(self) -> list[Import]:
        """Those too."""
        return list(self._imports(self.tree, late=False, typing=True))

    def _imports(self, node: ast.AST, *, late: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if not typing and isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                for other in child.orelse:
                    yield from self._imports(other, late=late, typing=typing)
            elif isinstance(child, ast.Import):
                yield from (Import(alias.name, child.lineno, late) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = self._base(child)
                # `from a import b` may be the module a.b: both are named, and resolved later.
                yield from (Import(f"{base}.{alias.name}", child.lineno, late) for alias in child.names)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from self._imports(child, late=late or function, typing=typing)

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        package = parts[: len(parts) - node.level + (1 if self.is_package else 0)]
        return ".".join([*package, *([node.module] if node.module else [])])


Modules = Mapping[str, Module]


def read_modules(root: Path) -> dict[str, Module]:
    """Every module of the three packages under `root`."""
    modules = {}
    for package in ("scaling", "launchers", "topologies"):
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            modules[name] = Module(name, ast.parse(path.read_text(encoding="utf-8")), is_package)
    return modules


def planted(**sources: str) -> dict[str, Module]:
    """A made-up tree; `__` in a name stands for a dot."""
    names = {key.replace("__", "."): text for key, text in sources.items()}
    return {name: Module(name, ast.parse(text)) for name, text in names.items()}


def resolve(target: str, modules: Modules) -> str:
    """The module that an import names: `a.b.c` is the attribute c of a.b where there is no module a.b.c."""
    base, _, attribute = target.rpartition(".")
    return base if base in modules and target not in modules and attribute else target


def is_ours(target: str) -> bool:
    return target.partition(".")[0] in ("scaling", "launchers", "topologies")


def reaches(start: str, forbidden: frozenset[str], modules: Modules, *, late: bool) -> list[str]:
    """Chains by which importing `start` imports a forbidden package: `a -> b -> torch`."""
    chains, seen, queue = [], {start}, [[start]]
    while queue:
        chain = queue.pop(0)
        for one in modules[chain[-1]].imports:
            if one.late and not late:
                continue
            target = resolve(one.target, modules)
            if target.partition(".")[0] in forbidden:
                chains.append(" -> ".join([*chain, target]))
            # Importing a.b.c runs the packages a and a.b first.
            parts = target.split(".")
            for runs in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):
                if runs in modules and runs not in seen:
                    seen.add(runs)
                    queue.append([*chain, runs])
    return chains


def circles(modules: Modules) -> list[list[str]]:
    """Modules that import one another, by however many steps, late and for type checkers too."""
    graph = nx.DiGraph(
        (name, target)
        for name, module in modules.items()
        for one in module.all_imports
        if (target := resolve(one.target, modules)) in modules and target != name
    )
    return sorted(sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1)


def uses_of(modules: Modules, dotted: str, allowed: frozenset[str]) -> list[str]:
    """Modules that import the package `dotted`, or name it as an attribute, and are not allowed to."""
    found = []
    for name, module in modules.items():
        imported = any(f"{one.target}.".startswith(f"{dotted}.") for one in module.imports)
        ends = (n for n in module.nodes if isinstance(n, ast.Attribute) and dotted.endswith(f".{n.attr}"))
        named = any(ast.unparse(n) == dotted for n in ends)
        if (imported or named) and name not in allowed:
            found.append(f"{name} uses {dotted}")
    return found


WRITING = frozenset({"write_bytes", "savefig", "savez", "imsave", "json.dump", "pickle.dump", "torch.save"})
MOVING = frozenset({"os.replace", "os.rename", "shutil.copy", "shutil.move"})


def written_by(call: ast.Call) -> str | None:
    """What in this call writes to a file, or None: a heuristic over names and constant modes."""
    called = ast.unparse(call.func)
    name = called.rpartition(".")[2]
    if name in ("open", "fdopen"):
        modes = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        texts = [m.value for m in modes if isinstance(m, ast.Constant) and isinstance(m.value, str)]
        # A mode is a word of these letters; a file's name holds others.
        return "open" if any(set(t) <= set("rwaxbt+") and set(t) & set("wax+") for t in texts) else None
    if name == "write_text":  # with two arguments it is the store's own: a name and a text
        return name if len(call.args) < 2 else None
    if name == "to_csv":  # without a path it gives the text
        return name if call.args else None
    if called in ("yaml.dump", "yaml.safe_dump"):  # likewise
        return called if len(call.args) > 1 else None
    if called in MOVING:
        return name
    return next((one for one in (called, name) if one in WRITING), None)


def writes(module: Module) -> set[tuple[str, int]]:
    """Calls that write to a file, as (what, line)."""
    calls = [node for node in module.nodes if isinstance(node, ast.Call)]
    return {(what, call.lineno) for call in calls if (what := written_by(call))}
