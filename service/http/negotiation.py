"""Content negotiation: format and coding of a response, by ``Accept`` and ``Accept-Encoding`` (RFC 9110, 12.5)."""

from functools import lru_cache

from service.errors import Kind, ProblemError

_ANY = "*/*"


@lru_cache(maxsize=256)
def accepts_coding(coding: str, accepted: str | None) -> bool:
    """Return whether a client accepts a content coding, given the value of ``Accept-Encoding``."""
    codings = dict(filter(None, map(_parse, (accepted or "").split(","))))
    return codings.get(coding, codings.get("*", 0.0)) > 0


@lru_cache(maxsize=256)
def choose(accept: str | None, offered: tuple[str, ...]) -> str:
    """Return the offered media type with the highest quality; the first offered one wins a tie.

    Args:
        accept: The header's value, or None if it was not sent, which accepts anything.
        offered: Media types, the default first.

    Raises:
        ProblemError: 406, listing the offered types.
    """
    if accept is None or not accept.strip():
        return offered[0]
    ranges = [parsed for part in accept.split(",") if (parsed := _parse(part)) and parsed[0].count("/") == 1]
    best = max(offered, key=lambda media: _quality(media, ranges))  # max keeps the first of equals
    if _quality(best, ranges) <= 0:
        raise ProblemError(
            Kind.NOT_ACCEPTABLE,
            f"Accept: {accept[:200]} matches no available format; use one of {', '.join(offered)}",
            offered=list(offered),
        )
    return best


def _parse(part: str) -> tuple[str, float] | None:
    """Return (media range or coding, q), or None for a q that is no number from 0 to 1: it is ignored."""
    name, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                return None
    return (name, quality) if 0 <= quality <= 1 else None


def _quality(media: str, ranges: list[tuple[str, float]]) -> float:
    """Return the q of the most specific range that covers a media type; 0 if none does."""
    for candidate in (media, media.split("/")[0] + "/*", _ANY):
        if qualities := [quality for name, quality in ranges if name == candidate]:
            return max(qualities)
    return 0.0
