"""Results of preludes that are kept: a request with conditions seen before does not wait for them again.

A row is found by the digest of what it was made from, so a hit has the bits of a miss.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from hashlib import sha256

import torch
from torch import Tensor

from engine.stages import Pass

Row = tuple[Tensor, ...]
"""The results of one row, (*shape) each, on the device."""


class PreludeCache:
    """The results used last, up to a number of bytes; used by the engine's thread alone.

    Attributes:
        bytes: bytes of the rows that it holds.
    """

    def __init__(self, limit: int) -> None:
        """Start empty; with a limit of 0 nothing is ever kept."""
        self._limit, self.bytes = limit, 0
        self._rows: OrderedDict[bytes, Row] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def split(self, version: str, rows: Pass) -> tuple[Pass | None, int]:
        """Take the rows that are there out of a pass.

        Args:
            version: digest of the checkpoint.
            rows: a pass, not begun. If all of its rows are there, they are handed on by its `then`.

        Returns:
            The pass of the other rows, which are kept once they are done, or None; and the number of rows taken out.
        """
        if not self._limit:
            return rows, 0
        keys = [_digest(version, [tensor[row] for tensor in rows.arguments]) for row in range(rows.rows)]
        results = dict[int, Row]()
        for row, key in enumerate(keys):
            if key in self._rows:
                self._rows.move_to_end(key)
                results[row] = self._rows[key]
        hits, missing = len(results), [row for row in range(rows.rows) if row not in results]

        def finish(out: list[Tensor]) -> None:
            for place, row in enumerate(missing):
                results[row] = tuple(each[place].clone() for each in out)
                self._keep(keys[row], results[row])
            rows.then([torch.stack(column) for column in zip(*(results[k] for k in range(rows.rows)), strict=True)])

        if not missing:
            finish([])
            return None, hits
        arguments = [tensor[missing] for tensor in rows.arguments] if hits else rows.arguments
        return replace(rows, arguments=arguments, then=finish), hits

    def _keep(self, key: bytes, row: Row) -> None:
        size = sum(tensor.nbytes for tensor in row)
        if key in self._rows or size > self._limit:
            return
        self._rows[key] = row
        self.bytes += size
        while self.bytes > self._limit:
            _, oldest = self._rows.popitem(last=False)
            self.bytes -= sum(tensor.nbytes for tensor in oldest)


def _digest(version: str, arguments: list[Tensor]) -> bytes:
    digest = sha256(version.encode())
    for tensor in arguments:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
