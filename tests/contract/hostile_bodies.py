"""Bodies that try to be more than a body, in each place where a wire has one: for tests of all adapters.

Invalid JSON is of the kinds used against parsers: structure, numbers, text, literals, bytes that are not text.
"""

from typing import Final

ENDING: Final[tuple[bytes, ...]] = (
    # The member ends, and others follow: the names of each wire that is JSON.
    b'1,"request":"admin.reset"',
    b'1,"publish":"admin.news"',
    b'1,"id":"x","request":"admin.reset"',
    b'1,"ToSubject":"admin.news"',
    b'1,"ToSubject":"admin.reset","ReplyTo":"x"',
    b'1,"CommandType":"admin"',
    b'1,"PolybusVerb":"cancel","PolybusId":"1"',
    b'1,"type":"pub.v1","source":"//a/b/1/admin#Admin"',
    b'null,"success":"1"',
    b'{"a":1},"publish":"admin.news"',
    b'"a","publish":"admin.news"',
    b'[1],"headers":{"polybus-via":"x"}',
    b'1,"publish":"admin.news","more":"' + b"x" * 400 + b'"',
    # The message ends, and another begins.
    b'1},{"ToSubject":"admin.news"',
    b'1},{"ToSubject":"admin.reset","ReplyTo":"x"',
    b'1}]\x00[{"ToSubject":"admin.news","Value":1',
    b'1}{"publish":"admin.news","body":1',
    b'1}\n{"publish":"admin.news","body":1',
    b'1}\r\n{"publish":"admin.news","body":1',
    b'1}\x00{"publish":"admin.news","body":1',
    b'1]}\x1e{"publish":"admin.news"}',
    b'"a"\x00',
    b"1\r\nPUB admin.news 1\r\n1",
    b"1\r\nMSG admin.news 1 1\r\n1\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"1\nevent: x\ndata: 2\n\n",
    # Lengths and letters of the binary wires.
    b"P\x00\x0a\x00\x00\x00\x01admin.news1",
    b"\x12\x00\x00\x00\xff\xff\x00\x03\x00\x0aadmin.news1",
    b"\x0a\x01\x12\x12\x011",
    b"\x0a\x02\xff\xff\x12\x01x",
    b"\x001",
    b"\x0a\x00\x00\x01\x12\x00",
    b"\x00\x00\x00\x041234",
    b"\xff" * 9,
)
"""The first value is one that a handler takes."""

_STRUCTURE: Final = """
[1,] [,1] [1,,2] [,] [1 [[1] [1]] 1] ] [ [1}] [1:2] [1;2] ["a",4 ["a"4] [1\x0b2] [1true] [1,2]] 1,2 [][] {}{} 1[2] truefalse
{"a":1,} {,} {"a"} {"a":} {"a" 1} {"a"=1} {a:1} {'a':1} {1:1} {null:1} {"a":1 "b":2} {"a":1,,"b":2} {"a":1}} {{}} {"a":1]
{"a":1}x {"a":1}# {"a":1}/**/ {"a":1}// /*a*/1 //a 1//a #1 {"a":1,/*b*/"b":2} {"a"::1} {:1} {"a":"b} {"a":1 { } {[]} [{] {"a":[}
<null> <a/> (1) 1; ;1 {"a":1;"b":2} a @ $ & ? * ** 1|2 [*] ["x"}] [{"x"]} "a""b" nullnull {"x":{} {"x":[1}
"""
_NUMBERS: Final = """
01 00 012 -01 -00 +1 ++1 +-1 --1 - -- + . .1 -.1 1. -1. 1.e1 .e1 1e 1e+ 1e- 1E 1E+ e1 1e1e1 1.1.1 1..2 1.2.3
0x1 0X1 0xFF 0b1 0o7
1_000 1,000 1a 1x 2a3 -1x 1f 1d 1L NaN -NaN nan Infinity -Infinity +Infinity infinity Inf inf -inf 1e400 -1e400
1e999999 123e45e6
1+2 1-2 -foo
0e 0e+ 0.e1 -2. 1.0e 1.0e+ 1.0e- 0.3e 0.3e+ 1eE2 1ea \u0661 \uff11 \u00b9 \u00bd [1e400] [-] [01] [1.] {"a":NaN} 0,1 1'000
"""
_LITERALS: Final = (
    "tru True TRUE truex nul Null NULL nulll fals False FALSE undefined None nil yes no on off [tru] {a:tru} true1 1true"
)
_TEXT: Final = (
    '" "a "\\" "\\x" "\\u" "\\u1" "\\u12" "\\u123" "\\u123g" "\\a" "\\\'" "\\0" "\\U00000000" "\\ud800" "\\udc00" '
    '"\\ud800\\ud800" "\\ud800x" "\\ud83d\\u0041" "\\u00A" "\\{[" \'a\' `a` a" "a"x "a\\ "\\ \\"a" "\\n"" ["\\ud800"] '
    '{"\\ud800":1} "\\e" "\\\\\\" ["a\'] “a”'
)
_BYTES: Final = (
    *(b'"\x00"', b'"\n"', b'"\r"', b'"\t"', b'"\x1f"', b'"a\x01b"', b'["new\nline"]', b"\xef\xbb\xbf1"),
    *(b'\xef\xbb\xbf{"a":1}', b"\xef\xbb\xbf", b"\xfe\xff\x001", b"\xff\xfe1\x00", b'"\xff"', b'"\xc0\x80"'),
    *(b'"\xc0\xaf"', b'"\xe2"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\x80"', b'"\xc3\x28"', b'{"\xff":1}'),
    *(b"\x80", b"\xff", b"1\x00", b"\x001", b"\x00", b"1\x0c", b"1\x0b", b"\x0c1", b"1\xa0", b"1\xc2\xa0"),
    *(b"\xe2\x80\xa81", b"1\xe3\x80\x80", b"1\x1a", b"1\x7f", b"[1]\x00", b"[1\x00]", b"\x08[]", b" ", b"\t", b"\r\n"),
    *(b"[" * 129 + b"]" * 129, b"[" * 5000, b"[" * 5000 + b"]" * 5000, b'{"a":' * 129 + b"1" + b"}" * 129),
    *(b'[{"a":' * 2000, b"[[[1]]"),
)

NO_JSON: Final[tuple[bytes, ...]] = tuple(
    dict.fromkeys(
        (
            *ENDING,
            *_BYTES,
            *(text.encode() for text in (*_STRUCTURE.split(), *_NUMBERS.split(), *_LITERALS.split(), *_TEXT.split(" "))),
            *(b"1 2", b"[1 2]", b"true false", b'"a" "b"', b'{"a" "b"}', b'{"a":1 "b":2}', b"[1 true]", b"[] []"),
            *(b"null null", b"- 1", b"1 .5", b"1 e5", b"t rue"),
        )
    )
)
"""Not one of these is a JSON value that an adapter takes: most by the grammar, the rest for its depth, size or code points."""

JSON_VALUES: Final[tuple[bytes, ...]] = (
    *(b"1", b" 1", b"1 ", b"\r\n\t 1 \r\n\t", b"-0", b"1e5", b"0.5", b"123456789012345678901234567890", b"true"),
    *(b"null", b'""', b'"a"', b'"\\u0000"', b'"\\r\\n"', b'"\\",\\"request\\":\\"admin.reset\\""'),
    *(b'"1,\\"request\\":\\"admin.reset\\""', b'"1}],[{"', b'"\\ud83d\\ude00"', b'"\xe2\x80\xa8\x7f\xc2\x85"'),
    *(b'"\xef\xbb\xbf"', b"[]", b"{}", b'{"a":1,"a":2}', b'{"request":"admin.reset","id":1,"body":2}'),
    *(b'{"publish":"admin.news"}', b'{"subject":"admin.news","body":1}', b'{"ToSubject":"admin.news","Value":1}'),
    *(b'{"a":"\\u005eEncodedType"}', b'[{"ToSubject":"admin.news"}]', b'{"":{"\\u0000":[null]}}'),
    *(b"[" * 60 + b"]" * 60, b'{"text":"' + b"x" * 600 + b'"}'),
)
"""Each is one, however it looks."""
