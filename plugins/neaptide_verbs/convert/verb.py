"""`neaptide config convert`: converts TOML, YAML and JSON, and other frameworks' settings."""

from __future__ import annotations

import json as jsons
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Parameter

from neaptide import config as configuration
from neaptide.cli.output import AsJson, Offers, print_json, print_note, print_text
from neaptide.errors import ConfigError
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import installed_plugins
from neaptide_toolkit.files import COMMENTS, write_new

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from neaptide.config import Format


def _frameworks() -> list[str]:
    from .foreign import frameworks  # noqa: PLC0415 - only completion calls it

    return frameworks()


def convert(
    source: Annotated[Path, Parameter(help="File to read; its suffix determines the format.")],
    target: Annotated[Path | None, Parameter(help="File to write.")] = None,
    /,
    *,
    to: Annotated[
        str | None,
        Parameter(help="`toml`, `yaml` or `json`; by default the suffix of TARGET."),
        Offers(configuration.all_formats),
    ] = None,
    from_: Annotated[
        str | None,
        Parameter(
            name="--from",
            help="Framework of the settings in SOURCE: `axolotl`, `deepspeed`, `llama-factory` or "
            "`torchtune`.",
        ),
        Offers(_frameworks),
    ] = None,
    json: AsJson = False,
) -> None:
    """Convert a configuration, or a part of one, to another format.

    Existing files are never overwritten. Without TARGET the result is printed. With `--from`, keys
    without an exact counterpart are listed on stderr.
    """
    from .comments import has_comments  # noqa: PLC0415 - the help does not need it

    notation = _notation(target, to, default="toml" if from_ else None)
    with _naming(source, "@"):
        text = configuration.read_text(source)
        read_as = configuration.by_suffix(source)
        table = read_as.parse(text)
    if from_ is None:
        with _naming(source, "in"):
            _check(table)
    remarks: list[dict[str, Any]] = []
    notes = [COMMENTS] if has_comments(text, read_as.name) else []
    if from_ is not None:
        from .foreign import translate  # noqa: PLC0415 - most conversions do not need it

        translation = translate(from_, table, installed_plugins().usable())
        table = translation.table
        configured(table)
        remarks = [attrs.asdict(remark) for remark in translation.remarks]
        notes += _lacking(table)
    with _naming(source, "in"):
        written = notation.dumps(table)
    if target is not None:
        write_new(target, written)
    for remark in remarks:
        verb = "differs" if remark["carried"] else "left out"
        print_note(f"{verb}: {_shown(remark)}: {remark['text']}")
    for note in notes:
        print_note(f"note: {note}")
    if json:
        path = None if target is None else str(target)
        print_json(
            {
                "path": path,
                "format": notation.name,
                "config": table,
                "remarks": remarks,
                "notes": notes,
            }
        )
    elif target is None:
        print_text(written)
    else:
        print_text(f"converted to {target}")


def _lacking(table: Mapping[str, Any]) -> list[str]:
    """Return a note if the settings name no model or no data."""
    missing = [name for name in ("model", "data") if name not in table]
    if not missing:
        return []
    what, where = " and no ".join(missing), " and ".join(f"[{name}]" for name in missing)
    these = "it" if len(missing) == 1 else "them"
    return [f"it has no {what}: name {these} in {where}, or pass your own"]


def _check(table: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the table is a configuration, or a part of one."""
    try:
        own = {key: value for key, value in table.items() if key != "$schema"}
        configuration.structure(own, installed_plugins())
    except ConfigError as error:
        from .foreign import framework_of  # noqa: PLC0415 - as above

        framework = framework_of(table)
        if framework is None:
            raise
        msg = f"these are settings of {framework}; add --from {framework}"
        raise ConfigError(msg) from error


def _notation(target: Path | None, to: str | None, default: str | None) -> Format:
    if target is not None:
        by_suffix = configuration.by_suffix(target)
        if to not in (None, by_suffix.name):
            msg = f"--to {to} contradicts the suffix of {target}"
            raise ConfigError(msg)
        return by_suffix
    if to is None and default is None:
        known = ", ".join(configuration.all_formats())
        msg = f"name a file to write, or give --to with one of {known}"
        raise ConfigError(msg)
    return configuration.by_name(to or str(default))


@contextmanager
def _naming(path: Path, link: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(*(f"{problem} {link} {path}" for problem in error.problems)) from error


def _shown(remark: dict[str, Any]) -> str:
    return f"{remark['key']} = {jsons.dumps(remark['value'])}"
