"""Single values, in both directions: which Java type is which Python type (notes sections 1.3 to 1.5).

A reader takes the object with the marker, a writer the value; neither needs the message around it, which is handed over because
containers need it.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from ....errors import BadRequest, EncodeError
from ..messages.text import number, quoted
from .java import JavaEnum

BOOLEANS: Final = {
    value: b'{"^EncodedType":"java.lang.Boolean","^ObjectID":"-1","^NumVal":%b}' % text
    for value, text in ((True, b"true"), (False, b"false"))
}
_SMALL: Final = {
    value: b'{"^EncodedType":"java.lang.Integer","^ObjectID":"-1","^NumVal":%d}' % value for value in range(-128, 1024)
}
"""Most integers are these."""
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_UTC: Final = datetime.UTC
_from_timestamp: Final = datetime.datetime.fromtimestamp
_MAX_DIGITS: Final = 4300
_SPECIAL: Final[Mapping[str, float]] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _is_far(value: decimal.Decimal) -> bool:
    """True for one like ``1E+900000000``: gigabytes of digits as soon as somebody makes an int of it."""
    return abs(value.adjusted()) > _MAX_DIGITS


# -- reading -------------------------------------------------------------------------------------------------------------


def _odd(node: dict[str, Any], wanted: str) -> NoReturn:
    raise BadRequest(f"{node['^EncodedType']} needs {wanted}")


def _whole(text: Any) -> int | None:
    try:
        return int(text) if type(text) is str and len(text) <= _MAX_DIGITS else None
    except ValueError:
        return None


def read_integer(reading: object, node: dict[str, Any]) -> Any:
    value = node.get("^NumVal")
    if type(value) is int:
        return value
    made = _whole(value)  # a Long travels as text
    return made if made is not None else _odd(node, "a whole number in ^NumVal")


def read_float(reading: object, node: dict[str, Any]) -> Any:
    value = node.get("^NumVal")
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value) if -(10**300) < value < 10**300 else _odd(node, "a number in ^NumVal")
    special = _SPECIAL.get(value) if type(value) is str else None
    return special if special is not None else _odd(node, "a number in ^NumVal")


def read_boolean(reading: object, node: dict[str, Any]) -> Any:
    value = node.get("^NumVal")
    return value if type(value) is bool else _odd(node, "true or false in ^NumVal")


def read_text(reading: object, node: dict[str, Any]) -> Any:
    value = node.get("^NumVal", node.get("^Value"))
    return value if type(value) is str else _odd(node, "text in ^NumVal")


def read_big_integer(reading: object, node: dict[str, Any]) -> Any:
    made = _whole(node.get("^Value"))
    return made if made is not None else _odd(node, f"up to {_MAX_DIGITS} digits as text in ^Value")


def read_big_decimal(reading: object, node: dict[str, Any]) -> Any:
    value = node.get("^Value")
    if type(value) is str and len(value) <= _MAX_DIGITS:
        try:
            if (made := decimal.Decimal(value)).is_finite() and not _is_far(made):
                return made
        except decimal.InvalidOperation:
            pass
    return _odd(node, f"a decimal number as text in ^Value, with no more than {_MAX_DIGITS} digits before or behind its point")


def read_date(reading: object, node: dict[str, Any]) -> Any:
    value = node.get("^Value")
    if value is None:
        value = node.get("^NumVal")
    if type(value) is int or (type(value) is str and len(value) <= 20):
        try:
            seconds, milliseconds = divmod(int(value), 1000)
            moment = _from_timestamp(seconds, _UTC)
            return moment.replace(microsecond=1000 * milliseconds) if milliseconds else moment
        except (ValueError, OverflowError, OSError):
            pass
    return _odd(node, "milliseconds as text in ^Value, within the years 1 to 9999")


# -- writing -------------------------------------------------------------------------------------------------------------


def write_integer(value: int, ids: object) -> bytes:
    small = _SMALL.get(value)
    if small is not None:
        return small
    if -0x8000_0000 <= value <= 0x7FFF_FFFF:
        return b'{"^EncodedType":"java.lang.Integer","^ObjectID":"-1","^NumVal":%d}' % value
    if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        return b'{"^EncodedType":"java.lang.Long","^ObjectID":"-1","^NumVal":"%d"}' % value
    return write_big_integer(value)


def write_big_integer(value: int) -> bytes:
    return b'{"^EncodedType":"java.math.BigInteger","^ObjectID":"-1","^Value":"%b"}' % _digits(value)


def write_marked(java: str, value: bytes) -> bytes:
    """A number or a character of a type that Python has not chosen."""
    return b'{"^EncodedType":"%b","^ObjectID":"-1","^NumVal":%b}' % (java.encode(), value)


def _digits(value: int) -> bytes:
    try:
        return str(value).encode()
    except ValueError as error:  # CPython's bound of 4,300 digits
        raise EncodeError(f"an integer of {value.bit_length()} bits is too long") from error


def write_double(value: float, ids: object) -> bytes:
    if math.isfinite(value):
        return b'{"^EncodedType":"java.lang.Double","^ObjectID":"-1","^NumVal":%b}' % number(value)
    name = b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity"
    return b'{"^EncodedType":"java.lang.Double","^ObjectID":"-1","^NumVal":"%b"}' % name


def write_decimal(value: decimal.Decimal, ids: object) -> bytes:
    if not value.is_finite():
        raise EncodeError(f"java.math.BigDecimal has no {value}")
    if _is_far(value):
        raise EncodeError(f"{value:.6E} has more than {_MAX_DIGITS} digits before or behind its point")
    return b'{"^EncodedType":"java.math.BigDecimal","^ObjectID":"-1","^Value":"%b"}' % str(value).encode()


def write_date(value: datetime.datetime, ids: object) -> bytes:
    """Whole milliseconds: java.util.Date has no more."""
    if value.tzinfo is None:
        raise EncodeError("a datetime without a time zone: java.util.Date is a moment; give it one, for example datetime.UTC")
    return b'{"^EncodedType":"java.util.Date","^ObjectID":"-1","^Value":"%d"}' % ((value - _EPOCH) // _MILLISECOND)


def write_java_enum(value: JavaEnum, ids: object) -> bytes:
    return enum_constant(value.type, value.name)


def constants_writer(java: str) -> Callable[[Any, Any], bytes]:
    written: dict[str, bytes] = {}

    def write(value: enum.Enum, ids: object) -> bytes:
        name = value._name_  # hashing a member costs more than all of this
        data = written.get(name)
        if data is None:
            data = written[name] = enum_constant(java, name)
        return data

    return write


def enum_constant(java: str, name: str) -> bytes:
    """Without an id: real Errai does not read an enum that has one (notes section 1.5)."""
    return b'{"^EncodedType":%b,"^EnumStringValue":%b}' % (quoted(java), quoted(name))
