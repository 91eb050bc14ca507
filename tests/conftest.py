"""Surroundings that all tests share."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell makes what it runs in the background ignore Ctrl-C, and children inherit that; tests of Ctrl-C need it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
