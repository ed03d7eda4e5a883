"""Payloads and messages: what is written is read again, and any bytes give messages or a `RemoteProtocolError`."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus import Code, Kind, Limits, Message
from polybus.body import JSON, OCTETS
from polybus.errors import EncodeError, LocalProtocolError, RemoteProtocolError, ReservedSubject, Unsupported
from polybus.protocols import Jrep
from polybus.protocols.jrep import Parts
from polybus.protocols.jrep.names import LOCAL_PREFIX, is_reserved
from tests.unit.protocols.strategies import CODES, COUNTS, NUMBERS, TEXT, messages_of, values

NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x7f:", min_codepoint=0x20), min_size=1, max_size=40
)
SUBJECTS = NAMES.filter(lambda name: not (is_reserved(name) or name.startswith(LOCAL_PREFIX)))
VALUES = values(st.none() | st.booleans() | NUMBERS | TEXT, keys=TEXT.filter(lambda key: key[:1] != "^"))
FAILURES = st.fixed_dictionaries({"text": TEXT, "reason": st.none() | TEXT, "detail": VALUES})


OPENING = st.fixed_dictionaries({"mode": st.sampled_from(["stream", "channel"]), "credit": COUNTS, "hops": COUNTS})
MESSAGES = st.one_of(
    messages_of(Kind.REQUEST, VALUES, subject=SUBJECTS, id=NAMES),
    messages_of(Kind.PUBLISH, VALUES, subject=SUBJECTS),
    messages_of(Kind.NOTIFY, VALUES, subject=SUBJECTS),
    messages_of(Kind.SUBSCRIBE, subject=SUBJECTS),
    messages_of(Kind.UNSUBSCRIBE, subject=SUBJECTS),
    messages_of(Kind.OPEN, VALUES, subject=SUBJECTS, id=NAMES, attributes=OPENING),
    messages_of(Kind.ITEM, VALUES, subject=SUBJECTS, id=NAMES),
    messages_of(Kind.CREDIT, subject=SUBJECTS, id=NAMES, attributes=st.fixed_dictionaries({"credit": st.integers(1, 2**53)})),
    messages_of(Kind.END, subject=SUBJECTS, id=NAMES),
    messages_of(Kind.END, subject=SUBJECTS, id=NAMES, code=CODES, attributes=FAILURES),
)


@given(values=st.sampled_from(["errai", "plain"]), messages=st.lists(MESSAGES, min_size=1, max_size=4))
def test_what_is_written_is_read_again(values: str, messages: list[Message]) -> None:
    codec = Jrep(values=values).codec()
    again = codec.decode(codec.encode(messages))
    assert len(again) == len(messages)
    for back, sent in zip(again, messages, strict=True):
        assert isinstance(back, Message), back
        for name in ("kind", "subject", "headers", "ttl", "code", "has_body", "body"):
            assert getattr(back, name) == getattr(sent, name), name
        if sent.kind is Kind.REQUEST:
            assert back.id == (f"{sent.subject}:{sent.id}:RespondTo:RPC", f"{sent.subject}:{sent.id}:Errors:RPC")
        elif sent.id is not None:
            assert back.id == sent.id
        for name, value in sent.attributes.items():
            assert back.attributes[name] == value


@given(SUBJECTS, NAMES, VALUES, CODES, FAILURES)
def test_answers_come_back_to_the_id_that_was_asked(subject: str, id: str, body: Any, code: Code, failure: Any) -> None:
    codec = Jrep().codec()
    (asked,) = codec.decode(codec.encode([Message(Kind.REQUEST, subject, id)]))
    assert isinstance(asked, Message)
    answers = [Message(Kind.RESPONSE, subject, asked.id, body=body), Message(Kind.ERROR, subject, asked.id, code=code)]
    answers[1].extras = failure
    response, error = codec.decode(codec.encode(answers))
    assert isinstance(response, Message) and isinstance(error, Message)
    assert (response.kind, response.id, response.body) == (Kind.RESPONSE, id, body)
    assert (error.kind, error.id, error.code) == (Kind.ERROR, id, code)
    assert {name: error.attributes[name] for name in failure} == failure


def test_a_cancel_names_the_request_that_it_ends() -> None:
    codec = Jrep().codec()
    asked, cancel = codec.decode(codec.encode([Message(Kind.REQUEST, "a.b", "t-1"), Message(Kind.CANCEL, "a.b", "t-1")]))
    assert isinstance(asked, Message) and isinstance(cancel, Message)
    assert cancel.kind is Kind.CANCEL and asked.id == cancel.id


PARTS = "ToSubject CommandType ReplyTo ErrorTo Value MethodParms SessionID PriorityProcessing Throwable".split()
OWN = "PolybusTtl PolybusVerb PolybusId PolybusMode PolybusN PolybusHeaders PolybusCode Subject SubjectsList".split()
BUSES = ["ServerBus", "ClientBus", "a:1:RespondTo:RPC", "a:1:Errors:RPC", "x:RPC", "local:x"]
WORDS = [*BUSES, "open", "item", "end", "credit", "cancel"]
ODD = VALUES | st.sampled_from(
    [2**53 + 1, -1, 0, "", "a\n", "stream", "\x7f", *WORDS, {"^EncodedType": "x.Y", "^ObjectID": "1"}]
)
OBJECTS = st.dictionaries(st.sampled_from(PARTS + OWN) | TEXT, ODD, max_size=8)
ANYTHING = (
    st.binary(max_size=60)
    | st.lists(OBJECTS | VALUES, max_size=4).map(lambda value: json.dumps(value).encode())
    | OBJECTS.map(lambda value: json.dumps(value).encode())
)


@given(frame=ANYTHING)
def test_what_could_be_read_can_be_written_again_and_is_the_same(frame: bytes) -> None:
    codec = Jrep().codec()
    try:
        found = codec.decode(frame)
    except RemoteProtocolError:
        return
    for message in found:
        if isinstance(message, Message):
            try:
                (again,) = codec.decode(codec.encode([message]))
            except (LocalProtocolError, ReservedSubject, EncodeError, Unsupported):
                continue  # subjects that are not for everybody
            assert isinstance(again, Message)
            assert (again.kind, again.subject, again.id) == (message.kind, message.subject, message.id)


def refused(payload: str | bytes, **options: Any) -> RemoteProtocolError:
    (found,) = Jrep(**options).codec().decode(payload if isinstance(payload, bytes) else payload.encode())
    assert isinstance(found, RemoteProtocolError)
    return found


def read(payload: str) -> Message:
    (found,) = Jrep().codec().decode(payload.encode())
    assert isinstance(found, Message), found
    return found


def among(value: str) -> list[RemoteProtocolError]:
    """The refusals of a payload of a hundred messages with one bad value among them; the others have all been read."""
    good = [f'{{"ToSubject":"n","Value":{number}}}' for number in range(100)]
    good[50] = f'{{"ToSubject":"n","Value":{value}}}'
    found = Jrep().codec().decode(("[" + ",".join(good) + "]").encode())
    assert [message.body for message in found if isinstance(message, Message)] == [n for n in range(100) if n != 50]
    return [message for message in found if isinstance(message, RemoteProtocolError)]


ANSWER = '"ReplyTo":"n:1:RespondTo:RPC","ErrorTo":"n:1:Errors:RPC"'


READABLE = ["NaN", "-Infinity", '"\\ud83d"', '"a\tb"', "1e400"]  # the third: half of a pair, as JavaScript writes it
BROKEN = ['"\\x41"', "tru", "01", "{'a':1}", '{"a" 1}', "[1,]", "[" * 300 + "]" * 300]


@pytest.mark.parametrize("broken", READABLE + BROKEN)
def test_one_message_that_is_not_even_json_is_refused_alone(broken: str) -> None:
    (error,) = among(f"{broken},{ANSWER}")
    assert error.reason == ("too_deep" if broken[:2] == "[[" else "malformed")
    assert error.answer_id == (("n:1:RespondTo:RPC", "n:1:Errors:RPC") if broken in READABLE else None)


@pytest.mark.parametrize(
    "payload", ["[", "[{}", '[{"a":1},{"b":"]', '[{"a":1},{"b":"\\', "[{}] []", "[{}]]", "[,]", "nonsense", "[{]}]"]
)
def test_a_payload_whose_messages_cannot_be_told_apart_is_refused_as_one(payload: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Jrep().codec().reader.read(payload.encode())
    assert caught.value.reason == "malformed"


def test_a_bare_object_an_empty_text_and_an_empty_array_are_payloads_and_payloads_can_be_joined() -> None:
    codec = Jrep().codec()
    assert read('{"ToSubject":"a"}').subject == "a"
    assert list(codec.decode(b"")) == list(codec.decode(b" ")) == list(codec.decode(b" [ ] ")) == []
    codec = Jrep().codec()
    joined = codec.join([b'[{"ToSubject":"a"}]', b"[]", b' [ {"ToSubject":"b"} ] '])
    assert [message.subject for message in codec.decode(joined) if isinstance(message, Message)] == ["a", "b"]


def test_parts_of_the_application_are_attributes_and_a_session_id_is_never_read() -> None:
    assert "SessionID" not in read('[{"ToSubject":"a","SessionID":"of somebody else","x":1}]').attributes
    message = read('[{"ToSubject":"a","CommandType":"Subscribe","Value ":"happyTopic","Value":1}]')
    assert message.body == 1
    assert message.attributes == {"CommandType": "Subscribe", "Value ": "happyTopic"}
    message = read(Jrep().codec().encode([Message(Kind.PUBLISH, "a", body=Parts(Value=[1], Nick="Ann"))]).decode())
    assert (message.body, message.attributes) == ([1], {"Nick": "Ann"})


def test_parts_with_marks_share_one_space_of_ids() -> None:
    inner = '{"^EncodedType":"java.util.ArrayList","^ObjectID":"1","^Value":["x"]}'
    message = read(f'[{{"ToSubject":"a","First":{inner},"Value":{{"^EncodedType":"java.util.ArrayList","^ObjectID":"1"}}}}]')
    assert message.body == ["x"]
    assert message.body is message.attributes["First"]
    written = json.loads(Jrep().codec().encode([message]))[0]
    ids = [written[name]["^ObjectID"] for name in ("Value", "First")]
    assert sorted(ids) == ["1", "2"], "each part can be read without the other"


def test_lists_in_a_command_share_one_space_of_ids() -> None:
    codec = Jrep().codec()
    (command,) = codec.decode(b'[{"ToSubject":"ServerBus","x":[],"y":[]}]')
    assert isinstance(command, Message)
    (again,) = codec.decode(codec.encode([command]))
    assert isinstance(again, Message) and again.attributes == command.attributes


def test_subjects_of_the_buses_are_nobody_else_s() -> None:
    codec = Jrep().codec()
    for name in ("ServerBus", " serverbus", "ClientBus\u200b", "\uff33erverBus", "ServerEchoService"):
        with pytest.raises(ReservedSubject):
            codec.encode([Message(Kind.PUBLISH, name)])
    assert codec.encode([Message(Kind.PUBLISH, "local:here")]) == b"[]", "it does not leave its bus"
    assert refused('[{"ToSubject":"local:x"}]').reason == "reserved_subject"


REFUSED = {
    '[{"Value":1}]': "missing_field",
    '[{"ToSubject":""}]': "missing_field",
    '[{"ToSubject":null}]': "missing_field",
    '[{"ToSubject":5}]': "invalid_subject",
    '[{"ToSubject":"a\\u0000"}]': "invalid_subject",
    "[5]": "not_array",
    "[[]]": "not_array",
    '[{"ToSubject":"a","ReplyTo":5}]': "invalid_part",
    '[{"ToSubject":"a","PriorityProcessing":"high"}]': "invalid_part",
    '[{"ToSubject":"a","PolybusTtl":-1}]': "invalid_ttl",
    '[{"ToSubject":"a","PolybusTtl":"1"}]': "invalid_ttl",
    '[{"ToSubject":"a","PolybusHeaders":"[]"}]': "invalid_headers",
    '[{"ToSubject":"a","PolybusHeaders":"{\\"a\\":\\"b\\\\n\\"}"}]': "invalid_headers",
    '[{"ToSubject":"a","PolybusVerb":"dance","PolybusId":"1"}]': "unknown_type",
    '[{"ToSubject":"a","PolybusVerb":"item"}]': "invalid_id",
    '[{"ToSubject":"a","PolybusVerb":"item","PolybusId":"1","PolybusFrame":"AAE"}]': "bad_encoding",
    '[{"ToSubject":"a","PolybusVerb":"open","PolybusId":"1"}]': "invalid_part",
    '[{"ToSubject":"a","PolybusVerb":"credit","PolybusId":"1","PolybusN":0}]': "invalid_part",
    '[{"ToSubject":"ServerBus","CommandType":"RemoteSubscribe"}]': "missing_field",
    '[{"ToSubject":"ServerBus","CommandType":"RemoteSubscribe","Subject":"a","SubjectsList":["b"]}]': "ambiguous",
    '[{"ToSubject":"ServerBus","CommandType":"RemoteSubscribe","SubjectsList":"a,b"}]': "invalid_part",
    '[{"ToSubject":"ServerBus","CommandType":"RemoteSubscribe","SubjectsList":[5]}]': "invalid_subject",
}


@pytest.mark.parametrize(
    ("frame", "raw", "format"), [('{"id":1}', b'{"id":1}', JSON), ("[1]", b"[1]", JSON), ('"AAH/"', b"\0\1\xff", OCTETS)]
)
def test_a_frame_of_a_tunnel_is_a_document_or_base64(frame: str, raw: bytes, format: Any) -> None:
    payload = '[{"ToSubject":"a","PolybusVerb":"item","PolybusId":"1","PolybusFrame":' + frame + "}]"
    message = read(payload)
    assert (message.kind, message.id, message.raw, message.format) == (Kind.ITEM, "1", raw, format)
    assert Jrep().codec().encode([message]) == payload.encode()


@pytest.mark.parametrize("payload", REFUSED)
def test_a_bad_message_is_refused_with_its_reason(payload: str) -> None:
    assert refused(payload).reason == REFUSED[payload]


def test_what_is_too_much_is_refused() -> None:
    parts = {"ToSubject": "a", **{str(number): 1 for number in range(300)}}
    assert refused(json.dumps([parts])).reason == "too_large"
    small = Jrep().codec(Limits(message=100))
    with pytest.raises(RemoteProtocolError, match="a message of 116 bytes: the limit is 100") as caught:
        small.decode(b'[{"ToSubject":"%b"}]' % (b"a" * 100))
    assert (caught.value.reason, caught.value.close_code) == ("too_large", None)
    with pytest.raises(RemoteProtocolError, match="larger than 800 .limit: payload.") as caught:
        small.decode(b"[" + b",".join([b'{"ToSubject":"a"}'] * 50) + b"]")
    assert (caught.value.reason, caught.value.close_code) == ("too_large", 1009)
    assert refused('[{"ToSubject":"a","Value":' + "[" * 2000 + "]" * 2000 + "}]").reason == "too_deep"


@pytest.mark.parametrize(
    "payload", ["[NaN,GOOD]", "[nonsense,GOOD]", "[GOOD,,GOOD2]", '["a,b",GOOD]', "[GOOD x,GOOD]", "[1,[2],GOOD]"]
)
def test_an_element_that_is_no_message_costs_no_other(payload: str) -> None:
    text = payload.replace("GOOD2", '{"ToSubject":"b"}').replace("GOOD", '{"ToSubject":"a"}')
    found = Jrep().codec().reader.read(text.encode())
    assert any(isinstance(one, RemoteProtocolError) for one in found)
    assert [one.subject for one in found if isinstance(one, Message)] == (["a", "b"] if "GOOD2" in payload else ["a"])


@pytest.mark.parametrize("bad", ["", ',{"ToSubject":"n","Value":NaN}', ',{"ToSubject":"n","ToSubject":7}', ",nonsense"])
def test_a_payload_of_many_messages_is_read_and_a_bad_one_among_them_costs_only_itself(bad: str) -> None:
    good = [f'{{"ToSubject":"n","Value":{number}}}' for number in range(5000)]
    good[2500] += bad
    found = Jrep().codec().decode(("[" + ",".join(good) + "]").encode())
    assert [one.body for one in found if isinstance(one, Message)] == list(range(5000))
    assert sum(isinstance(one, RemoteProtocolError) for one in found) == bool(bad)


def test_one_message_that_is_too_large_costs_no_other_and_says_so_to_who_asked() -> None:
    large = f'{{"ToSubject":"n","ReplyTo":"r:RespondTo:RPC","Value":"{"x" * 200}"}}'
    found = Jrep().codec(Limits(message=100)).decode(f'[{{"ToSubject":"a"}},{large},{{"ToSubject":"b"}}]'.encode())
    before, error, after = found
    assert isinstance(error, RemoteProtocolError)
    assert (error.reason, error.close_code, error.answer_id) == ("too_large", None, ("r:RespondTo:RPC", None))
    assert [one.subject for one in (before, after) if isinstance(one, Message)] == ["a", "b"]


MARKED = '"Value":{"^EncodedType":"java.lang.Long","^NumVal":[]}'
MANY = ",".join(f'"{number}":1' for number in range(300))


@pytest.mark.parametrize(
    "rest", [MARKED, MANY, '"Value":NaN', f'"Value":"{"x" * 100_000}","a":NaN', '"ToSubject":7', '"Value":{"a":1,"a":2}']
)
def test_an_answer_can_be_given_where_the_bad_message_says_where_to(rest: str) -> None:
    bad = f'{{"ToSubject":"a","ReplyTo":"r","ErrorTo":"e",{rest}}}'
    found = (
        Jrep(types="strict").codec().reader.read(f'[{bad},{{"ToSubject":"{"b" * 1000}","Value":"{"x" * 40_000}"}}]'.encode())
    )
    assert [one.answer_id for one in found if isinstance(one, RemoteProtocolError)] == [("r", "e")]


def test_a_strict_reader_takes_no_member_twice() -> None:
    payload = '[{"ToSubject":"a","ToSubject":"b"}]'
    assert refused(payload, types="strict").reason == "ambiguous"
    assert read(payload).subject == "b"


@pytest.mark.parametrize("element", ["[%s]", '"%s"', "%s"])
def test_something_too_large_that_is_no_message_is_refused_as_one(element: str) -> None:
    codec = Jrep().codec(Limits(message=2000))
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode(f"[{element % ('1' * 3000)}]".encode())
    assert (caught.value.reason, caught.value.answer_id, caught.value.close_code) == ("too_large", None, None)


def test_the_asker_of_a_large_message_is_found_without_reading_its_body() -> None:
    large = '[{"ReplyTo":"r:RespondTo:RPC","ErrorTo":"r:Errors:RPC","ToSubject":"n","Value":[' + "[]," * 500_000 + "1]}]"
    with pytest.raises(RemoteProtocolError) as caught:
        Jrep().codec().decode(large.encode())
    assert caught.value.answer_id == ("r:RespondTo:RPC", "r:Errors:RPC")
    broken = large.replace("1]}]", "NaN]}]")
    with pytest.raises(RemoteProtocolError) as caught:
        Jrep().codec().decode(broken.encode())
    assert caught.value.answer_id is None
