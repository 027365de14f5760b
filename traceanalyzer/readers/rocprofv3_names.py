"""Names behind the numbers of rocprofv3's records: kernels, and kinds and operations of the records themselves."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from traceanalyzer.readers.kineto_facts import integer

if TYPE_CHECKING:
    import pyarrow as pa

_CLONE: Final = "[clone "
_COPY: Final = re.compile(r"(?:MEMORY_COPY_)?(HOST|DEVICE)_TO_(HOST|DEVICE)\Z")
_ENDS: Final = {"HOST": ("H", "Host"), "DEVICE": ("D", "Device")}


def kernel_name(symbol: dict[str, Any]) -> str | None:
    """Return the richest name that a kernel symbol has, without `.kd` and clone suffixes; None for a placeholder.

    The formatted name is the one to take, unless the run was told to truncate or to mangle it; then the demangled
    name says more.

    >>> kernel_name({"formatted_kernel_name": "f", "demangled_kernel_name": "void f<int>(int) [clone .kd]"})
    'void f<int>(int)'
    """
    formatted, demangled, mangled = (
        _plain(symbol.get(f"{which}kernel_name")) for which in ("formatted_", "demangled_", "")
    )
    if formatted and not formatted.startswith("_Z") and not (demangled and _is_cut(formatted, demangled)):
        return formatted
    return demangled or formatted or mangled or _plain(symbol.get("truncated_kernel_name"))


def _plain(name: object) -> str | None:
    text = name if isinstance(name, str) else ""
    while True:
        if text.endswith(".kd"):
            text = text[: -len(".kd")]
        elif text.endswith("]") and (at := text.rfind(_CLONE)) > 0 and "]" not in text[at:-1]:
            text = text[:at].rstrip()
        else:
            return text if text not in ("", "0") else None


def _is_cut(name: str, whole: str) -> bool:
    """Say whether a name is the base name of a whole one: the same without return type, scope and arguments."""
    return len(name) < len(whole) and name in whole and not whole.startswith("_Z")


def copy_name(operation: str | None, *, between_gpus: bool = False) -> str | None:
    """Return a copy's name as PyTorch's profiler has it, by rocprofv3's name of the direction.

    >>> copy_name("HOST_TO_DEVICE")
    'Memcpy HtoD (Host -> Device)'
    """
    match = _COPY.match(operation or "")
    if not match:
        return operation
    (short_source, source), (short_target, target) = (_ENDS[end] for end in match.groups())
    short = "PtoP" if between_gpus else f"{short_source}to{short_target}"
    return f"Memcpy {short} ({source} -> {target})"


@dataclass
class KernelNames:
    """Names of kernels by kernel id."""

    ids: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    openings: list[str] = field(default_factory=list)
    """How the args of a kernel begin: with the truncated name, by which TraceLens groups."""
    _made: tuple[pa.Array, pa.Array, pa.Array] | None = None

    def add(self, symbol: dict[str, Any]) -> None:
        """Take in a kernel symbol."""
        number, name = integer(symbol.get("kernel_id")), kernel_name(symbol)
        if number is None or name is None:
            return
        self.ids.append(number)
        self.names.append(name)
        truncated = symbol.get("truncated_kernel_name")
        self.openings.append(opening(truncated if isinstance(truncated, str) else None))

    def columns(self, ids: pa.ChunkedArray) -> tuple[pa.Array, pa.Array, int]:
        """Return (names, openings of args, number of kernels whose name is not known) for a column of kernel ids."""
        import pyarrow as pa
        import pyarrow.compute as pc

        flat = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
        known, names, openings = self._columns()
        at = pc.index_in(flat, value_set=known)
        names, openings = pc.take(names, at), pc.take(openings, at)
        if unknown := at.null_count:
            openings = pc.fill_null(openings, "{")
            names = pc.coalesce(names, pc.binary_join_element_wise("kernel_", pc.cast(flat, pa.string()), ""))
        return names, openings, unknown

    def _columns(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return ids, names and openings; they are made once, since there can be thousands, and asked for per block."""
        import pyarrow as pa

        if not self._made or len(self._made[0]) != len(self.ids):
            texts = (pa.array(self.names, pa.string()), pa.array(self.openings, pa.string()))
            self._made = (pa.array(self.ids, pa.int64()), *texts)
        return self._made


def opening(truncated: str | None) -> str:
    """Return how args begin that keep a truncated name."""
    return "{" if truncated is None else f'{{"truncated_kernel_name":{json.dumps(truncated, ensure_ascii=False)},'


@dataclass
class RecordNames:
    """What the numbers of kinds and operations mean in one file; they differ between versions."""

    groups: dict[str, list[tuple[str, list[str]]]] = field(default_factory=dict)

    @classmethod
    def of(cls, strings: object) -> RecordNames:
        """Read `strings` of a process; what has another form than expected is passed over."""
        names = cls()
        for group, kinds in strings.items() if isinstance(strings, dict) else ():
            if group.endswith("_records") and isinstance(kinds, list):
                names.groups[group] = [_kind(kind) for kind in kinds]
        return names

    def kind(self, group: str, kind: str | None) -> str | None:
        """Return the name of a kind, None when the file does not say it."""
        kinds, number = self.groups.get(group, []), integer(kind, 0)
        if number is None:
            return kind
        return kinds[number][0] if number < len(kinds) else None

    def operation(self, group: str, kind: str | None, operation: str | None) -> str | None:
        """Return the name of an operation, None when the file does not say it; what is no number is a name."""
        number, which = integer(operation, 0), integer(kind, 0)
        if number is None:
            return operation
        kinds = self.groups.get(group, [])
        operations = kinds[which][1] if which is not None and which < len(kinds) else []
        return operations[number] if number < len(operations) else None


def _kind(value: object) -> tuple[str, list[str]]:
    if not isinstance(value, dict):
        return "", []
    operations = value.get("operations")
    texts = [str(o) for o in operations] if isinstance(operations, list) else []
    return str(value.get("kind", "")), texts
