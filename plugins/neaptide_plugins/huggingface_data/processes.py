"""Tokenizes documents chunk by chunk, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from neaptide import DataError

from .tokenizing import Encoded, Fields, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from .documents import Raw

_CHUNK = 256
"""Documents that are tokenized together."""
_AHEAD = 4
"""Chunks for each process that are read before they are needed."""

_of_process: list[Any] = []
"""The tokenizer and the names of fields of a tokenizing process."""


class Readable(Protocol):
    """Documents that can be read in order."""

    def read(self, fields: Sequence[str]) -> Iterator[Raw]:
        """Yield the documents."""


def encoded(documents: Readable, tokenizer: Any, fields: Fields, workers: int) -> Iterator[Encoded]:
    """Yield the tokens of documents, in their order whatever the number of `workers`.

    Raises:
        DataError: a document has the wrong form, or a process was killed.
    """
    chunks = _chunks(documents.read((fields.text, fields.messages)))
    if workers == 1:
        for chunk in chunks:
            yield encode(chunk, tokenizer, fields)
        return
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), _begin, (tokenizer, fields)
    )
    waiting: deque[Future[Encoded]] = deque()
    try:
        for chunk in chunks:
            waiting.append(pool.submit(_encode, chunk))
            if len(waiting) > _AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        msg = (
            "a process that tokenizes ended, perhaps for lack of memory; lower their number "
            "@ data.options.workers"
        )
        raise DataError(msg) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _chunks(raws: Iterable[Raw]) -> Iterator[list[Raw]]:
    iterator = iter(raws)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk


def _begin(tokenizer: Any, fields: Fields) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _of_process[:] = tokenizer, fields


def _encode(chunk: list[Raw]) -> Encoded:
    tokenizer, fields = _of_process
    return encode(chunk, tokenizer, fields)
