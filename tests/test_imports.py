"""Imports point one way."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ringfence"
BASIC = {"__version__", "errors", "files", "values"}
# What a package may import of ringfence besides itself.
ALLOWED = {"deploy": BASIC | {"kernels"}, "algorithms": BASIC | {"data", "limits", "networks", "kernels", "randomness"}}
HEAVY = {"jax", "jaxtyping", "equinox", "optax", "h5py", "pyarrow", "rich", "matplotlib", "scipy", "gymnasium"}


def imported(file):
    """The modules that a file imports when it is imported itself."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", ["deploy", "algorithms"])
def test_a_package_imports_only_those_before_it(package):
    for file in (SOURCE / package).rglob("*.py"):
        ours = {name.split(".")[1] for name in imported(file) if name.startswith("ringfence.")}
        assert ours <= ALLOWED[package] | {package}, file.name


def test_deploy_needs_numpy_and_safetensors_alone():
    """Of the kernels it may import `library`, which finds the compiled library, and nothing that needs JAX."""
    for file in [*(SOURCE / "deploy").rglob("*.py"), SOURCE / "kernels" / "library.py"]:
        kernels = {name for name in imported(file) if name.startswith("ringfence.kernels")}
        assert all(name.startswith("ringfence.kernels.library.") for name in kernels), file.name
        assert not {name.split(".")[0] for name in imported(file)} & HEAVY, file.name
