"""The layers of docs/architecture.md, enforced.

The table in that page is the rule: this test reads it, so the page can't go stale. Pure layers
decide; they get time and randomness as arguments and touch neither sockets nor files.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "maitred"

# What a pure layer may use of the standard library and of others: nothing with I/O, a clock or
# randomness. `datetime` is here for its arithmetic; its clocks are refused below.
PURE_IMPORTS = {
    *("__future__", "array", "bisect", "collections", "contextlib", "dataclasses", "datetime"),
    "difflib",
    *(
        "enum",
        "functools",
        "hashlib",
        "heapq",
        "hmac",
        "ipaddress",
        "itertools",
        "math",
        "operator",
        "re",
        "struct",
        "types",
        "zlib",
    ),
    *("typing", "farmhash", "mmh3", "msgspec"),
}
CLOCKS = {"now", "utcnow", "today"}
OUTSIDE_WORLD = {"open", "print", "input", "eval", "exec", "__import__"}
OUTSIDE_THE_WHEEL = {"benchmarks", "examples", "studies", "tests"}
NEVER_LOADED_BY_PURE = {"asyncio", "random", "secrets", "selectors", "socket", "sqlite3", "ssl"}


@dataclass(frozen=True)
class Layer:
    name: str
    pure: bool
    may_import: frozenset[str]


def layers() -> dict[str, Layer]:
    """The rows `| name | kind | may import | ... |` of the page."""
    found = {}
    for line in (ROOT / "docs" / "architecture.md").read_text().splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if len(cells) >= 4 and cells[1] in {"pure", "shell"}:
            allowed = {name.strip(" `") for name in cells[2].split(",")} - {"nothing"}
            found[cells[0]] = Layer(cells[0], cells[1] == "pure", frozenset(allowed))
    return found


LAYERS = layers()


def layer_of(module: Path) -> str:
    return module.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            if module == "maitred":
                found |= {f"maitred.{alias.name}" for alias in node.names}
            else:
                found.add(module)
    return found


def violations(layer: Layer, tree: ast.Module) -> list[str]:
    found = []
    for name in sorted(imports_of(tree)):
        top, _, rest = name.partition(".")
        if top == "maitred":
            other = rest.split(".")[0]
            if other not in {layer.name, *layer.may_import, "__version__"}:
                found.append(f"{layer.name} may not import {name}")
        elif top in OUTSIDE_THE_WHEEL:
            found.append(f"{layer.name} is installed without {top}")
        elif layer.pure and top not in PURE_IMPORTS:
            found.append(f"{layer.name} is pure and may not import {name}")
    if layer.pure:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in CLOCKS:
                found.append(f"{layer.name} is pure and may not read a clock ({node.attr})")
            if isinstance(node, ast.Name) and node.id in OUTSIDE_WORLD:
                found.append(f"{layer.name} is pure and may not call {node.id}")
    return found


ENTRANCES = {SOURCE / "__init__.py", SOURCE / "__main__.py"}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path not in ENTRANCES)


@cache
def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


def test_imports_follow_the_page() -> None:
    found = {
        str(module.relative_to(SOURCE)): violations(LAYERS[layer_of(module)], parsed(module))
        for module in MODULES
    }
    assert {module: problems for module, problems in found.items() if problems} == {}


def test_a_class_name_occurs_once() -> None:
    found: dict[str, list[str]] = {}
    for module in MODULES:
        for node in parsed(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(module.relative_to(SOURCE)))
    repeated = {name: where for name, where in found.items() if len(where) > 1}
    assert repeated == {}


CHAIN_MAX = 4
"""Classes of ours from the topmost to the lowest: more than that is one object, cut into slices."""


def test_no_chain_of_classes_is_longer_than_a_reader_can_follow() -> None:
    bases: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for path in [*MODULES, SOURCE / "__init__.py"]:
        module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        tree = parsed(path)
        imported = {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names = [
                    base.value if isinstance(base, ast.Subscript) else base for base in node.bases
                ]
                bases[module, node.name] = [
                    imported.get(name.id, (module, name.id))
                    for name in names
                    if isinstance(name, ast.Name)
                ]

    def chain(one: tuple[str, str]) -> list[str]:
        above = max((chain(base) for base in bases.get(one, ())), key=len, default=[])
        return [*above, one[1]] if one in bases else []

    longest = max((chain(one) for one in bases), key=len)
    assert 2 <= len(longest) <= CHAIN_MAX, longest


def test_the_page_names_every_layer_and_no_other() -> None:
    assert set(LAYERS) == {layer_of(module) for module in MODULES}
    assert {"routing", "balancing"} <= {layer.name for layer in LAYERS.values() if layer.pure}


def test_no_two_layers_import_each_other() -> None:
    for layer in LAYERS.values():
        for other in layer.may_import:
            assert layer.name not in LAYERS[other].may_import, (layer.name, other)
            assert not layer.pure or LAYERS[other].pure, f"{layer.name} is pure, {other} is not"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import random", "may not import random"),
        ("def f():\n    import time", "may not import time"),
        ("from asyncio import sleep", "may not import asyncio"),
        ("from maitred.simulation.world import World", "may not import maitred.simulation.world"),
        ("from studies.contest import draw", "installed without studies"),
        ("from maitred import cli", "may not import maitred.cli"),
        ("from datetime import datetime\nx = datetime.now()", "read a clock"),
        ("open('x')", "may not call open"),
    ],
)
def test_the_check_can_fail(text: str, problem: str) -> None:
    assert any(problem in found for found in violations(LAYERS["routing"], ast.parse(text)))


def test_pure_layers_load_nothing_of_the_outside_world() -> None:
    """Also not by way of somebody else: in a fresh process, look at what got loaded."""
    pure = [f"maitred.{layer.name}" for layer in LAYERS.values() if layer.pure]
    program = f"import sys, {', '.join(pure)}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert NEVER_LOADED_BY_PURE.isdisjoint(loaded)
