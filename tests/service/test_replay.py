"""Replay tokens: their content, and texts that are not tokens."""

import zlib
from base64 import urlsafe_b64encode
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import examples
from service.replay import (
    MAX_CHARACTERS,
    PREFIX,
    Token,
    TokenError,
    decode,
    differences,
    digest_of,
    encode,
    environment,
    environment_of,
)
from service.requests.parsing import parse


def test_the_example_is_a_token() -> None:
    token = parse(Token, decode(examples.REPLAY_OF_FIXED))
    assert (token.model, token.version, token.solver, token.seed, token.num_samples) == ("moons", 1, "rk4-4", 0, 2)
    assert token.digest == examples.DIGEST


@given(st.dictionaries(st.text(), st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(), st.none()), max_size=20))
def test_what_is_encoded_is_decoded(fields: dict[str, Any]) -> None:
    import orjson

    if len(text := encode(fields)) <= MAX_CHARACTERS:
        assert orjson.loads(decode(text)) == fields
        assert decode(f" {text}\n") == decode(text)


@given(st.data())
def test_no_other_text_is_read(data: st.DataObject) -> None:
    """Any other text is refused or decodes to something else; no other error is raised."""
    text = examples.REPLAY_OF_FIXED
    place = data.draw(st.integers(0, len(text) - 1))
    damaged = data.draw(
        st.sampled_from(
            [text[:place], text[:place] + "A" + text[place + 1 :], text + "A", text[place:], text[:place] + "é"]
        )
    )
    if damaged == text:
        return
    with pytest.raises(TokenError):
        decode(damaged)


def test_a_bomb_is_not_inflated() -> None:
    bomb = PREFIX + urlsafe_b64encode(zlib.compress(b" " * 6_000_000, 9)).rstrip(b"=").decode()
    assert len(bomb) < MAX_CHARACTERS
    with pytest.raises(TokenError, match="cut off or too long"):
        decode(bomb)


def test_a_long_text_is_refused_before_it_is_inflated() -> None:
    with pytest.raises(TokenError, match="a token has at most"):
        decode(PREFIX + "A" * MAX_CHARACTERS)


def test_the_digest_is_of_bytes_in_c_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert digest_of(array) == digest_of(np.asfortranarray(array)) == digest_of(array.reshape(6))
    assert digest_of(array) != digest_of(array.astype(np.float64))


def test_differences_name_what_differs() -> None:
    here = environment("cpu", "cpu", 2)
    assert differences(here, here, threads_matter=True) == []
    other = {**here, "threads": "3", "torch": "1.0"}
    assert [each.what for each in differences(other, here, threads_matter=True)] == ["torch", "threads"]
    assert [each.what for each in differences(other, here, threads_matter=False)] == ["torch"]
    [missing] = differences({name: here[name] for name in here if name != "machine"}, here, threads_matter=True)
    assert (missing.what, missing.token) == ("machine", "not named")


def test_the_most_rows_of_a_call_are_part_of_the_environment_unless_rows_are_computed_by_themselves() -> None:
    def of(path: str, rows: int) -> Any:
        model: Any = SimpleNamespace(card=SimpleNamespace(compute=None), path=path, row_limit=rows)
        return environment_of({}, model)

    [found] = differences(of("eager", 64), of("eager", 32), threads_matter=True)
    assert (found.what, found.token, found.here) == ("rows", "64", "32")
    assert "rows" not in of("fused", 1024)


def test_one_of_several_devices_is_as_good_as_another() -> None:
    assert environment("cuda:0", "NVIDIA H200", 1) == environment("cuda:1", "NVIDIA H200", 1)
    assert environment("cuda:0", "NVIDIA H200", 1) != environment("cuda:0", "NVIDIA A100", 1)
