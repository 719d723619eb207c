"""What the code of a model asks of its attention, beyond a call of the registered function.

Some models compare the name of the attention with "sdpa", or compute with the mask themselves. The
plugin's own name and its ranges would change what they compute. Their source tells.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

_NAME = "_attn_implementation"
_TABLE = "ALL_ATTENTION_FUNCTIONS"
_ONLY_WITH_OPTION = {"using_eager": "reorder_and_upcast_attn"}
"""Variables of comparisons that count only if this option of the config is set (gpt2)."""
_IRRELEVANT = ("torch.", "transformers.", "builtins.", "abc.", "typing.", "collections.")
"""Where classes come from whose code is no model's."""
_MODELS = "transformers.models."
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def why_not(model: nn.Module, config: Any) -> str:
    """Return what in the code of a model's parts the plugin would change; empty if nothing.

    Args:
        model: a model of transformers.
        config: its config.
    """
    for module in sorted(_modules_of(model)):
        found = _findings(module)
        if found is None:
            return f"the source of {module} cannot be read"
        asked, masks, options = found
        if asked or any(getattr(config, option, False) for option in options):
            return "its code asks for the name of the attention"
        if masks:
            return "its code computes with the mask"
    return ""


def _modules_of(model: nn.Module) -> set[str]:
    """Return the names of the Python modules that define the classes of a model's parts."""
    kinds = {kind for part in model.modules() for kind in type(part).__mro__}
    names = {kind.__module__ for kind in kinds}
    return {
        name for name in names if name.startswith(_MODELS) or not f"{name}.".startswith(_IRRELEVANT)
    }


@cache
def _findings(name: str) -> tuple[bool, bool, frozenset[str]] | None:
    """Return whether code asks for the name, whether it uses masks, and options that decide."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return None
    nodes = [*ast.walk(tree)]
    options = frozenset(_option_of(node) for node in nodes) - {""}
    asked = any(_asks(node) for node in _later(tree))
    masks = any(_uses_mask(node) for node in nodes if isinstance(node, _Function))
    return asked, masks, options


def _later(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in which a name is asked for after a model is made, outermost first."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, _Function) and child.name in {"__init__", "post_init"}:
            continue
        if _is_standard(child) or _option_of(child):
            continue
        yield child
        yield from _later(child)


def _is_standard(node: ast.AST) -> bool:
    """Return whether a node looks the function up, copies the name, or says it."""
    if isinstance(node, ast.Call):
        return _looks_up(node)
    if isinstance(node, ast.Subscript):
        return ast.unparse(node.value) == _TABLE
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
        return all(isinstance(one, ast.Attribute) and one.attr == _NAME for one in node.targets)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotEq):
        # Older models look the function up where the name is not "eager".
        return isinstance(node.left, ast.Attribute) and (
            node.left.attr == _NAME and ast.unparse(node.comparators[0]) == "'eager'"
        )
    return isinstance(node, ast.JoinedStr)


def _option_of(node: ast.AST) -> str:
    """Return the option of the config that decides whether a comparison counts, or ""."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return ""
    return _ONLY_WITH_OPTION.get(node.targets[0].id, "")


def _looks_up(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "get_interface"


def _asks(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == _NAME and isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Constant) and node.value == _NAME


def _uses_mask(function: _Function) -> bool:
    """Return whether a function does more with a mask than to hand it on.

    It either makes the mask, or has it as an argument of attention.
    """
    made: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and _looks_up(node):
            made["attention_mask"] = 0
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _makes_mask(node.value):
            for target in node.targets:
                made.setdefault(ast.unparse(target), node.end_lineno or 0)
    return bool(made) and any(_touches(node, made) for node in ast.walk(function))


def _makes_mask(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return name.startswith("create_") and name.endswith("_mask")


def _touches(node: ast.AST, made: dict[str, int]) -> bool:
    """Return whether a node computes with one of these masks, after the line that makes it."""
    if isinstance(node, ast.Attribute | ast.Subscript):
        used: list[ast.AST] = [node.value]
    elif isinstance(node, ast.BinOp):
        used = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
        used = [node.operand]
    elif isinstance(node, ast.Call) and _prepares(node):
        # A padding mask is handed to functions that make masks, too, in functions of other kind.
        made = {name: line for name, line in made.items() if not line}
        used = [*node.args, *(one.value for one in node.keywords)]
    else:
        return False
    return any(
        isinstance(one, ast.Name) and one.id in made and one.lineno > made[one.id] for one in used
    )


def _prepares(call: ast.Call) -> bool:
    """Return whether a call makes another mask of its arguments, as `prepare_dynamic_mask` does."""
    return "mask" in ast.unparse(call.func).rpartition(".")[2]
