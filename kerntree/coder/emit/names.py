"""Names and types of a kernel's values: what a person would call them."""

import keyword
import re
from collections import Counter
from collections.abc import Callable, Sequence

from kerntree.coder.emit.cpp_text import literal
from kerntree.coder.kernel import At, Constant, Index, Kernel, Load, LoadIndexed, Point, Reduce
from kerntree.coder.types import Scalar, compute_type

_TESTS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf"})
_RESERVED = frozenset(
    "auto bool char const double float int long short signed unsigned void if else for while do "
    "switch case default break continue return goto struct union class enum template typename "
    "namespace new delete this operator sizeof static extern inline volatile register threads "
    "lanes block next chunk begin end width half exp log sin cos tan pow sqrt floor ceil erf "
    "round trunc fmod true false and or not xor signal stream taken share".split()
)
_OWN = re.compile(r"[in]\d+")  # indices and extents
_OF_METHODS = frozenset(
    "self torch triton float min dict inputs leaves given_form form_of FORMS FORM CONFIG SEARCHED "
    "nearest case size_of parts chunk arrived tiles tensors sizes processors check_room "
    "library".split()
)


def identifier(name: str) -> str:
    """A graph name as an identifier of both C++ and Python."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    if text in _RESERVED or keyword.iskeyword(text) or _OWN.fullmatch(text) or text[:1].isdigit():
        text += "_"
    return text


def labels(names: Sequence[str]) -> list[str]:
    """Names as identifiers, each another one."""
    found: list[str] = []
    for name in names:
        text = re.sub(r"\W", "_", name, flags=re.ASCII)
        while text in found:
            text += "_"
        found.append(text)
    return found


def argument(name: str) -> str:
    """An input's name in the module's methods, apart from the names that their text uses."""
    text = identifier(name)
    return text + "_" if text in _OF_METHODS or text.startswith("parts_") else text


class Names:
    """`names[value]` is its name; `types` gives compute types, `constants` literals as text."""

    def __init__(self, kernel: Kernel, *, literal: Callable[[Scalar, str], str] = literal) -> None:
        self._names: dict[str, str] = {}
        self.types: dict[str, str] = {}
        self.constants: dict[str, str] = {}
        taken: Counter[str] = Counter()
        self._tensors = {identifier(tensor) for tensor in (*kernel.reads, *kernel.writes)}
        for instruction in kernel.body:
            match instruction:
                case Load() | LoadIndexed():
                    self._add(taken, instruction.result, f"{instruction.access.tensor}_at")
                    self.types[instruction.result] = compute_type(instruction.dtype)
                case Constant():
                    self.types[instruction.result] = instruction.dtype
                    self.constants[instruction.result] = literal(
                        instruction.value, instruction.dtype
                    )
                case Index():
                    self._add(taken, instruction.result, f"position_{instruction.dim}")
                    self.types[instruction.result] = "int64"
                case Point():
                    self._add(taken, instruction.result, f"{instruction.function}_")
                    is_test = instruction.function in _TESTS
                    self.types[instruction.result] = "bool" if is_test else instruction.dtype
                case Reduce():
                    function = instruction.function
                    words = {
                        "online_softmax": ("max_", "sum_exp_"),
                        "moments": ("mean_", "squares_"),
                    }.get(function, (f"{function}_",))
                    for name, word in zip(instruction.results, words, strict=True):
                        self._add(taken, name, word)
                        position = function in ("argmax", "argmin")
                        self.types[name] = "int64" if position else instruction.dtype
                case At():
                    self._add(taken, instruction.result, "taken_at")
                    self.types[instruction.result] = instruction.dtype
                case _:
                    pass

    def __getitem__(self, name: str) -> str:
        return self._names[name]

    def _add(self, taken: Counter[str], name: str, word: str) -> None:
        while True:
            taken[word] += 1
            bare = word.endswith("_at") and taken[word] == 1
            chosen = identifier(word if bare else f"{word}{taken[word]}")
            if chosen not in self._tensors:
                break
        self._names[name] = chosen
