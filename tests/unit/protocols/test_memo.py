"""A bounded memory of what was made of keys."""

from polybus.protocols._shared import Memo


def test_a_value_is_made_once_as_long_as_it_is_remembered() -> None:
    made: list[str] = []

    def upper(key: str) -> str:
        made.append(key)
        return key.upper()

    memo = Memo(upper)
    assert [memo["a"], memo["b"], memo["a"]] == ["A", "B", "A"]
    assert made == ["a", "b"]


def test_a_full_memory_is_emptied() -> None:
    memo = Memo(str, 3)
    for key in range(100):
        assert memo[key] == str(key)
        assert len(memo) <= 3
