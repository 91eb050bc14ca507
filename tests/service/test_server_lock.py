"""The process ends although some code does not let go of Python's lock."""

from tests.processes import forked

_CODE = """
from service.server import end_unless_called_again

end_unless_called_again(0.3)
end_unless_called_again(1.0)
print("held", flush=True)
10 ** 10 ** 9  # one instruction
"""


def test_a_held_lock_ends_the_process_with_a_traceback() -> None:
    status, output = forked(_CODE)
    assert status == 1
    assert output.startswith("held\n")
    assert "Timeout (0:00:01)!" in output
