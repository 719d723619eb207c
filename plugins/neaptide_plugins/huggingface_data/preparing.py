"""Makes the training and the validation data of a run from its settings."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from neaptide import ConfigError, Data, DataError

from .batches import EpochBatches, FixedBatches, SampleSource, shuffled
from .documents import Files, files_of
from .packing import Samples, alone, packed, pieces_of
from .processes import encoded
from .storing import DamagedError, Stored, directory_of, key_of, opened, write
from .tokenizing import Fields, digest_of, filler_of, largest_id, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from neaptide.api.task import DataSpec

    from .config import HuggingFaceDataOptions
    from .saved_sets import Split

    Documents = Files | Split

_VALIDATION_SEED = 0
"""Which documents are for validation does not depend on the run's seed."""


@attrs.frozen(eq=False)
class Prepared:
    """The data of a run, and what is said about them."""

    data: Data
    line: str


@attrs.frozen(eq=False)
class _Maker:
    """What both parts of the data have in common."""

    options: HuggingFaceDataOptions
    tokenizer: Any
    tokenizer_digest: str
    warn: Callable[[str], None]

    def stored(self, documents: Documents) -> Stored:
        """Return the tokens of documents: those that are kept, or new ones."""
        options = self.options
        fields = Fields(options.text, options.messages)
        key = key_of(documents.digest(), self.tokenizer_digest, *attrs.astuple(fields))
        folder = directory_of(options.cache) / key
        try:
            found = opened(folder)
        except DamagedError as error:
            self.warn(f"{error}; the data are tokenized again")
            shutil.rmtree(folder, ignore_errors=True)
            found = None
        if found is None:
            write(folder, encoded(documents, self.tokenizer, fields, options.workers))
            found = opened(folder)
        if found is None:
            msg = f"{folder} was removed while it was read; start again @ data.options.cache"
            raise DataError(msg)
        return found

    def source(
        self, stored: Stored, chosen: NDArray[np.int64], key: str
    ) -> tuple[SampleSource, str]:
        """Return the samples of some documents, and a line about them."""
        options = self.options
        too_long = options.too_long or ("cut" if stored.chats else "split")
        pieces = pieces_of(stored.ends, chosen, stored.counted, options.length, too_long)
        dropped = ", ".join(f"{count:,} {why}" for why, count in pieces.dropped.items())
        if not len(pieces):
            msg = f"no document of {len(chosen):,} can be used: {dropped} @ {key}"
            raise DataError(msg)
        samples = packed(pieces, options.length) if options.pack else alone(pieces)
        source = SampleSource(
            stored.tokens,
            stored.counted,
            samples,
            options.length,
            options.pack,
            filler_of(self.tokenizer),
        )
        return source, _line(samples, len(chosen), dropped, options.length)


def _line(samples: Samples, documents: int, dropped: str, length: int) -> str:
    pieces = samples.pieces
    tokens = int((pieces.stops - pieces.starts).sum())
    left_out = f"dropped documents: {dropped}" if dropped else "no document dropped"
    if pieces.cut:
        left_out += f"; {pieces.cut:,} documents cut after {length:,} tokens"
    return (
        f"{len(samples):,} samples of {documents:,} documents, {tokens:,} tokens, "
        f"{int(pieces.targets.sum()):,} of them count for the loss; {left_out}"
    )


def prepare(
    spec: DataSpec,
    options: HuggingFaceDataOptions,
    check: Callable[[int], None],
    warn: Callable[[str], None],
) -> Prepared:
    """Return the data of a run.

    Args:
        spec: the table `[data]`, and settings of the run.
        options: its options.
        check: called with the largest id of the tokenizer, before anything is tokenized.
        warn: called with a line about something that was repaired.

    Raises:
        ConfigError: a setting does not fit what is there.
        DataError: the files do not hold documents of the expected form.
    """
    tokenizer = load_tokenizer(options.tokenizer, options.chat_template, download=options.download)
    check(largest_id(tokenizer))
    train_documents, held_out_documents = _documents(spec, options)
    make = _Maker(options, tokenizer, digest_of(tokenizer), warn)
    stored = make.stored(train_documents)
    every = np.arange(len(stored.ends))
    share = options.validation if isinstance(options.validation, float) else None
    training, held_out = (every, None) if share is None else _split(every, share)
    train, line = make.source(stored, training, "data.name")
    if spec.batch_size > len(train.samples):
        msg = (
            f"the batch size {spec.batch_size} is larger than the training data of "
            f"{len(train.samples)} samples; lower it @ train.batch_size"
        )
        raise ConfigError(msg)
    validation: FixedBatches | None = None
    said = ""
    if held_out_documents is not None:
        other = make.stored(held_out_documents)
        held_out = np.arange(len(other.ends))
    else:
        other = stored
    if held_out is not None:
        source, line_of_it = make.source(other, held_out, "data.options.validation")
        validation = FixedBatches(source, spec.batch_size, spec.eval_batches)
        said = f"; validation: {line_of_it}"
    unlike = [share, options.length, options.pack, options.too_long, options.shuffle]
    fingerprint = key_of(stored.digest, *map(repr, [*unlike, spec.batch_size, spec.seed]))
    return Prepared(
        Data(
            EpochBatches(train, spec.batch_size, spec.seed, options.shuffle, fingerprint),
            validation,
        ),
        f"data: {line}{said}",
    )


def _documents(
    spec: DataSpec, options: HuggingFaceDataOptions
) -> tuple[Documents, Documents | None]:
    """Return the documents for training, and those for validation if they are named."""
    named = options.validation if isinstance(options.validation, str) else None
    key = "data.options.validation"
    if spec.scheme != "hf":
        train = files_of(spec.scheme, spec.name, "data.name")
        return train, None if named is None else files_of(spec.scheme, named, key)
    from .saved_sets import chosen, splits_of  # noqa: PLC0415 - it needs datasets

    splits = splits_of(spec.name, download=options.download)
    held_out = None if named is None else chosen(splits, named, spec.name, key)
    return chosen(splits, "train", spec.name, "data.name"), held_out


def _split(every: NDArray[np.int64], share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    count = round(len(every) * share)
    if not 0 < count < len(every):
        msg = (
            f"a share of {share:g} of {len(every)} documents leaves none for training or for "
            f"validation; change it @ data.options.validation"
        )
        raise ConfigError(msg)
    order = shuffled(len(every), _VALIDATION_SEED, 0)
    return np.sort(order[count:]), np.sort(order[:count])
