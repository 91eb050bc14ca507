"""Choosing the format of an answer from the ``Accept`` header (RFC 9110, section 12.5.1)."""

from collections.abc import Sequence

from service.errors import Kind, ProblemError

_ANY = "*/*"


def choose(accept: str | None, offered: Sequence[str]) -> str:
    """Return the offered media type that the header likes best; the first offered one wins a tie.

    Args:
        accept: The header's value, or None where it was not sent (anything is welcome then).
        offered: Media types, the default first.

    Raises:
        ProblemError: 406, naming what is offered.
    """
    if accept is None or not accept.strip():
        return offered[0]
    wishes = [wish for part in accept.split(",") if (wish := _parse(part)) is not None]
    best = max(offered, key=lambda media: _quality(media, wishes))  # max keeps the first of equals
    if _quality(best, wishes) <= 0:
        raise ProblemError(
            Kind.NOT_ACCEPTABLE,
            f"Accept: {accept[:200]} matches nothing; offered are {', '.join(offered)}",
            offered=list(offered),
        )
    return best


def _parse(part: str) -> tuple[str, float] | None:
    """Return (media range, q); None for what is not a media range, which is ignored."""
    media, *parameters = (piece.strip().lower() for piece in part.split(";"))
    if media.count("/") != 1:
        return None
    quality = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                return None
    return (media, quality) if 0 <= quality <= 1 else None


def _quality(media: str, wishes: list[tuple[str, float]]) -> float:
    """Return the q of the most specific range that covers a media type; 0 where none does."""
    for candidate in (media, media.split("/")[0] + "/*", _ANY):
        found = [quality for wish, quality in wishes if wish == candidate]
        if found:
            return max(found)
    return 0.0
