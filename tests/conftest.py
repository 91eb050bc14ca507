"""Fixtures for all tests."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell makes background processes ignore Ctrl-C, and children inherit that; the tests of Ctrl-C need it enabled.
    signal.signal(signal.SIGINT, signal.default_int_handler)
