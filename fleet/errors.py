"""Errors of the fleet's commands: each message is one line that says what to do."""


class FleetError(Exception):
    """A command cannot go on."""


class UsageError(FleetError):
    """What was asked for cannot be: a wrong argument, another job's target, a model that has changed."""


class TargetError(FleetError):
    """The target cannot be read or written: a full disk, a read-only bucket. Trying a shard again does not help."""


def missing(extra: str, error: ImportError) -> FleetError:
    """Return the error that names the extra to install for a library that is not there."""
    return FleetError(f"{error.name or error} is not installed; pip install -e '.[{extra}]'")
