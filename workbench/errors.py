"""All errors, as one tree.

    WorkbenchError
    ├── DeviceError                 something about a GPU
    │   ├── NoDriver                no NVML here, or one that does not work
    │   ├── UnknownGpu              no such GPU (index, UUID, PCI id, simulated card)
    │   ├── NotSupported            this GPU, driver or guest cannot do it
    │   ├── NotPermitted            it could, with more rights
    │   ├── OutOfRange              a power limit or clock that the card does not take
    │   ├── GpuLost                 the GPU fell off the bus or needs a reset
    │   ├── Transient               the driver could not answer this time
    │   ├── DeviceHeld              another process is changing this GPU
    │   └── DriverError             any other NVML error
    ├── MeasurementError            no number can be given, and why
    ├── StoreError                  the measurements' directory
    ├── SimulationError             the simulated GPUs
    └── UsageError                  an option or argument that makes no sense

Every message names the value, the limit and the way out.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import inspect
import io
import itertools
import os
import re
import reprlib
import stat
import zlib
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
# of a small installation
LEFT_OUT = {"IPython", "anywidget", "bokeh", "cloudpickle", "ipywidgets", "lightgbm", "optuna", "tqdm"}
_SPACES = re.compile(r"[\t-\r\x85\u2028\u2029]")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"
                       r"\ud800-\udfff]")
MOST_VALUES = 100_000  # in one list: a search through more is a mistake, and takes the memory of the process


class WorkbenchError(Exception):
    """Base of everything that the workbench raises on purpose."""

    def __str__(self) -> str:
        return "\n".join(map(printable, shortened(super().__str__()).split("\n")))


class DeviceError(WorkbenchError):
    """Something about a GPU; `code` is the NVML return code where there was one."""

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class NoDriver(DeviceError):
    """There is no NVIDIA driver here, or one that does not work."""


class UnknownGpu(DeviceError, LookupError):
    """No GPU answers to that index, UUID, PCI id or card name."""


class NotSupported(DeviceError):
    """This GPU, its driver or the virtual machine cannot do this."""


class NotPermitted(DeviceError, PermissionError):
    """The GPU could do this for a user with more rights."""

    def __init__(self, message: str, *, code: int | None = None) -> None:
        DeviceError.__init__(self, message, code=code)


class OutOfRange(DeviceError, ValueError):
    """A power limit or clock that the card does not take."""


class GpuLost(DeviceError):
    """The GPU fell off the bus or needs a reset; it will not answer again by itself."""


class Transient(DeviceError):
    """The driver could not answer this time; the next call may succeed."""


class DeviceHeld(DeviceError):
    """Another process holds the right to change this GPU."""


class DriverError(DeviceError):
    """An NVML error without a class of its own."""


class MeasurementError(WorkbenchError):
    """No number can be given for this window; the message gives the reason."""


class StoreError(WorkbenchError):
    """The directory of measurements cannot be read or written."""


class SimulationError(WorkbenchError):
    """The simulated GPUs cannot do this."""


class UsageError(WorkbenchError, ValueError):
    """An option, unit or argument that makes no sense."""


def describe_error(error: BaseException) -> str:
    """What went wrong, in one sentence."""
    if isinstance(error, WorkbenchError) and str(error):
        return str(error)
    return re.sub(r"\[Errno \d+\] ", "", f"{type(error).__name__}: {error}")


# arguments, checked where they come in


def missing(what: str, extra: str, more: str = "") -> str:
    """That a library is missing, and the command that installs the extra of ours which brings it.

    Args:
        what: The library or libraries.
        extra: Of `pyproject.toml`.
        more: Packages to install with it.

    >>> missing("Dask", "cluster")
    "Dask is not installed here: pip install 'gpu-energy-workbench[cluster]'"
    """
    packages = f"{more} 'gpu-energy-workbench[{extra}]'".lstrip()
    return f"{what} is not installed here: pip install {packages}"


def pip_line(error: ModuleNotFoundError) -> str:
    """The library that a small installation lacks, with its install line."""
    package = str(error.name).partition(".")[0].replace("IPython", "ipython")
    return f"{package} is not installed here: pip install {package}"


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: arguments annotated as numbers, text, paths or lists of such are checked to be so.

    A number of another kind (NumPy's, a fraction) becomes Python's own; an annotation of anything else is not
    looked at.

    Raises:
        UsageError: an argument of another type; names it, its value and what is needed.
    """
    signature = inspect.signature(function)
    rules = _rules({name: each.annotation for name, each in signature.parameters.items()
                    if each.kind is not each.VAR_POSITIONAL})

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **options)
        except TypeError:
            return suggesting(function)(*args, **options)  # its error names the argument
        for name in rules.keys() & bound.arguments.keys():
            bound.arguments[name] = checked_value(name, bound.arguments[name], rules[name])
        try:
            return function(*bound.args, **bound.kwargs)
        except ModuleNotFoundError as error:
            if error.name in LEFT_OUT:
                raise ModuleNotFoundError(pip_line(error), name=error.name) from error
            raise

    return call


def suggesting(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: the error for an unknown keyword argument names a similar one."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        except TypeError:
            for name in options.keys() - known.keys():
                text = f"{function.__qualname__}() takes no {name}={near(name, known)}"
                raise TypeError(text.replace(".__init__", "")) from None
            raise

    return call


def check_fields(record: Any) -> None:
    """The same for the fields of a dataclass, from its `__post_init__`."""
    for name, kinds in _rules_of(type(record)).items():  # type: ignore[arg-type]
        object.__setattr__(record, name, checked_value(name, getattr(record, name), kinds))


def checked_value(name: str, value: Any, kinds: Iterable[str]) -> Any:
    """The value as one of these kinds ("int", "float", "bool", "str", "Path", "None", "[float]", ...).

    Raises:
        UsageError: it is none of them.
    """
    if value is None and "None" in kinds:
        return None
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a number of NumPy or PyTorch
        value = value.item()
    for kind in kinds:
        is_kind, make, _ = _KINDS[kind.strip("[]")]
        if kind.startswith("["):
            if is_list(value):
                return checked_list(name, value, kind.strip("[]"))
        elif is_kind(value):
            return make(value)
    if isinstance(value, str | Path) and "Path" in kinds:
        raise UsageError(f"{name}={shown(value)} is no valid path: it contains an invalid character, is "
                         "too long, or names an unknown user")
    wanted = [(kind.startswith("["), _KINDS[kind.strip("[]")][2]) for kind in kinds]
    types = " or ".join("a list, each of it " * several + word for several, word in wanted)
    of_type = "" if value is None else f" is of type {type(value).__name__}"
    raise UsageError(f"{name}={shown(value)}{of_type}; give {types}")


def checked_list(name: str, values: Iterable[Any], *kinds: str) -> tuple[Any, ...]:
    """The values, each of one of these kinds. Raises UsageError where one is not, or there are too many."""
    if not is_list(values):
        raise UsageError(f"{name}={shown(values)} is of type {type(values).__name__}; give a list")
    found = tuple(itertools.islice(values, MOST_VALUES + 1))
    if len(found) > MOST_VALUES:
        raise UsageError(f"{name} has more than {MOST_VALUES:,} values; give fewer")
    return tuple(checked_value(f"a value of {name}", each, kinds) for each in found)


def named_file(path: str | Path) -> Path:
    """The path of a file that a person has named, with `~` expanded.

    Raises:
        UsageError: no path; or a directory, device or pipe, which may never end.
    """
    found = Path(checked_value("path", path, ("Path",))).expanduser()
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(found.stat().st_mode):
            raise UsageError(f"{shown(str(path))} is no regular file; name one, or copy its content to one")
    return found


def read_file(path: str | Path, most_bytes: int = 128 * 2**20) -> bytes:
    """Return the content of a file that a person has named, unpacked if it is gzip.

    Args:
        path: The file.
        most_bytes: Largest size, of the file and of what it unpacks to.

    Raises:
        UsageError: no regular file, unreadable, damaged gzip, or larger than `most_bytes`.
    """
    found, size = named_file(path), 0
    raw = b""
    try:
        with found.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= most_bytes:
                raw = file.read(most_bytes + 1)
        if raw.startswith(b"\x1f\x8b"):
            import gzip

            with gzip.open(io.BytesIO(raw)) as unpacked:
                raw = unpacked.read(most_bytes + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise UsageError(f"{path} is damaged gzip: {error}") from error
    if max(size, len(raw)) > most_bytes:
        has = "unpacks to more" if size <= most_bytes else f"has {size / 1e6:,.0f} MB"
        raise UsageError(f"{path} {has}; files of up to {most_bytes / 1e6:,.0f} MB are read. Split it, or "
                         "keep fewer rows and columns")
    return raw


def printable(text: str) -> str:
    """Text on one line, without characters that control a terminal or the direction of writing.

    >>> printable("a\\tb\\x1b[2J")
    'a b�[2J'
    """
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", _SPACES.sub(" ", text))


def listed(names: Iterable[object], most: int = 12) -> str:
    """Names in a sentence: the first dozen, and how many more; "none" where there are none.

    >>> listed(["a", "b"]), listed(range(20), 2), listed([])
    ('a, b', '0, 1 and 18 more', 'none')
    """
    texts = [printable(" ".join(str(name)[:60].split())) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more or "none"


def near(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about an unknown name: the similar known one, else some of them, or `otherwise`.

    >>> near("power_limit", ["power_limit_w", "gpus"]), near("x", ["a", "b"])
    ('; did you mean power_limit_w?', '; choose a, b')
    """
    names = [each for each in known if each not in ("self", name)]
    similar = [each for each in names if each.startswith(name)] or difflib.get_close_matches(name, names)
    return f"; did you mean {similar[0]}?" if similar else f"; {otherwise or f'choose {listed(names)}'}"


def type_name(value: object) -> str:
    """The type of a value with its package, and the remedy for a table of pandas.

    >>> type_name(1.0)
    'float'
    """
    package, name = type(value).__module__.partition(".")[0], type(value).__name__
    if package == "pandas":
        return f"a pandas {name}; convert it with polars.from_pandas()"
    return name if package in ("builtins", "workbench") else f"{package}.{name}"


class Suggesting:
    """A class whose error for an unknown attribute names a similar one."""

    __slots__ = ()
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            known = () if name.startswith("_") else (each for each in dir(self) if each[0] != "_")
            raise AttributeError(f"{type(self).__name__} has no {name!r}{near(name, known)}")


def shortened(text: str, most: int = 900) -> str:
    """A sentence without its middle where a value in it is thousands of letters long."""
    return text if len(text) <= most else f"{text[: most // 2]} [...] {text[-most // 2 :]}"


def shown(value: object) -> str:
    """A value in a sentence: 80 letters at most."""
    try:
        text = reprlib.repr(value)
    except Exception:  # its own __repr__
        text = f"<{type(value).__name__}>"
    return " ".join(text[:80].split())


def is_list(value: object) -> bool:
    """Whether it is several values in a row, and no text, bytes or mapping."""
    several = isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | Mapping)
    return several and getattr(value, "shape", None) != ()  # an array of NumPy may be one number


def is_number(value: object) -> bool:
    """Whether it is a real number, and no truth value; NaN and infinity are numbers, too."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and isinstance(float(value), float)
    except OverflowError:
        return False


def _is_whole(value: Any) -> bool:
    return is_number(value) and float(value).is_integer() and abs(int(value)) < 2**63


def _is_seed(value: Any) -> bool:
    return is_number(value) and value >= 0 and (isinstance(value, Integral) or float(value).is_integer())


def is_path(value: object) -> bool:
    """Whether a file could be called so: no NUL, encodable, not too long, no user who is not there."""
    try:
        os.lstat(Path(value).expanduser())  # type: ignore[arg-type]
    except (RuntimeError, TypeError, ValueError):
        return False
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    return True


def _own(value: Any) -> Any:
    return value


_KINDS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Any], str]] = {  # test, conversion, words
    "int": (_is_whole, int, "a whole number"),
    "seed": (_is_seed, int, "a whole number of 0 or more"),
    "float": (is_number, lambda value: value if isinstance(value, int | float) else float(value), "a number"),
    "bool": (lambda value: type(value).__name__ in ("bool", "bool_"), bool, "True or False"),
    "str": (
        lambda value: isinstance(value, str), lambda value: value.encode("utf-8", "replace").decode(), "text",
    ),
    "list": (lambda value: isinstance(value, list | tuple), _own, "a list"),
    "Path": (is_path, lambda value: value if isinstance(value, str) else Path(value), "the path of a file"),
    "None": (lambda value: value is None, _own, "None"),
}
_LIST = re.compile(r"(?:Sequence|Iterable|tuple|list)\[(\w+)(?:, \.\.\.)?\]")


def _rules(annotations: Mapping[str, Any]) -> dict[str, list[str]]:
    """Kinds by name, of those annotations that consist of nothing but known ones."""
    rules = {}
    for name, annotation in annotations.items():
        kinds = [_LIST.sub(r"[\1]", part.strip()) for part in str(annotation).split("|")]
        if all(kind.strip("[]") in _KINDS for kind in kinds):
            kinds = ["seed" if (name, kind) == ("seed", "int") else kind for kind in kinds]
            rules[name] = [kind for kind in kinds if kind != "str" or "Path" not in kinds]
    return rules


@functools.cache
def _rules_of(record: Any) -> dict[str, list[str]]:
    return _rules(record.__annotations__)
