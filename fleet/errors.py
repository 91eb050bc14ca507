"""Errors of the fleet's commands: each message is one line that says what to do."""


class FleetError(Exception):
    """A command failed."""


class UsageError(FleetError):
    """A command that cannot be carried out: a wrong argument, the target of another job, a changed model."""


class TargetError(FleetError):
    """The target cannot be read or written: a full disk, a read-only bucket. Trying a shard again does not help."""


def missing(extra: str, error: ImportError) -> FleetError:
    """Return the error for a missing library; it names the extra to install."""
    return FleetError(f"{error.name or error} is not installed; pip install -e '.[{extra}]'")
