"""Imports point one way."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ringfence"
# A module or package imports only those before it.
ORDER = (
    *("__version__", "errors", "values", "files", "progress", "limits", "steps", "kernels", "randomness"),
    *("deploy", "data", "tasks", "tabular", "networks", "optimise", "algorithms", "training", "evaluation"),
    *("behaviour", "launch", "api", "reports", "experiments", "cli", "__main__"),
)
LATER = {("evaluation/result.py", "reports")}  # `Evaluation.print`, when it is called
# What these may import of ringfence besides themselves.
BASIC = {"__version__", "errors", "files", "values"}
ALLOWED = {
    "deploy": BASIC | {"kernels", "limits"},
    "algorithms": BASIC | {"data", "limits", "networks", "optimise", "steps"},
}
HEAVY = {"jax", "jaxtyping", "equinox", "optax", "h5py", "pyarrow", "rich", "matplotlib", "scipy", "gymnasium"}


def imported(file):
    """The modules that a file imports, inside its functions too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(file):
    return {name.split(".")[1] for name in imported(file) if name.startswith("ringfence.")}


def test_every_file_imports_only_what_is_before_it():
    backwards = set()
    for file in sorted(SOURCE.rglob("*.py")):
        path = file.relative_to(SOURCE)
        if path.name == "__init__.py" and len(path.parts) == 1:
            continue  # `import ringfence` gives the names of all, each when it is first used
        place = ORDER.index(path.with_suffix("").parts[0])
        backwards |= {(str(path), name) for name in ours(file) if ORDER.index(name) > place}
    assert backwards == LATER


@pytest.mark.parametrize("package", ["deploy", "algorithms"])
def test_a_package_that_stands_alone_imports_few_others(package):
    for file in (SOURCE / package).rglob("*.py"):
        assert ours(file) <= ALLOWED[package] | {package}, file.name


def test_deploy_needs_numpy_and_safetensors_alone():
    """Of the kernels it may import `library`, which finds the compiled library, and nothing that needs JAX."""
    for file in [*(SOURCE / "deploy").rglob("*.py"), SOURCE / "kernels" / "library.py"]:
        kernels = {name for name in imported(file) if name.startswith("ringfence.kernels")}
        assert all(name.startswith("ringfence.kernels.library.") for name in kernels), file.name
        assert not {name.split(".")[0] for name in imported(file)} & HEAVY, file.name
