"""The process ends although some code does not let go of Python's lock."""

import subprocess
import sys
from pathlib import Path

_CODE = """
from service.server import end_unless_called_again

end_unless_called_again(0.3)
end_unless_called_again(1.0)
print("held", flush=True)
10 ** 10 ** 9  # one instruction
"""


def test_a_held_lock_ends_the_process_with_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "held\n")
    assert "Timeout (0:00:01)!" in done.stderr
