"""Errors of the fleet commands; each message is one line that says what to do."""


class FleetError(Exception):
    """A command failed."""


class CommandError(FleetError):
    """The command cannot run as given: a wrong argument, a target that holds another job, or a changed model."""


class TargetError(FleetError):
    """The target cannot be read or written: a full disk, a read-only bucket. Retrying a shard does not help."""


def missing(extra: str, error: ImportError) -> FleetError:
    """Return the error for a missing library; it names the extra to install."""
    return FleetError(f"{error.name or error} is not installed; pip install -e '.[{extra}]'")
