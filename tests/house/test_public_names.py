"""Every public name of the package exists and has a description."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

import workbench
from tools import house
from workbench import errors
from workbench.errors import DeviceError, WorkbenchError

STDLIB_BASES = {
    "NotPermitted": PermissionError,
    "OutOfRange": ValueError,
    "UnknownGpu": LookupError,
    "UsageError": ValueError,
}
ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, WorkbenchError)]


@pytest.mark.parametrize("name", workbench.__all__)
def test_a_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(workbench, name)
    assert inspect.isclass(value) or callable(value)
    doc = inspect.getdoc(value) or ""
    assert doc.split("\n")[0].rstrip(" `").endswith((".", ":"))
    assert len(doc) > 20


@pytest.mark.parametrize(
    "first",
    [
        "import workbench.device.discovery",
        "from workbench.device.discovery import open_device",
        "workbench.devices",
    ],
)
def test_devices_is_the_function_after_any_earlier_import(first: str) -> None:
    code = (
        f"import workbench\n{first}\nfrom workbench import devices\nassert devices is "
        "workbench.devices\ndevices()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_are_listed_sorted_and_shown() -> None:
    assert list(workbench.__all__) == sorted(workbench.__all__)
    assert set(workbench.__all__) <= set(dir(workbench))
    assert all(hasattr(workbench, name) for name in workbench.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'mesure'"):
        workbench.mesure  # noqa: B018


@pytest.mark.parametrize("name", [name for name in workbench.__all__ if name[0].islower()])
def test_a_public_function_has_type_annotations(name: str) -> None:
    signature = inspect.signature(getattr(workbench, name))
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(each.annotation is not inspect.Parameter.empty for each in signature.parameters.values())


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_is_ours_and_keeps_its_sentence(kind: Callable[[str], WorkbenchError]) -> None:
    error = kind("9 W is outside")
    assert isinstance(error, WorkbenchError)
    assert str(error) == "9 W is outside"
    if isinstance(error, DeviceError):
        assert error.code is None


@pytest.mark.parametrize(("name", "base"), STDLIB_BASES.items())
def test_errors_that_have_a_cousin_in_python_are_caught_as_such(name: str, base: type[Exception]) -> None:
    assert issubclass(getattr(errors, name), base)


def test_the_tree_at_the_top_of_the_file_is_the_tree() -> None:
    drawn = {
        term
        for term in (errors.__doc__ or "").replace("─", " ").split()
        if term[:1].isupper() and hasattr(errors, term)
    }
    assert drawn == {kind.__name__ for kind in ERRORS}
    assert all(kind.__doc__ for kind in ERRORS)


def test_the_map_of_the_rooms_names_the_public_module_files() -> None:
    for term in ("records", "device", "simulation", "meter", "session", "panels", "cli"):
        assert term in (workbench.__doc__ or "")


def test_public_functions_with_four_parameters_describe_them() -> None:
    missing = []
    for path in house.files():
        for scope in [house.tree(path), *(n for n in ast.walk(house.tree(path)) if isinstance(n, ast.ClassDef))]:
            for function in scope.body:
                if not isinstance(function, ast.FunctionDef) or function.name.startswith("_"):
                    continue
                asked = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
                names = [each.arg for each in asked if each.arg not in ("self", "cls")]
                text = ast.get_docstring(function) or ""
                private = isinstance(scope, ast.ClassDef) and scope.name.startswith("_")
                if len(names) > 3 and not private and "Args:" not in text and not text.startswith("As `"):
                    missing.append(f"{path.relative_to(house.ROOT)}:{function.lineno} {function.name}")
    assert missing == []


def test_every_argument_in_a_docstring_exists() -> None:
    wrong = []
    for path in house.files():
        for function in ast.walk(house.tree(path)):
            if not isinstance(function, ast.FunctionDef):
                continue
            given = [*ast.walk(function.args)]
            names = {each.arg for each in given if isinstance(each, ast.arg)}
            _, _, args = (ast.get_docstring(function) or "").partition("Args:\n")
            for found in re.findall(r"^    (\w[\w, ]*?): ", re.split(r"\n(?=\w)", args)[0], re.MULTILINE):
                wrong += [f"{path.name} {function.name}: {each}" for each in found.split(", ") if each not in names]
    assert wrong == []
