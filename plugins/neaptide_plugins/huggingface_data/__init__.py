"""Texts and chats from files, tokenized and packed for models of transformers."""

from .config import SPEC

__all__ = ["SPEC"]
