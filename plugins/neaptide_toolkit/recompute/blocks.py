"""Find the repeated blocks of a model."""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_REPEATED = 2


def find_blocks(
    model: nn.Module, pattern: str | Sequence[str] | None = None, exclude: Sequence[str] = ()
) -> list[tuple[str, nn.Module]]:
    """Return the model's blocks in order, as (qualified name, module).

    Without a `pattern`, the blocks are children of ModuleLists and Sequentials, and those children
    of ModuleDicts that have children themselves. A child is a block if at least two children of its
    class have parameters. If containers with blocks are nested, only the outermost container is
    searched. A module without a forward, such as a ModuleList in a ModuleList, is replaced by its
    children. With a `pattern`, or several, the blocks are the modules whose whole qualified name
    matches; `*` does not match a dot, and `**` in the place of a name matches any number of names.
    Blocks that match a pattern in `exclude` are left out. Raises ValueError if a pattern matches
    nothing, or if `pattern` matches a module without a forward or one inside another block.
    """
    named = [(name, module) for name, module in model.named_modules() if name]
    if pattern is None:
        found = _repeated_children(model)
    else:
        found = _named(named, [pattern] if isinstance(pattern, str) else pattern)
    for entry in exclude:
        if not any(_matches(name, entry) for name, _ in found):
            raise ValueError(_unmatched(entry, [name for name, _ in found]))
    left = [
        (name, module)
        for name, module in found
        if not any(_matches(name, entry) for entry in exclude)
    ]
    _check_apart(left)
    return left


def _named(
    named: Sequence[tuple[str, nn.Module]], patterns: Sequence[str]
) -> list[tuple[str, nn.Module]]:
    """Return the modules of `named` that match, in the order of `named`."""
    matching: dict[str, str] = {}
    for pattern in patterns:
        those = [name for name, _ in named if _matches(name, pattern)]
        if not those:
            raise ValueError(_unmatched(pattern, [name for name, _ in named]))
        matching |= dict.fromkeys(those, pattern)
    found = [(name, module) for name, module in named if name in matching]
    for name, module in found:
        if not _has_forward(module):
            raise ValueError(_uncalled(name, module, matching[name]))
    return found


def _check_apart(blocks: Sequence[tuple[str, nn.Module]]) -> None:
    around: dict[int, str] = {}
    for name, module in blocks:
        if id(module) in around:
            msg = f"{name!r} is a part of the block {around[id(module)]!r}; exclude one of them"
            raise ValueError(msg)
        around |= {id(part): name for part in module.modules() if part is not module}


def _repeated_children(model: nn.Module) -> list[tuple[str, nn.Module]]:
    chosen: list[str] = []
    blocks: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            continue
        if any(name.startswith(f"{outer}.") or not outer for outer in chosen):
            continue
        children = list(_called_children(name, module))
        if isinstance(module, nn.ModuleDict):  # it may hold two embeddings beside a list of blocks
            children = [(path, child) for path, child in children if any(child.children())]
        classes = [type(child) for _, child in children if any(True for _ in child.parameters())]
        repeated = {cls for cls in classes if classes.count(cls) >= _REPEATED}
        members = [(path, child) for path, child in children if type(child) in repeated]
        if members:
            chosen.append(name)
            blocks += members
    # A module may be listed twice: in a container, and inside a block of another container.
    inner = {id(part) for _, block in blocks for part in block.modules() if part is not block}
    return [(name, block) for name, block in blocks if id(block) not in inner]


def _called_children(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for key, child in module.named_children():
        path = f"{name}.{key}" if name else key
        if _has_forward(child):
            yield path, child
        else:
            yield from _called_children(path, child)


def _has_forward(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)


def _uncalled(name: str, module: nn.Module, pattern: str) -> str:
    return (
        f"{name!r} is a {type(module).__name__}, which has no forward and is never called; name "
        f"its children, such as '{pattern}.*'"
    )


def _matches(name: str, pattern: str) -> bool:
    return _match(name.split("."), pattern.split("."))


def _match(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    if not wanted:
        return not parts
    first, *others = wanted
    if first == "**":
        return any(_match(parts[start:], others) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], first) and _match(parts[1:], others)


def _unmatched(pattern: str, names: list[str]) -> str:
    close = get_close_matches(pattern, names, n=1, cutoff=0.4)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"no module name matches {pattern!r}{hint}"
