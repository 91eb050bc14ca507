"""Retries: whether to send a request again, and after how long. All retries are decided here."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from pathline.errors import APIError, PathlineError, TransportError


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long to try.

    The wait before attempt k + 1 is ``base_s * 2**(k - 1)``, at most `cap_s`, times a random factor in [0.5, 1] so that
    many clients do not come back at once; it is never shorter than the response's Retry-After. A request is given up
    when it has been sent `max_attempts` times, or when the next attempt would begin later than `max_total_s` after the
    first (`connect_s` if no connection can be made, as an address where nothing listens is usually wrong).

    Attributes:
        max_attempts: Most times a request is sent; 1 turns retries off.
        max_total_s: Seconds after the first attempt within which the last one must begin.
        base_s: First wait in seconds.
        cap_s: Longest wait in seconds, unless Retry-After asks for more.
        connect_s: As `max_total_s`, for attempts that could not connect; raise it to wait for a service that
            is starting.

    Raises:
        ValueError: A number is out of its range.
    """

    max_attempts: int = 5
    max_total_s: float = 60.0
    base_s: float = 0.2
    cap_s: float = 5.0
    connect_s: float = 1.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts={self.max_attempts} is not allowed; use 1 (no retries) or more")
        for name in ("max_total_s", "base_s", "cap_s", "connect_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)} is not allowed; use seconds of at least 0")

    def wait(self, attempt: int, retry_after_s: float | None, factor: float) -> float:
        """Return the seconds between attempt number `attempt` (from 1) and the next."""
        planned = min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 60)) * factor
        if retry_after_s is None:
            return planned
        # Retry-After gets a little jitter too, or clients that were given the same second would collide.
        return max(planned, retry_after_s + min(planned, 0.1 * retry_after_s))

    def wait_after(self, error: PathlineError, attempt: int, spent_s: float) -> float | None:
        """Return the seconds until the next attempt; None to give up (the error then says how often and how long).

        Args:
            error: That of the attempt.
            attempt: Its number, from 1.
            spent_s: Seconds since the first attempt began.
        """
        hint = error.retry_after_s if isinstance(error, APIError) else None
        wait = self.wait(attempt, hint, secrets.SystemRandom().uniform(0.5, 1.0))
        longest = self.max_total_s
        if isinstance(error, TransportError) and not error.connected:
            longest = min(longest, self.connect_s)
        if error.retryable and attempt < self.max_attempts and spent_s + wait <= longest:
            return wait
        error.attempts, error.elapsed_s = attempt, spent_s
        return None
