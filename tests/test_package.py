"""What is installed: the wheel with its recipes and without tests, one version, and a light import."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import poise
from poise.tuning import tuner_names

ROOT = Path(__file__).parents[1]
FILES = (".py", ".toml", ".html", ".css", ".js")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources, so that nothing built before can slip in."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    out = tmp_path_factory.mktemp("wheel")
    pip("wheel", str(copy), "--no-deps", "--no-build-isolation", "--wheel-dir", str(out))
    (built,) = out.glob("*.whl")
    return built


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_wheel_holds_recipes_types_and_licence_but_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "poise"
    wanted = [path for path in package.rglob("*") if path.suffix in FILES or path.name == "py.typed"]
    assert {f"poise/{path.relative_to(package).as_posix()}" for path in wanted} <= names
    recipes = [name for name in names if name.startswith("poise/recipes/") and name.endswith(".toml")]
    assert len(recipes) == len(list(package.glob("recipes/**/*.toml"))) > 0
    assert any(name.endswith("/LICENSE") for name in names)
    info = f"poise-{poise.__version__}.dist-info/"
    assert all(name.startswith(("poise/", info)) for name in names)
    assert not any("test" in Path(name).name for name in names)


def test_the_installed_wheel_finds_its_recipes(wheel: Path, tmp_path: Path) -> None:
    pip("install", "--no-deps", "--no-index", "--target", str(tmp_path / "site"), str(wheel))
    code = "import poise, sys; from poise.cli import main; sys.stderr.write(poise.__file__); main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "recipes"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == str(tmp_path / "site" / "poise" / "__init__.py")
    assert {line.split()[0] for line in done.stdout.splitlines()} >= {"digits/lucir", "cifar100/lucir"}


def test_what_describes_the_package_is_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        text = opened.read(f"poise-{poise.__version__}.dist-info/METADATA").decode()
    head, _, readme = text.partition("\n\n")
    fields = {line.partition(": ")[0] for line in head.splitlines()}
    assert {"Summary", "Author", "Maintainer", "License-Expression", "Keywords", "Classifier"} <= fields
    assert "Requires-Python: >=3.11" in head
    assert readme.startswith("# poise\n")


#: Packages by what brings them, where that has another name and need not be installed here.
BROUGHT_BY = {"triton": "torch", "mlflow": "mlflow-skinny"}


def test_every_import_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [each for name, group in project["optional-dependencies"].items() if name != "dev" for each in group]
    declared = {canonicalize_name(Requirement(each).name) for each in [*project["dependencies"], *extras]}
    imported: dict[str, str] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        imported |= dict.fromkeys(imported_packages(ast.parse(path.read_text("utf-8"))), path.name)
    assert {"torch", "numpy", "PIL", "sklearn"} <= imported.keys()
    owners = metadata.packages_distributions()
    for name, module in imported.items():
        known = {*owners.get(name, [name]), BROUGHT_BY.get(name, name)}
        assert declared & set(map(canonicalize_name, known)), f"{module} imports {name}; declare it in pyproject.toml"


def imported_packages(tree: ast.AST) -> Iterator[str]:
    """The packages of others that a module imports, wherever it does."""
    for node in ast.walk(tree):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        packages = {name.partition(".")[0] for name in names}
        yield from packages - sys.stdlib_module_names - {"poise"}


def test_the_lock_file_is_current_and_names_no_index_but_pypi() -> None:
    text = (ROOT / "uv.lock").read_text("utf-8")
    assert set(re.findall(r"\w+://[^/\"]+", text)) == {"https://pypi.org", "https://files.pythonhosted.org"}
    packages = tomllib.loads(text)["package"]
    (own,) = (each for each in packages if each["name"] == "poise")
    locked = {
        (each["name"], each.get("specifier", ""), each.get("marker", "")) for each in own["metadata"]["requires-dist"]
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    wanted = {
        (canonicalize_name(each.name), str(each.specifier), f"extra == '{extra}'" if extra else "")
        for extra, group in groups.items()
        for each in map(Requirement, group)
    }
    assert locked == wanted, "pyproject.toml was changed: run 'make lock'"
    versions = {(each["name"], each.get("version")) for each in packages}
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if "==" in line]
    for pin in pins:
        assert (pin.name, str(pin.specifier).removeprefix("==")) in versions, f"{pin} is not locked: run 'make lock'"


def test_the_version_is_in_one_place() -> None:
    number = re.escape(poise.__version__)
    sources = [*(ROOT / "src" / "poise").rglob("*.py"), ROOT / "pyproject.toml"]
    assigned = [path for path in sources if re.search(rf"version\S* *= *[\"']{number}[\"']", path.read_text("utf-8"))]
    assert [path.name for path in assigned] == ["__init__.py"]
    assert metadata.version("poise") == poise.__version__


def test_importing_poise_is_light() -> None:
    code = "import sys, poise; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "poise" in loaded
    assert not loaded & {"sklearn", "matplotlib", "torchvision", "pydantic", "typer", "rich"}


#: Where policies and tuners are made; and reports, which compare results with the baseline by its name.
KNOW_NAMES = ("policies/", "tuning/bilevel.py", "tuning/offline.py", "tuning/catalog.py", "report/")


def compared_words(tree: ast.AST) -> Iterator[tuple[int, object]]:
    """Every constant that a value is compared with, alone or in a list of them."""
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        for part in parts:
            each = part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part]
            yield from ((one.lineno, one.value) for one in each if isinstance(one, ast.Constant))


def test_no_policy_is_asked_for_by_its_name() -> None:
    """What a policy needs is known of its kind: another one, registered by a user, is treated the same."""
    package = ROOT / "src" / "poise"
    found = [
        f"{name}:{line} {word}"
        for path in sorted(package.rglob("*.py"))
        if not (name := path.relative_to(package).as_posix()).startswith(KNOW_NAMES)
        for line, word in compared_words(ast.parse(path.read_text("utf-8")))
        if word in tuner_names()
    ]
    assert found == []
    example = ast.parse("a == 'online' or 'exp3' != b or c in ('race', 1)\nmatch d:\n case 'fixed': pass")
    assert {word for _, word in compared_words(example)} == {"online", "exp3", "race", 1, "fixed"}
