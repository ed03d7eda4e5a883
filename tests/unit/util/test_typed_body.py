"""What is made of a type, once."""

from typing import Annotated, Any

import msgspec
import pytest
from annotated_types import Gt
from pydantic import BaseModel, TypeAdapter

from polybus import Bus
from polybus.plugins.tools import convert, misfit
from polybus.testing import pair

UNIT = {"unit": "m"}


@pytest.mark.parametrize(
    ("annotation", "maker"),
    [
        (Annotated[int, UNIT], (msgspec.json, "Decoder")),
        (list[Annotated[int, UNIT]], (msgspec.json, "Decoder")),
        (Annotated[int, Gt(0), UNIT], (TypeAdapter, "__init__")),
    ],
    ids=str,
)
async def test_the_reader_of_a_type_without_a_hash_is_made_once_and_not_for_each_message(
    annotation: Any, maker: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name = maker
    make, made = getattr(place, name), 0

    def counting(*args: Any, **given: Any) -> Any:
        nonlocal made
        made += annotation in args  # a module that is imported now makes decoders of its own, even without a type
        return make(*args, **given)

    monkeypatch.setattr(place, name, counting)
    bus = Bus(check_answers=True)

    async def back(body: Any) -> Any:
        return body

    back.__annotations__ |= {"body": annotation, "return": annotation}
    bus.handle("back")(back)
    body = [1] if annotation == list[Annotated[int, UNIT]] else 1
    async with pair(bus) as client:
        assert await client.request("back", body) == body
        first = made
        for _ in range(3):
            assert await client.request("back", body) == body
    assert 0 < first == made


class Sized(BaseModel):
    size: int


@pytest.mark.timeout(20)
def test_what_is_wrong_with_a_body_is_told_soon_whatever_its_names_are() -> None:
    name = "function-a[a(" * 50_000 + "\n"
    with pytest.raises(ValueError, match="valid integer") as found:
        convert({name: {"size": "q"}}, dict[str, Sized])
    assert "valid integer" in misfit(found.value)[0]
