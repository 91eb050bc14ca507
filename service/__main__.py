"""The command ``python -m service``: print the settings, load the models, serve, and say what to try."""

import argparse
import logging
import os
import sys
import threading
from collections.abc import Callable

from service.logs import OneRecord
from service.settings import ONE_PROCESS, Settings, SettingsError, StartError, load_settings, unknown_variables

USAGE, FAILED = 2, 1  # exit codes: an invalid setting; a part that is missing


def main(arguments: list[str] | None = None) -> int:
    """Run the service until it is told to stop; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("--workers", type=int, default=1, help="always 1; see the message for why")
    options = parser.parse_args(arguments)
    handler = logging.StreamHandler()
    handler.setFormatter(OneRecord("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it logs how many files have changed
    try:
        settings = load_settings()
        _refuse_workers(options.workers)
    except SettingsError as error:
        return _fail(str(error), USAGE)
    for name in unknown_variables():
        print(f"service: {name} is set, but no setting has this name", file=sys.stderr)
    print(*settings.lines(), sep="\n", flush=True)
    try:
        return _serve(settings)
    except StartError as error:
        return _fail(str(error), FAILED)
    except KeyboardInterrupt:
        return 130


def _serve(settings: Settings) -> int:
    # torch takes seconds to import: report invalid settings before that
    from service.app import create_app
    from service.server import freeze, listen, run, url

    bound = listen(settings)
    try:
        app = create_app(settings)
        service = app.state.service
        registry, base = service.registry, url(bound)
        greet = _Last(
            2,
            lambda: print(_try_it(base, [name for name, _ in registry.current()], bool(settings.api_keys)), flush=True),
        )

        def on_loaded() -> None:
            freeze()
            greet()

        def on_ready() -> None:
            if not registry.complete:
                print(f"{base} answers; still loading its models ({len(registry.names())} in all)", flush=True)
            greet()

        service.start(beside=True, on_loaded=on_loaded)
        return run(app, settings, bound, on_ready)
    finally:
        bound.close()


class _Last:
    """Calls a function on its own n-th call, from any thread."""

    def __init__(self, times: int, then: Callable[[], None]) -> None:
        self._left, self._then, self._lock = times, then, threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._then()


def _refuse_workers(asked: int) -> None:
    """Check that one process is asked for.

    Raises:
        SettingsError: ``--workers`` or ``WEB_CONCURRENCY`` is not 1.
    """
    for name, value in (
        ("--workers", str(asked)),
        ("WEB_CONCURRENCY", os.environ.get("WEB_CONCURRENCY", "").strip() or "1"),
    ):
        if value != "1":
            raise SettingsError(f"{name}={value} is not allowed; it must be 1, because {ONE_PROCESS}")


def _try_it(base: str, names: list[str], locked: bool) -> str:
    """Return the models served and commands to try, which name the SDK's variable for a key rather than the key."""
    model = "moons" if "moons" in names else names[0]
    key = ' -H "Authorization: Bearer $PATHLINE_API_KEY"' if locked else ""
    export = (
        "  export PATHLINE_API_KEY=...    # one of the keys, or the commands are answered 401\n\n" if locked else ""
    )
    return f"""
Pathline serves {", ".join(names)} on {base} (stop it with Ctrl-C). Three commands to try in another terminal:

{export}  curl -s {base}/v1/sample{key} -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "num_samples": 4, "seed": 0, "solver": "rk4", "steps": 20}}'

  .venv/bin/python -c 'from pathline import Client; print(Client("{base}").sample("{model}", num_samples=4, seed=0))'

  curl -s {base}/v1/solvers{key}
"""


def _fail(message: str, code: int) -> int:
    print(f"service: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
