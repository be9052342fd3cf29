"""The broker's JSON: every config file of every golden store byte for byte, and what the real serializers did with odd input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_core.codec import json_dialect
from store_core.codec.json_dialect import JavaList, JsonError, Layout, dumps, loads
from store_core.layout import paths
from tests import stores

METRICS = ("timermetrics", "transactionMetrics")


def layout_of(name: str) -> Layout:
    version = stores.truth(name)["written_by"]
    of_release: dict[str, Layout] = {"4.3": "4", "4.9": "4", "5.4": "5.4", "5.5": "5.5"}
    return of_release.get(version[:3], "5")


@pytest.mark.parametrize("name", stores.GOLDEN)
def test_every_config_file_is_written_as_it_was_read(golden: Callable[[str], Path], name: str) -> None:
    root = golden(name)
    files = [p for p in [*(root / paths.CONFIG).iterdir(), root / paths.COMPACTION_POSITIONS] if p.is_file()]
    texts = [p for p in files if p.name != "timercheck"]
    assert len(texts) >= 3
    for path in texts:
        text = path.read_text("utf-8")
        one_line = path.name.removesuffix(paths.BAK_SUFFIX) in METRICS
        assert dumps(loads(text), layout=layout_of(name), browser_compatible=one_line) == text, path
        assert loads(path.read_bytes()) == loads(text)


# What fastjson 1.2.83 said of these texts (JSON.parse).
READ = [
    ("{a:1}", {"a": 1}),
    ("{'a':'b'}", {"a": "b"}),
    ("{1:2,,}", {1: 2}),
    ('{"a":[1,,2]}', {"a": [1, 2]}),
    ('{,"a":1}', {"a": 1}),
    ('{/*c*/"a":1}', {"a": 1}),
    ('// x\n{"a":1}', {"a": 1}),
    ('{"a":NaN}', {"a": None}),
    ('{"a":undefined}', {"a": None}),
    ('{"a":1} \0', {"a": 1}),
    ('{"a":1}\0\0\0', {"a": 1}),
    ("{true:1,false:2,null:3}", {True: 1, False: 2, None: 3}),
    ('{"a":01}', {"a": 1}),
    ('{"a":+1}', {"a": 1}),
    ('{"a":"x\ny"}', {"a": "x\ny"}),
    ("{-1:2,9223372036854775807:3}", {-1: 2, 9223372036854775807: 3}),
    ('{"a":1e5}', {"a": 1e5}),
    ('{"a":12345678901234567890123}', {"a": 12345678901234567890123}),
    ('\t{"a":\f1}\b', {"a": 1}),
    ('\ufeff{"a":1}', {"a": 1}),
    ('{"a":1,"a":2}', {"a": 2}),
    ('"s"', "s"),
    ("null", None),
    ("", None),
    (" \n ", None),
    (r'{"\u00fc\ud83d\ude80\/\x41\t\v\7":"\"\\"}', {"ü🚀/A\t\v\7": '"\\'}),
    (r'{"half":"\ud83d"}', {"half": "\ufffd"}),
]
REFUSED = [
    '{"a":1}}',
    '{"a":1}junk',
    '{"a":1},',
    "{}{}",
    '{"a":tru}',
    '{"a" 1}',
    '{"a":1 "b":2}',
    '{"a":-}',
    '{"a":.5}',
    '{"a":0x1F}',
    '{"a":{}',
    "{a b:1}",
    '\ufeff\ufeff{"a":1}',
    '{"a":"\\q"}',
    '{"a":"',
    '{"a"',
    "{",
    "[",
    "[1",
    "]",
    ",",
    "\0" * 300,
    "\0\x01garbage{{",
    "{" * 50_000,
    "[" * 50_000,
    '{"a":' * 50_000,
    "/*",
    "1" * 5000,
    '{"a":1' + "/*" * 5000,
]


@pytest.mark.parametrize(("text", "value"), READ)
def test_what_a_broker_reads(text: str, value: Any) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:20])
def test_what_a_broker_refuses(text: str) -> None:
    with pytest.raises(JsonError) as caught:
        loads(text)
    assert 0 <= caught.value.at <= len(text)


def test_depth_and_size_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    deepest = "[" * json_dialect.MAX_DEPTH + "]" * json_dialect.MAX_DEPTH
    assert loads(deepest) is not None
    with pytest.raises(JsonError, match="levels"):
        loads(f"[{deepest}]")
    monkeypatch.setattr(json_dialect, "MAX_SIZE_BYTES", 10)
    with pytest.raises(JsonError, match="larger than the 10 bytes"):
        loads(b'"aaaaaaaaaa"')


@given(st.text(st.sampled_from('{}[]:,"\\/*0a1-.$ref\n\0'), max_size=40))
def test_any_text_is_a_value_or_a_json_error(text: str) -> None:
    try:
        value = loads(text)
    except JsonError:
        return
    assert isinstance(dumps(value), str)


@given(st.binary())
def test_any_bytes_are_a_value_or_a_json_error(data: bytes) -> None:
    try:
        loads(data)
    except JsonError:
        return


class TestReferences:
    def test_resolved(self) -> None:
        text = '{"a":{"$ref":"$.b"},"b":{"c":1},"d":{"x":{"$ref":"$.l[1]"}},"l":[0,[2]],"t":{"%R%g.a":{"k":{}}},'
        text += r'"e":{"$ref":"$.t.\\%R\\%g\\.a.k"},"m":{7:{"n":5}},"o":{"$ref":"$.m.7"}}'
        value = loads(text)
        assert (value["a"], value["d"], value["e"], value["o"]) == ({"c": 1}, {"x": [2]}, {}, {"n": 5})
        assert loads(text, resolve_references=False)["a"] == {"$ref": "$.b"}

    @pytest.mark.parametrize(
        "path", ["..", "@", "$", "$.a", "$.missing", "$.b[0]", "$.b.c.d", "b", "$..", "$[", "$.l[9]", ""]
    )
    def test_left_where_there_is_nothing_to_take(self, path: str) -> None:
        reference = {"$ref": path}
        assert loads(dumps({"a": {"x": reference}, "b": {"c": 1}, "l": []}))["a"] == {"x": reference}

    def test_circles_end(self) -> None:
        value = loads('{"a":{"x":{"$ref":"$.b"}},"b":{"y":{"$ref":"$.a"}}}')
        assert len(dumps(value)) < 200

    def test_a_small_file_does_not_become_an_endless_one(self) -> None:
        text = '{"big":[' + "1," * 200_000 + '],"l":[' + '{"$ref":"$.big"},' * 2000 + "]}"
        resolved = [item for item in loads(text)["l"] if isinstance(item, list)]
        assert 1 <= len(resolved) <= 5

    def test_many_layers_do_not_multiply(self) -> None:
        layers = ",".join(f'"l{n}":[{{"$ref":"$.l{n + 1}"}},{{"$ref":"$.l{n + 1}"}}]' for n in range(40))
        value = loads('{"l40":[1],' + layers + "}")
        assert len(dumps(value)) < 10_000


# What fastjson 1.2.83 and, through 5.4.0's own class, fastjson2 wrote of one bean.
BEAN = {
    "arr": [{"q": 1}],
    "bb": {-5: {"q": 1}},
    "bm": {True: 1},
    "d": 1.5,
    "em": {},
    "h": {0: JavaList([{"q": 1}])},
    "nan": float("nan"),
    "none": None,
    "p": [1, 2],
    "sa": ["x"],
}
BEAN_5 = """{
	"arr":[{
		"q":1
	}],
	"bb":{-5:{
			"q":1
		}
	},
	"bm":{true:1
	},
	"d":1.5,
	"em":{},
	"h":{0:[
			{
				"q":1
			}
		]
	},
	"nan":null,
	"p":[1,2],
	"sa":["x"]
}"""
BEAN_5_4 = """{
	"arr":[
		{
			"q":1
		}
	],
	"bb":{
		-5:{
			"q":1
		}
	},
	"bm":{
		true:1
	},
	"d":1.5,
	"em":{
		
	},
	"h":{
		0:[
			{
				"q":1
			}
		]
	},
	"nan":null,
	"p":[1,2],
	"sa":[
		"x"
	]
}"""  # noqa: W293  # an empty map's line holds its tabs


@pytest.mark.parametrize(("layout", "text"), [("4", BEAN_5), ("5", BEAN_5), ("5.4", BEAN_5_4)])
def test_a_bean_as_the_real_serializers_write_it(layout: Layout, text: str) -> None:
    assert dumps(BEAN, layout=layout) == text
    assert dumps(loads(text), layout=layout) == text.replace(
        '\n\t"nan":null,', ""
    )  # read as null, and nulls are left out


def test_java_lists_stand_on_lines_of_their_own() -> None:
    assert dumps({"o": JavaList([1, 2]), "e": JavaList()}) == '{\n\t"o":[\n\t\t1,\n\t\t2\n\t],\n\t"e":[]\n}'


def test_escapes() -> None:
    text = '\0\x1f\b\t\n\f\r"\\/\x7f\x9fü\u2027\u2028\u2029🚀'
    assert dumps(text) == '"\\u0000\\u001F\\b\\t\\n\\f\\r\\"\\\\/\\u007F\\u009Fü\u2027\\u2028\\u2029🚀"'
    assert dumps(text, layout="5.4") == '"\\u0000\\u001f\\b\\t\\n\\f\\r\\"\\\\/\x7f\x9fü\u2027\u2028\u2029🚀"'
    assert (
        dumps(text, browser_compatible=True)
        == '"\\u0000\\u001F\\b\\t\\n\\f\\r\\"\\\\\\/\\u007F\\u009F\\u00FC\\u2027\\u2028\\u2029\\uD83D\\uDE80"'
    )


def test_browser_compatible_numbers_and_keys() -> None:
    value = {0: (1 << 53) - 1, "k": [1 << 53, -(1 << 53), 1.0], True: False}
    assert (
        dumps(value, browser_compatible=True)
        == '{"0":9007199254740991,"k":["9007199254740992","-9007199254740992",1.0],"true":false}'
    )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"])), inner.filter(lambda v: v is not None), max_size=4
        )
        | st.dictionaries(st.integers(), inner.filter(lambda v: v is not None), max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES, st.sampled_from(["4", "5", "5.4"]))
def test_round_trip(value: Any, layout: Layout) -> None:
    assert loads(dumps(value, layout=layout), resolve_references=False) == value
