"""What is installed: the wheel with its recipes and without tests, one version, and a light import."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

import poise

ROOT = Path(__file__).parents[1]
FILES = (".py", ".toml", ".html", ".css", ".js")
ADDRESS = "https://example.org/poise"
#: The oldest Python that is supported, and the newest with a PyTorch for it.
PYTHONS = ("3.11", "3.13")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with source archive and wheel, made from a copy that names a repository, as the owner's will."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    with (copy / "pyproject.toml").open("a") as project:
        project.write(f'\n[project.urls]\nRepository = "{ADDRESS}"\n')
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(copy / "dist"), str(copy))
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def call(*words: str, cwd: Path | None = None) -> str:
    """The output of a program that finds neither the clone nor its settings."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_recipes_types_and_licence_but_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "poise"
    wanted = [path for path in package.rglob("*") if path.suffix in FILES or path.name == "py.typed"]
    assert {f"poise/{path.relative_to(package).as_posix()}" for path in wanted} <= names
    recipes = [name for name in names if name.startswith("poise/recipes/") and name.endswith(".toml")]
    assert len(recipes) == len(list(package.glob("recipes/**/*.toml"))) > 0
    assert any(name.endswith("/LICENSE") for name in names)
    info = f"poise_cil-{poise.__version__}.dist-info/"
    assert all(name.startswith(("poise/", info)) for name in names)
    assert not any(name.startswith("test") for name in names)


def test_the_source_archive_holds_what_builds_the_wheel(built: Path) -> None:
    with tarfile.open(built / f"poise_cil-{poise.__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "CHANGELOG.md", "src/poise/py.typed"} <= names
    assert not any(name.startswith("tests") for name in names)


def test_what_describes_the_package_is_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        text = opened.read(f"poise_cil-{poise.__version__}.dist-info/METADATA").decode()
    head, _, readme = text.partition("\n\n")
    fields = {line.partition(": ")[0] for line in head.splitlines()}
    assert {"Summary", "Author", "Maintainer", "License-Expression", "Keywords", "Classifier"} <= fields
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    said = (
        "Name: poise-cil",
        f"Version: {poise.__version__}",
        "Requires-Python: >=3.11",
        f"Project-URL: Repository, {ADDRESS}",
    )
    assert {*said, *(f"Provides-Extra: {extra}" for extra in extras)} <= set(head.splitlines())
    assert readme.startswith("# poise\n")
    assert f"({ADDRESS}/blob/HEAD/LICENSE)" in readme
    assert "](docs/" not in readme


def test_links_become_absolute_where_the_repository_is_known() -> None:
    absolute = runpy.run_path(str(ROOT / "setup.py"))["with_absolute_links"]
    text = "[a](docs/a.md#b) ![p](p.svg) [![q](q.png)](q.html) [c](https://c.org) [d](#d)\n```text\n[e](f)\n```\n"
    assert absolute(text, "") == text
    assert absolute(text, "https://x.org/y") == (
        "[a](https://x.org/y/blob/HEAD/docs/a.md#b) ![p](https://x.org/y/raw/HEAD/p.svg) "
        "[![q](https://x.org/y/raw/HEAD/q.png)](https://x.org/y/blob/HEAD/q.html) [c](https://c.org) [d](#d)\n"
        "```text\n[e](f)\n```\n"
    )


def test_the_installed_wheel_works_outside_the_clone(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, which borrows the libraries of this one."""
    venv.create(tmp_path / "clean")
    python = tmp_path / "clean" / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    (site,) = (tmp_path / "clean" / "lib").glob("*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"])  # editable installs in it are not followed
    follow_the_readme(tmp_path)


@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_is_installed_with_all_its_libraries(wheel: Path, tmp_path: Path, version: str) -> None:
    if "POISE_INSTALL" not in os.environ:
        pytest.skip("downloads gigabytes: make test-install")
    if (python := interpreter(version)) is None:
        pytest.skip(f"no Python {version} here")
    call(python, "-m", "venv", str(tmp_path / "clean"))
    call(str(tmp_path / "clean" / "bin" / "python"), "-m", "pip", "--quiet", "install", str(wheel))
    follow_the_readme(tmp_path)


def interpreter(version: str) -> str | None:
    """An interpreter of that version that answers: a launcher on the path may stand for none."""
    found = shutil.which(f"python{version}")
    return found if found and not subprocess.run([found, "-V"], capture_output=True, check=False).returncode else None


def follow_the_readme(folder: Path) -> None:
    """What a first-time user does, by the environment `clean` in the folder."""
    poise_command = str(folder / "clean" / "bin" / "poise")
    generator = np.random.default_rng(0)
    for place, name in enumerate(("cat", "dog")):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(4):
            pixels = generator.integers(0, 60, (32, 32, 3)) + 150 * (np.arange(3) == place)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / "photos" / name / f"{number}.png")
    assert "digits/lucir" in call(poise_command, "recipes", cwd=folder)
    call(poise_command, "run", "digits/lucir", "groups=[2,1]", "epochs=1", "images_per_class=20", cwd=folder)
    call(poise_command, "learn", "pets.safetensors", "photos", "--net", "small", "--epochs", "1", cwd=folder)
    assert "cat" in call(poise_command, "predict", "pets.safetensors", "photos/cat/0.png", cwd=folder)
    assert list(folder.glob("runs/*/report/index.html"))


#: Packages by what brings them, where that has another name and need not be installed here.
BROUGHT_BY = {"triton": "torch", "mlflow": "mlflow-skinny"}


def test_every_import_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [
        each
        for name, group in project["optional-dependencies"].items()
        if name not in ("dev", "docs")
        for each in group
    ]
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
    (own,) = (each for each in packages if each["name"] == "poise-cil")
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
    assert poise.__version__ in (ROOT / "CHANGELOG.md").read_text("utf-8")
