"""Modules do not import each other in circles, not even for types.

A cycle means that none of its modules can be read, tested or moved without the others. Imports
under `TYPE_CHECKING` count: they say what a module has to know. The package's own `__init__` only
repeats names for users, and is left out.
"""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"


def imports() -> dict[str, set[str]]:
    """Modules of the package, and which others each one imports."""
    paths = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }
    del paths["maitred"]
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        found[module] = names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    if (SOURCE / inner.replace(".", "/")).with_suffix(".pyi").exists():
                        continue  # the module in C, which imports nothing
                    names.add(inner if inner in paths else node.module)
            elif isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
        names &= paths.keys() - {module}
    return found


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules in which each reaches every other (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            at = stack.index(module)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                groups.append(sorted(group))

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return groups


def test_a_cycle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}
    assert cycles(graph) == [["a", "b", "c"]]


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycles(imports()) == []
