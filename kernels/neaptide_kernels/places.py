"""Where kernels' timings are kept. Read without torch."""

from __future__ import annotations

import os
from pathlib import Path

from neaptide.errors import NeaptideError


def default_path() -> Path:
    """Return the path of the timings file.

    The file is in `$NEAPTIDE_CACHE_DIR` or, if this variable is not set, in the user's cache
    directory. Raises NeaptideError if neither directory is known.
    """
    own = os.environ.get("NEAPTIDE_CACHE_DIR")
    if own:
        return Path(own) / "kernels.json"
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "neaptide" / "kernels.json"
    except RuntimeError as error:
        msg = "no home directory to keep the kernels' timings in; set NEAPTIDE_CACHE_DIR"
        raise NeaptideError(msg) from error
