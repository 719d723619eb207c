"""Writes what the configurations of the coming version come to; released ones are left alone.

python tests/configs/write_effective.py
"""

from __future__ import annotations

from golden import FILES, VERSIONS, effective_file, effective_text

for path in FILES:
    if path.parent == VERSIONS[-1]:
        effective_file(path).write_text(effective_text(path), encoding="utf-8")
