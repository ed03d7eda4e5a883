"""Many JSON documents are judged at once as each of them is by itself."""

from __future__ import annotations

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from polybus.body import check_json
from polybus.capture.decoding.vectorized.json_check import valid_json
from polybus.errors import EncodeError


def test_documents_that_are_json_only_together_are_not() -> None:
    texts = ["1", "1,2", "[3", "4]", "[5]", " 6", "7 ", '"8', '9"', "{}", "nan", "1e999", "[[1]]", '"\\x"']
    assert valid_json(pa.array([text.encode() for text in texts]), 1).tolist() == [text in ("1", "[5]", "{}") for text in texts]
    assert valid_json(pa.array([b"\xff", b'"\xff"', '"ö"'.encode()]), 4).tolist() == [False, False, True]
    assert valid_json(pa.array([], pa.binary()), 4).tolist() == []
    assert valid_json(pa.array([b"", b""]), 4).tolist() == [False, False]


_FRAGMENTS = [*'[]{}",:\\ \n0e19+-.', "ö", "null", '"a":', "\\u00e4", "\\ud800", "1e999", "9" * 110]


@given(st.lists(st.lists(st.sampled_from(_FRAGMENTS), max_size=6).map("".join) | st.binary(max_size=4), max_size=8), st.data())
def test_many_documents_are_judged_as_each_of_them_alone(texts: list[str | bytes], data: st.DataObject) -> None:
    documents = [text.encode() if isinstance(text, str) else text for text in texts]
    depth = data.draw(st.integers(1, 3))

    def sound(document: bytes) -> bool:
        try:
            check_json(document, depth)
            msgspec.json.decode(document)
        except (ValueError, EncodeError):
            return False
        return document.strip(b" \t\r\n") == document

    before = data.draw(st.integers(0, 2))
    array = pa.array([b"[" * before, *documents, b"]"], pa.binary())[1:-1]
    assert valid_json(array, depth).tolist() == [sound(document) for document in documents]
