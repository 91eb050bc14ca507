"""What a request was sent with."""

from service.http.context import Context


def test_a_list_may_come_on_several_lines_and_of_all_else_the_first_counts() -> None:
    lines = [(b"accept", b"text/html"), (b"host", b"a"), (b"accept", b"application/x-npz, */*;q=0.1"), (b"host", b"b")]
    http = Context({"type": "http", "headers": lines})
    assert http.header(b"accept") == "text/html, application/x-npz, */*;q=0.1"
    assert http.header(b"host") == "a"
    assert http.header(b"accept-encoding") is None
