"""Byte tokenizer: a text's UTF-8 bytes, truncated or padded to a fixed length."""

from collections.abc import Iterable

import numpy as np

from ncl_jax import checks

PADDING = 0
VOCABULARY = 257  # padding, and every byte plus 1


def encode(texts: Iterable[str], length: int) -> np.ndarray:
  """Tokens of N texts, int32 [N, length]: byte b becomes b + 1, and 0 is padding.

  Texts are truncated to `length` bytes, possibly in the middle of a character.

  Raises:
    InputError: `length` is below 1.

  >>> encode(["ab", "c"], 3).tolist()
  [[98, 99, 0], [100, 0, 0]]
  """
  checks.whole("length", length, 1)
  rows = [text.encode("utf-8")[:length] for text in texts]
  tokens = np.full((len(rows), length), PADDING, np.int32)
  for row, content in zip(tokens, rows, strict=True):
    row[: len(content)] = np.frombuffer(content, np.uint8).astype(np.int32) + 1
  return tokens


def cut(texts: Iterable[str], length: int) -> str:
  """A sentence about the texts that `encode` truncates; "" if there are none.

  >>> cut(["a long text", "a long word", "c"], 6)
  '2 of 3 are cut off at 6 bytes, the longest has 11: 3 different ones become 2'
  """
  rows = [text.encode("utf-8") for text in texts]
  long = [row for row in rows if len(row) > length]
  if not long:
    return ""
  return (
    f"{len(long)} of {len(rows)} are cut off at {length} bytes, the longest has "
    f"{max(map(len, long))}: {len(set(rows))} different ones become "
    f"{len({row[:length] for row in rows})}"
  )
