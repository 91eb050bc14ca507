"""The command ``python -m service``: load the models, serve, and print what to try."""

import argparse
import itertools
import sys
from pathlib import Path

from service.console import ProgressPrinter, flush, greeting, log_to_stderr, open_closed_streams, opening, say
from service.settings import Settings, SettingsError, StartError, load_settings, unknown_variables

USAGE, FAILED = 2, 1  # exit codes: an invalid setting; a part that is missing


def main(arguments: list[str] | None = None) -> int:
    """Run the service until it is stopped; return the exit code."""
    open_closed_streams()
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    flags = {"host": (str, "address to listen on"), "port": (int, "port"), "models_dir": (Path, "models")}
    for name, (kind, text) in flags.items():
        text += f" (PATHLINE_{name.upper()}, which has all other settings too)"
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    options = vars(parser.parse_args(arguments))
    log_to_stderr()
    try:
        settings = load_settings(**{name: value for name, value in options.items() if value is not None})
    except SettingsError as error:
        return _fail(str(error), USAGE)
    for name in unknown_variables():
        say(f"service: {name} is set, but no setting has this name", descriptor=2)
    say(opening(settings))
    try:
        return _serve(settings)
    except StartError as error:
        return _fail(str(error), FAILED)
    except KeyboardInterrupt:
        return 130
    finally:
        flush()


def _serve(settings: Settings) -> int:
    # torch takes seconds to import: report invalid settings before that
    from service.app import create_app
    from service.server import freeze, listen, run, url

    bound = listen(settings)
    progress = ProgressPrinter()
    try:
        app = create_app(settings)
        service = app.state.service
        registry, base = service.registry, settings.public_url or url(bound[0])

        def greet() -> None:
            progress.stop()
            names, uds = [name for name, _ in registry.current()], "" if settings.public_url else settings.uds
            say(greeting(base, names, bool(settings.api_keys), uds))

        calls = itertools.count(1)  # `next` is atomic: the two that follow come from different threads

        def greet_second() -> None:
            if next(calls) == 2:
                greet()

        def on_loaded() -> None:
            freeze()
            greet_second()

        def on_ready() -> None:
            progress.start(len(registry.entries()), registry.pending)
            greet_second()

        service.start(in_thread=True, on_loaded=on_loaded)
        return run(app, settings, bound, on_ready)
    finally:
        progress.stop()
        for listener in bound:
            listener.close()
        if settings.uds:
            Path(settings.uds).unlink(missing_ok=True)


def _fail(message: str, code: int) -> int:
    say(f"service: {message}", descriptor=2)
    flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
