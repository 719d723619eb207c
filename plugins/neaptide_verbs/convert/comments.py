"""Detects comments in a configuration file, because a conversion loses comments."""

from __future__ import annotations

from neaptide.config import toml


def has_comments(text: str, notation: str) -> bool:
    """Return whether `text` has a comment. `text` must be valid in the format `notation`."""
    match notation:
        case "toml":
            return any(token[0].startswith("#") for token in toml.TOKEN.finditer(text))
        case "yaml":
            return _in_yaml(text)
    return False  # JSON has no comments


def _in_yaml(text: str) -> bool:
    import yaml  # noqa: PLC0415 - most files are TOML

    between, end = "", 0  # the text between keys and values
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.ScalarToken):
            before, begin, end = end, token.start_mark.index, token.end_mark.index
            # The first line of a block scalar is an indicator, which may be followed by a comment.
            header = text[begin:end].partition("\n")[0] if token.style in {"|", ">"} else ""
            between += text[before:begin] + header
    return "#" in between + text[end:]
