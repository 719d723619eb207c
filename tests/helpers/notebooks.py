"""Notebooks run by a real kernel, in a process of its own.

The client leaves sockets open, which is a warning in the process that uses it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
from support import environment


def cells_of(notebook: Path, folder: Path) -> list[Any]:
    """Return the cells with code after a kernel ran all of them in `folder`, with their outputs."""
    output = folder / "executed.ipynb"
    homes = {name: str(folder / name) for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR")}
    done = subprocess.run(
        [sys.executable, __file__, notebook, folder, output],
        env=environment(**homes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stdout
    return [cell for cell in nbformat.read(output, 4).cells if cell.cell_type == "code"]


def _execute(source: str, folder: str, output: str) -> None:
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    notebook = nbformat.read(source, 4)
    # Sockets in a folder: none that others could connect to.
    sockets = {"transport": "ipc", "ip": str(Path(folder, "kernel"))}
    kernel = AsyncKernelManager(kernel_name="python3", **sockets)
    where = {"metadata": {"path": folder}}
    # A cell that may raise is tagged `raises-exception`.
    NotebookClient(notebook, km=kernel, timeout=240, resources=where).execute()
    nbformat.write(notebook, output)


if __name__ == "__main__":
    _execute(*sys.argv[1:])
