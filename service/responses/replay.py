"""Replays: samples as the response of ``/v1/replay``, with whether their bits are those of the first answer."""

from collections.abc import Sequence
from dataclasses import replace

from service.replay.environment import Difference
from service.responses.arrays import ArrayResponse


def replay_response(response: ArrayResponse, matches: bool, differences: Sequence[Difference]) -> ArrayResponse:
    """Return the response to a replay.

    Args:
        response: the samples.
        matches: whether their digest is that of the token.
        differences: why that could not be promised.
    """
    found = {"digest_matches": matches, "differences": [each.document() for each in differences]}
    return replace(response, document=found | response.document)
