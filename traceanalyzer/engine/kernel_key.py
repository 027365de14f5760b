"""One key for a kernel, however a collector spells its name.

The PyTorch profiler writes `void f<4, g<float> >(int, float*)`, rocprofv3 `f<4, g<float>>(int, float*) [clone .kd]` or
the mangled symbol, rocm_trace_lite `f<4, g<float> >`, cut before the first parenthesis even where that stands inside of
template arguments. The key has no suffixes, no return type, no parameters, and one spelling of spaces and literals;
`cut_key` is the key of what rocm_trace_lite makes of the name. Brackets nest, which SQL does badly: so this is Python,
done once for each different name of a trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIX: Final = re.compile(
    r"(?:\s*\[clone [^\]]*\]|\s*\(\.kd\)|\.kd|\.(?:isra|part|constprop|cold|llvm)(?:\.\d+)*)\s*\Z"
)
"""What compilers and loaders put behind a symbol."""
_LONGEST_SUFFIX: Final = 200
_IS_COPY: Final = re.compile(r"(?:Memcpy|Memset)\b")
"""Names that the PyTorch profiler made; what is in their parentheses tells them apart."""
_OPERATOR: Final = re.compile(r"\boperator\s*(?:\(\)|\[\]|->\*?|<=>|<<=?|>>=?|[-+*/%^&|~!=<>]=?|&&|\|\||\+\+|--)?")
_QUALIFIED: Final = re.compile(r"(?:\s*(?:const|volatile|noexcept|&&?))*\s*(?=::)")
"""What can stand between the parameters of a function and the name of something inside of it."""
_CUT: Final = re.compile(r"\((?!anonymous namespace\))")
"""Where rocm_trace_lite cuts."""
_NAME_BEFORE: Final = re.compile(r"[A-Za-z_]\w*\Z")
_LONGEST_NAME: Final = 1000
_LITERALS: Final = (
    (re.compile(r"\(bool\)([01])\b"), lambda match: ("false", "true")[int(match.group(1))]),
    (re.compile(r"\((?:un)?(?:signed )?(?:char|short|int|long|long long)\)(?=-?\d)"), ""),
    (re.compile(r"(?<![\w.])(\d+)(?:ull|ul|u|ll|l)\b", re.IGNORECASE), r"\1"),
    (re.compile(r"\bstd::bfloat16_t\b"), "__bf16"),
    (re.compile(r"\bvoid (?=[A-Za-z_]|\(anonymous)(?!const\b|volatile\b)"), ""),  # some write it in arguments too
    (re.compile(r"`anonymous namespace'|\{anonymous\}|'anonymous namespace'"), "(anonymous namespace)"),
)
"""The same value as different demanglers write it."""
_PAIRS: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}


def kernel_key(name: str) -> str:
    """Return the key of a kernel's name, as any collector spells it; '' only for a name of spaces.

    Mangled names are demangled where a demangler is installed, else they stay as they are. A name that the collector
    cut gives the beginning of its key.
    """
    text = _demangled(_without_suffixes(name))
    if _IS_COPY.match(text):
        return " ".join(text.split())
    for pattern, replacement in _LITERALS:
        text = pattern.sub(replacement, text)
    return _without_spaces(_function(text)) or " ".join(text.split())


def cut_key(name: str) -> str:
    """Return the key of what rocm_trace_lite would have written for a name: cut before its first parenthesis.

    It drops the return type only where a space stands before the first `::`, and leaves alone what is mangled.
    """
    text = _without_suffixes(name)
    if text.startswith("_Z") or _IS_COPY.match(text):
        return kernel_key(name)
    scope, separator, rest = text.partition("::")
    if separator and " " in scope.removesuffix("(anonymous namespace)"):
        text = scope.partition(" ")[2] + separator + rest
    return kernel_key(_CUT.split(text)[0])


def table(names: Iterable[str | None]) -> pa.Table:
    """Return the columns name, kernel_key, cut_key of different names; NULL has no keys."""
    import pyarrow as pa

    known = [name for name in names if name is not None]
    columns = {"name": known, "kernel_key": map(kernel_key, known), "cut_key": map(cut_key, known)}
    return pa.table({column: pa.array(values, pa.string()) for column, values in columns.items()})


def _without_suffixes(name: str) -> str:
    text = " ".join(name.split())
    while (suffix := _SUFFIX.search(text, max(len(text) - _LONGEST_SUFFIX, 0))) and suffix.start():
        text = text[: suffix.start()]
    return text


def _demangled(name: str) -> str:
    if not name.startswith("_Z"):
        return name
    try:
        import cpp_demangle

        return str(cpp_demangle.demangle(name))
    except (ImportError, ValueError):  # not on this machine, or no name of a C++ compiler
        return name


def _function(text: str) -> str:
    """Return the function's name with its scopes and template arguments, without return type and parameters."""
    start = at = 0
    while at < len(text):
        if operator := _operator_at(text, at):
            at += len(operator)
        elif text[at] == "(":
            behind = _closing(text, at)
            scope = _QUALIFIED.match(text, behind)
            is_part = text.startswith("(anonymous namespace)", at) or text.endswith("decltype", start, at)
            if not scope and not is_part:
                return text[start:at]
            text = text[:behind] + text[scope.end() :] if scope else text
            at = behind
        elif text[at] in _PAIRS:
            at = _closing(text, at)
        else:
            at += 1
            if text[at - 1] == " " and text[at:].strip() and text[at] not in " *&(<":
                start = at
    return text[start:]


def _closing(text: str, at: int) -> int:
    """Return where the bracket that opens at `at` is closed, behind it; the end where a collector cut the name."""
    awaited = [_PAIRS[text[at]]]
    at += 1
    while awaited and at < len(text):
        if operator := _operator_at(text, at):
            at += len(operator)
            continue
        char = text[at]
        if char == awaited[-1]:
            awaited.pop()
        elif char in _PAIRS and (char != "<" or awaited[-1] != ")" or _opens_arguments(text, at)):
            awaited.append(_PAIRS[char])
        at += 1
    return at


def _opens_arguments(text: str, at: int) -> bool:
    """Say whether a `<` inside of parentheses opens template arguments: it then follows a name; else it compares."""
    return bool(_NAME_BEFORE.search(text[max(at - _LONGEST_NAME, 0) : at]))


def _operator_at(text: str, at: int) -> str:
    """Return the operator function's name that begins at `at`, '' when none does."""
    if text[at] != "o" or (at and (text[at - 1].isalnum() or text[at - 1] == "_")):
        return ""
    match = _OPERATOR.match(text, at)
    if not match or (text[match.end() : match.end() + 1].isidentifier() and match.group() == "operator"):
        return ""
    return match.group()


def _without_spaces(text: str) -> str:
    """Return the text with spaces only where they keep words apart."""
    return re.sub(r"\s*([^\w\s])\s*", r"\1", " ".join(text.split()))
